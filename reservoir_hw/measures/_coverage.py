"""Coverage: how much of a behaviour space the settings of a device reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.measures._arrays import checked
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._statistics import bounded, check_confidence, t_interval

BEHAVIOURS = ("kernel rank", "generalisation rank", "memory capacity")
"""The axes of the behaviour space (Dale et al. 2019)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Coverage(Measured):
    """`value` is the number of cells of the behaviour space that the settings reach.

    `behaviours` (settings, 3) are kernel rank, generalisation rank and memory capacity of each setting, `width` the
    side of a cell. `beside` (settings, 3) are those of as many leaky echo state networks of the same size, which reach
    `cells_beside` cells.
    """

    behaviours: np.ndarray
    beside: np.ndarray
    width: float
    cells_beside: int
    interval_beside: Interval


def coverage(behaviours: Any, beside: Any, *, nodes: int, cells: int = 10, confidence: float = 0.95) -> Coverage:
    """Cells of the behaviour space that a device reaches with its settings, after Dale et al. 2019.

    `behaviours` and `beside` are (settings, 3) of as many settings each: kernel rank, generalisation rank and memory
    capacity, all between 0 and `nodes`. The cells are cubes with a side of `nodes / cells`. More settings reach more
    cells, so the number alone means little: that of `beside`, with as many settings, is its measure.

    The interval says how far the number would differ with other settings of the same kind: the jackknife over settings
    (Heltshe & Forrester 1983 for species in quadrats). Raises `ConfigurationError` for fewer than two settings or
    different numbers of them.
    """
    check_confidence(confidence)
    first = checked(behaviours, ("settings", "behaviours"), "behaviours")
    second = checked(beside, ("settings", "behaviours"), "behaviours beside")
    if len(first) != len(second) or len(first) < 2:
        raise ConfigurationError(
            f"a coverage compares as many settings, at least 2: there are {len(first)} and {len(second)}"
        )
    width = nodes / cells
    value, interval = _reached(first, width, confidence)
    other, interval_beside = _reached(second, width, confidence)
    return Coverage(
        value=float(value),
        interval=interval,
        note=(
            f"Of kernel rank, generalisation rank and memory capacity, by {len(first)} settings; as many leaky echo "
            f"state networks of {nodes} nodes reach {other} [{interval_beside.low:.3g}, {interval_beside.high:.3g}] "
            "cells."
        ),
        behaviours=first,
        beside=second,
        width=width,
        cells_beside=other,
        interval_beside=interval_beside,
    )


def _reached(behaviours: np.ndarray, width: float, confidence: float) -> tuple[int, Interval]:
    settings = len(behaviours)
    _, members = np.unique(np.floor(behaviours / width), axis=0, return_counts=True)
    cells, alone = len(members), int(np.count_nonzero(members == 1))
    error = ((settings - 1) / settings * alone * (1 - alone / settings)) ** 0.5
    interval = t_interval(float(cells), error, settings - 1, confidence, f"jackknife over {settings} settings")
    return cells, bounded(interval, 1.0, float(settings))
