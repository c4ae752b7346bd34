"""Operating map: what a device can do by how it is driven and set."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from reservoir_hw.measures._consistency import Consistency
from reservoir_hw.measures._measured import Measured
from reservoir_hw.measures._noise_budget import NoiseBudget

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
    low, high = again.ends
    interval = again.budget.interval
    notes = [
        f"Best at {place}: consistency {again.consistency.value:.3g}, rank {again.budget.rank[0]:.0f}.",
        f"The reference point, measured {len(reference)} times, moved by {spread:.2g}"
        + (", more than its interval: the device changed in between." if spread > 2 * half else "."),
    ]
    return OperatingMap(
        value=again.capacity,
        interval=type(interval)(low, high, interval.confidence, "rank less loss to noise, batch means over time"),
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
    enough = (1 - _ALIKE) * np.max(capacity)
    return np.lexsort([-np.asarray(linear), -np.minimum(capacity, enough)])


def grid_points(values: list[list[float]]) -> np.ndarray:
    """All combinations (points, axes); the last axis turns fastest."""
    return np.array(list(itertools.product(*values)), dtype=np.float64)
