"""The settings that are tried for the device and for each baseline: as many for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.experiment.configuration.labels import short

SETTINGS = 15
"""So many are tried for each model."""


@dataclass(frozen=True)
class Candidate:
    """A setting that is tried: of which model, the reservoir (None is the device itself), and the penalty."""

    model: str
    reservoir: dict[str, Any] | None
    alpha: float

    @property
    def label(self) -> str:
        """A baseline with its settings; nothing for the device and its encoder, which have none beside the penalty."""
        return "" if self.reservoir is None or "of" in self.reservoir else short(self.reservoir)

    @property
    def row(self) -> dict[str, Any]:
        """As a row of `vary`."""
        of_reservoir = {} if self.reservoir is None else {"reservoir": self.reservoir}
        return {**of_reservoir, "readout.alpha": self.alpha}


def candidates(model: str, reservoirs: Sequence[dict[str, Any] | None]) -> list[Candidate]:
    """`SETTINGS` of them: each reservoir with its share of penalties, the first ones with one more if need be."""
    found = []
    for number, reservoir in enumerate(reservoirs):
        share = SETTINGS // len(reservoirs) + (number < SETTINGS % len(reservoirs))
        found += [Candidate(model, reservoir, alpha) for alpha in penalties(share)]
    return found


def penalties(count: int) -> list[float]:
    """Of the ridge regression, from 1 to 1e-8 in equal ratios, two or more; of equal ones the first counts."""
    return [float(f"{value:.3g}") for value in np.logspace(0, -8, count)]
