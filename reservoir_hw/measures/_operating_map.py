"""Operating map: what a device can do by how it is driven and set."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.measures._measured import Interval, Measured, bounded, checked, t_interval
from reservoir_hw.measures._repeats import Consistency, NoiseBudget

# Capacities that differ by less than this share count as equal.
_ALIKE = 1e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class OperatingMap(Measured):
    """`value` is the capacity of the best point, measured once more with other inputs.

    The capacity is that of all functions of the input, linear and nonlinear: what noise leaves of the rank.

    `points` (points, axes) are where it was measured, on the axes `axes`; `capacity` (points,) with its ends
    `capacity_low` and `capacity_high`, `linear` (points,) and `consistency` (points,) were found there. `best` is the
    number of the point with the largest capacity. `reference` (repeats,) is the capacity of one point, number
    `reference_point`, that was measured again and again in the course of the map: it tells drift. Points that are
    possible in the grid of the axes and not in `points` lie beyond the range of the device.
    """

    axes: tuple[str, ...]
    points: np.ndarray
    capacity: np.ndarray
    capacity_low: np.ndarray
    capacity_high: np.ndarray
    linear: np.ndarray
    consistency: np.ndarray
    best: int
    reference_point: int
    reference: np.ndarray

    @property
    def order(self) -> np.ndarray:
        """The numbers of the points (points,), the best first."""
        return best_first(self.capacity, self.linear)


@dataclass(frozen=True)
class AtPoint:
    """What was found at one point of a map."""

    budget: NoiseBudget
    consistency: Consistency

    @property
    def capacity(self) -> float:
        """What noise leaves of the rank: the capacity of all functions of the input, without trying them."""
        return float(self.budget.rank[0] - self.budget.lost[0])

    @property
    def ends(self) -> tuple[float, float]:
        """Of the interval of the capacity."""
        lost = self.budget.lost_intervals[0]
        return float(self.budget.rank[0] - lost.high), float(self.budget.rank[0] - lost.low)


def operating_map(
    axes: tuple[str, ...],
    points: np.ndarray,
    found: list[AtPoint],
    again: AtPoint,
    references: list[tuple[int, AtPoint]],
) -> OperatingMap:
    """A map of what was found at `points` (points, axes).

    `again` is the best of them measured once more: the largest of many is large by chance, too. `references` are the
    numbers of a point that was repeated, with what was found each time.
    """
    capacity = np.array([one.capacity for one in found])
    ends = np.array([one.ends for one in found])
    best = best_point(found)
    reference = np.array([one.capacity for _, one in references])
    spread = float(np.ptp(reference))
    half = float(np.mean([(one.ends[1] - one.ends[0]) / 2 for _, one in references]))
    place = ", ".join(f"{axis} {value:.3g}" for axis, value in zip(axes, points[best], strict=True))
    notes = [
        f"Best at {place}: consistency {again.consistency.value:.3g}, rank {again.budget.rank[0]:.0f}.",
        f"The reference point, measured {len(reference)} times, moved by {spread:.2g}"
        + (", more than its interval: the device changed in between." if spread > 2 * half else "."),
    ]
    return OperatingMap(
        value=again.capacity,
        interval=Interval(*again.ends, "rank less loss to noise, batch means over time"),
        note=" ".join(notes),
        axes=axes,
        points=points,
        capacity=capacity,
        capacity_low=ends[:, 0],
        capacity_high=ends[:, 1],
        linear=np.array([one.budget.linear[0] for one in found]),
        consistency=np.array([one.consistency.value for one in found]),
        best=best,
        reference_point=references[0][0],
        reference=reference,
    )


def best_point(found: list[AtPoint]) -> int:
    """The number of the best point: see `best_first`."""
    return int(best_first([one.capacity for one in found], [one.budget.linear[0] for one in found])[0])


def best_first(capacity: ArrayLike, linear: ArrayLike) -> np.ndarray:
    """The order of points by their capacity (points,); those within a thousandth of the best by their linear one.

    Without noise every point has the whole rank.
    """
    return np.lexsort([-np.asarray(linear), -np.minimum(capacity, (1 - _ALIKE) * np.max(capacity))])


def grid_points(values: list[list[float]]) -> np.ndarray:
    """All combinations (points, axes); the last axis turns fastest."""
    return np.array(list(itertools.product(*values)), dtype=np.float64)


# ---- Coverage: how much of a behaviour space the settings of a device reach.


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


def coverage(behaviours: Any, beside: Any, *, nodes: int, cells: int = 10) -> Coverage:
    """Cells of the behaviour space that a device reaches with its settings, after Dale et al. 2019.

    `behaviours` and `beside` are (settings, 3) of as many settings each: kernel rank, generalisation rank and memory
    capacity, all between 0 and `nodes`. The cells are cubes with a side of `nodes / cells`. More settings reach more
    cells, so the number alone means little: that of `beside`, with as many settings, is its measure.

    The interval says how far the number would differ with other settings of the same kind: the jackknife over settings
    (Heltshe & Forrester 1983 for species in quadrats). Raises `ConfigurationError` for fewer than two settings or
    different numbers of them.
    """
    first = checked(behaviours, ("settings", "behaviours"), "behaviours")
    second = checked(beside, ("settings", "behaviours"), "behaviours beside")
    if len(first) != len(second) or len(first) < 2:
        raise ConfigurationError(
            f"a coverage compares as many settings, at least 2: there are {len(first)} and {len(second)}"
        )
    width = nodes / cells
    value, interval = _reached(first, width)
    other, interval_beside = _reached(second, width)
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


def _reached(behaviours: np.ndarray, width: float) -> tuple[int, Interval]:
    settings = len(behaviours)
    _, members = np.unique(np.floor(behaviours / width), axis=0, return_counts=True)
    cells, alone = len(members), int(np.count_nonzero(members == 1))
    error = ((settings - 1) / settings * alone * (1 - alone / settings)) ** 0.5
    interval = t_interval(float(cells), error, settings - 1, f"jackknife over {settings} settings")
    return cells, bounded(interval, 1.0, float(settings))
