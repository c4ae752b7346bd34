"""Noise of simulated devices, which a training that was interrupted takes up where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reservoir_hw.reservoir import Reservoir
from reservoir_hw.spec import ReservoirSpec


class NoiseOf:
    """The noise of these reservoirs, of those that can tell where it is: simulations with snapshots."""

    def __init__(self, reservoirs: Sequence[Reservoir]) -> None:
        self._reservoirs = reservoirs

    @property
    def noisy(self) -> bool:
        """Whether there is any."""
        return bool(self._noisy())

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
            if repeats_noise(reservoir.spec) and not reservoir.spec.deterministic and not reservoir.state_lost
        ]


def repeats_noise(spec: ReservoirSpec) -> bool:
    """Whether a snapshot brings back the noise that followed: that of a real device comes only once.

    Where steps are replayed to get a state back, a snapshot is these steps.
    """
    return spec.snapshot and spec.identity.simulated and spec.continuity != "replayed"


def inside(kept: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """What lies under a prefix."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in kept.items() if name.startswith(f"{prefix}/")}
