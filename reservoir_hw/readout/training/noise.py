"""Noise of simulated devices. A training that was interrupted goes on with the noise where it was."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec

log = logging.getLogger(__name__)


class NoiseOf:
    """The noise of these reservoirs, as far as it comes again: see `repeats_noise`."""

    def __init__(self, reservoirs: Sequence[Reservoir]) -> None:
        self._reservoirs = reservoirs

    @property
    def noisy(self) -> bool:
        """Whether a simulation among them has any, which may come again or not."""
        specs = [reservoir.spec for reservoir in self._reservoirs]
        return any(spec.identity.simulated and not spec.deterministic for spec in specs)

    def kept(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: snapshots, whose names begin with the number of the reservoir."""
        return {
            f"{number}/{name}": np.asarray(array)
            for number, reservoir in self._repeating()
            for name, array in reservoir.snapshot().items()
        }

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Bring it back to where it was when that was `kept`."""
        for number, reservoir in self._repeating():
            snapshot = inside(kept, str(number))
            if snapshot:
                try:
                    reservoir.restore(snapshot)
                except ConfigurationError as error:
                    # Such as that of the same device behind another transport.
                    log.warning(
                        "the noise of the simulated devices cannot go on where it was, so what is driven from here on "
                        "has other noise than without an interruption: %s",
                        error,
                    )

    def _repeating(self) -> list[tuple[int, Reservoir]]:
        return [
            (number, reservoir)
            for number, reservoir in enumerate(self._reservoirs)
            if repeats_noise(reservoir.spec) and not reservoir.state_lost
        ]


def repeats_noise(spec: ReservoirSpec) -> bool:
    """Whether there is noise, and a snapshot brings back what followed: that of a real device comes only once.

    Where steps are replayed to get a state back, a snapshot is these steps; where a batch is driven in
    turn, a reset forgets it.
    """
    returns = spec.snapshot and spec.continuity != "replayed" and spec.max_batch is None
    return returns and spec.identity.simulated and not spec.deterministic


def inside(kept: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What lies under a prefix."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in kept.items() if name.startswith(f"{prefix}/")}
