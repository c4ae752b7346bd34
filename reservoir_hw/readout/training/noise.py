"""Noise of simulated devices, which a training that was interrupted takes up where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reservoir_hw.reservoir import Reservoir


class NoiseOf:
    """The noise of these reservoirs, of those that can tell where it is."""

    def __init__(self, reservoirs: Sequence[Reservoir]) -> None:
        self._reservoirs = reservoirs

    def kept(self) -> dict[str, np.ndarray]:
        """Snapshots; names begin with the number of the reservoir."""
        return {
            f"{number}/{name}": np.asarray(array)
            for number, reservoir in self._noisy()
            for name, array in reservoir.snapshot().items()
        }

    def take_up(self, kept: Mapping[str, np.ndarray]) -> None:
        """Bring it back to where it was."""
        for number, reservoir in self._noisy():
            snapshot = inside(kept, str(number))
            if snapshot:
                reservoir.restore(snapshot)

    def _noisy(self) -> list[tuple[int, Reservoir]]:
        return [
            (number, reservoir)
            for number, reservoir in enumerate(self._reservoirs)
            if reservoir.spec.snapshot and not reservoir.spec.deterministic and not reservoir.state_lost
        ]


def inside(kept: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """What lies under a prefix."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in kept.items() if name.startswith(f"{prefix}/")}
