"""Whether a device answers alike under two conditions, and what such a comparison could have seen.

A deterministic device is compared number by number. Any other is driven several times under each condition. The repeats
are exchangeable if the condition changes nothing, so every way to deal them out to two groups is as likely as the one
that was measured: the p-value is the share of these ways that differ at least as much (an exact permutation test;
Fisher 1935, Good 2005). Nothing is assumed of the noise within a drive, which may be correlated in time and between
nodes. Three distances are looked at, since a fault may change all numbers a little, one step, or one node: that of the
whole drives, the largest of a step and the largest of a node. The smallest p-value counts three times (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from statistics import NormalDist

import numpy as np

REPEATS = 8
"""Drives of a noisy device under each condition: with fewer, no p-value could be as small as `ALPHA`."""

FALSE_ALARMS = 0.01
"""How often a healthy device may fail anything in a whole run of the suite."""

MOST_COMPARISONS = 20
"""In one run of the suite, of conditions that should give the same states."""

ALPHA = FALSE_ALARMS / MOST_COMPARISONS
"""A difference with a smaller p-value is real (Bonferroni)."""

WORTH_SEEING = 0.1
"""A comparison must be able to see a difference of so many standard deviations of the states."""

ROUNDING = 1e-3
"""Products of other sizes round otherwise: so much, in standard deviations, is the same across batch sizes."""

# Powers of directions that scatter alike are found up to so much larger than their median.
_EQUAL = 1.5

# Quantile of chance that an effect must be seen in spite of.
_UNLUCKY = 0.05

# Steps or nodes whose distances are held in memory together.
_AT_ONCE = 256


@dataclass(frozen=True)
class Comparison:
    """What was found. Differences are root mean squares over steps and nodes, in standard deviations of the states.

    `p` is None, and `smallest` 0, where single drives were compared exactly. `effect` is the difference in units of the
    repeat error, infinite where nothing scatters. `smallest` is the smallest difference that would have been seen if it
    was spread over all steps and nodes; one of a single step or node is seen earlier. The difference is `largest` at
    `step` and `node`.
    """

    differs: bool
    difference: float
    smallest: float
    p: float | None = None
    effect: float | None = None
    largest: float = 0.0
    step: int = 0
    node: int = 0

    @property
    def conclusive(self) -> bool:
        """Whether a difference that matters would have been seen."""
        return self.differs or self.smallest <= WORTH_SEEING

    def __str__(self) -> str:
        if self.p is None and not self.difference:
            return "equal in every bit"
        where = f", most at step {self.step}, node {self.node} ({self.largest:.2g})"
        if self.p is None:
            return f"differs by {self.difference:.2g} standard deviations{where}"
        where = where if self.differs else ""
        return (
            f"p = {self.p:.2g}, {self.effect:.2g} repeat errors or {self.difference:.2g} standard deviations{where}; "
            f"{self.smallest:.2g} would have been seen"
        )


def compare(reference: np.ndarray, other: np.ndarray, *, spread: float, tolerance: float = 0.0) -> Comparison:
    """Repeats (repeats, time, nodes) under two conditions; single ones are compared number by number.

    What differs by `tolerance` standard deviations at most, and nowhere by more than ten times that, is rounding.
    """
    if len(reference) == 1:
        return compare_exactly(reference[0], other[0], spread=spread, tolerance=tolerance)
    found = compare_repeats(reference, other, spread=spread)
    if tolerance and found.difference <= tolerance and found.largest <= 10 * tolerance:
        return replace(found, differs=False)
    return found


def compare_exactly(reference: np.ndarray, other: np.ndarray, *, spread: float, tolerance: float = 0.0) -> Comparison:
    """Single drives (time, nodes) of states with the standard deviation `spread`.

    They differ where the RMS difference exceeds `tolerance` standard deviations, or the largest one a hundred times
    that; with 0, every bit counts.
    """
    moved = np.abs(other.astype(np.float64) - reference)
    difference = float(np.sqrt(np.mean(moved**2))) / spread
    step, node = map(int, np.unravel_index(moved.argmax(), moved.shape))
    largest = float(moved[step, node]) / spread
    differs = difference > tolerance or largest > 100 * tolerance
    return Comparison(differs, difference, tolerance, largest=largest, step=step, node=node)


def compare_repeats(reference: np.ndarray, other: np.ndarray, *, spread: float, alpha: float = ALPHA) -> Comparison:
    """Repeats (repeats, time, nodes) of states with the standard deviation `spread`, as many of each.

    They are taken in turn, so that slow drift falls on both alike.
    """
    repeats, steps, nodes = reference.shape
    drives = np.concatenate([reference, other]).reshape(2 * repeats, steps, nodes) / spread
    drives -= drives.mean(axis=0)
    # The mean of equal numbers is not exactly theirs.
    drives[np.abs(drives) < 1e-12] = 0.0
    # By node, and whatever the groups are: a node that scatters widely must not hide the others.
    scatter = np.maximum(np.sqrt(np.mean(drives**2, axis=(0, 1))), 1e-9)
    scaled = drives / scatter
    rows = scaled.reshape(2 * repeats, -1)
    size = rows.shape[1]
    distances = _distances(rows @ rows.T)
    of_a_step, of_a_node = (_largest(scaled.transpose(axes)) for axes in ((1, 0, 2), (2, 0, 1)))
    # The share of the splits that differ at least as much as the measured one.
    p = min(float(np.mean(found >= found[0] * (1 - 1e-9))) for found in (distances, of_a_step, of_a_node))
    p = min(1.0, 3 * p)
    centred = rows - np.repeat([rows[:repeats].mean(axis=0), rows[repeats:].mean(axis=0)], repeats, axis=0)
    noise = float(np.sum(centred**2)) / (size * (2 * repeats - 2))
    squared = max(0.0, float(distances[0]) / size - 2 * noise / repeats)
    scale = float(np.sqrt(np.mean(scatter**2)))
    moved = np.abs(drives[:repeats].mean(axis=0) - drives[repeats:].mean(axis=0))
    step, node = np.unravel_index(moved.argmax(), moved.shape)
    return Comparison(
        differs=p <= alpha,
        difference=float(np.sqrt(squared)) * scale,
        smallest=_smallest(centred) * scale,
        p=p,
        effect=float(np.sqrt(squared / noise)) if noise else (np.inf if squared else 0.0),
        largest=float(moved[step, node]),
        step=int(step),
        node=int(node),
    )


def _smallest(centred: np.ndarray) -> float:
    """The smallest difference, in units of the scatter, that stands out from all splits of noise like this one.

    A difference d adds d^2 to the measured split, and r^2 d^2 to one with r = |1 - 2 k/repeats|, where k drives of each
    group are dealt out to the other. It stands out where that exceeds what chance adds to the other split and takes
    from the measured one: by itself, and by noise that points the same way as d. That is an equal share of the noise,
    by the number of directions in which it scatters; or all that one direction has more than the others, such as a
    gain that wanders, since d may be of its kind.
    """
    drives, size = centred.shape
    products = centred @ centred.T / size
    # Residuals are smaller than the noise that they come from.
    chance = _distances(products)[1:] * drives / (drives - 2)
    mean, variance = float(chance.mean()), float(chance.var())
    if not mean:
        return 0.0
    powers = np.linalg.eigvalsh(products)[2:]
    wandering = max(0.0, float(powers[-1] - _EQUAL * np.median(powers))) / (drives - 2) * 4 / drives
    same_way = NormalDist().inv_cdf(1 - _UNLUCKY) * max(min(1.0, variance / (2 * mean**2)) * mean, wandering) ** 0.5
    splits = _splits(drives // 2)
    gain = 1 - (splits[1:] @ splits[0] * drives / 4) ** 2
    missed = np.maximum(chance - np.quantile(chance, _UNLUCKY), 0.0)
    # The mirror image of the measured split is the same one.
    return float(((same_way + np.sqrt(same_way**2 + gain * missed)) / gain).max())


def _distances(products: np.ndarray) -> np.ndarray:
    """Squared distance of the means of the two groups, for each split, from the inner products of the drives.

    products (..., drives, drives) give (splits, ...).
    """
    repeats = products.shape[-1] // 2
    first, second = np.triu_indices(2 * repeats, 1)
    own = np.trace(products, axis1=-2, axis2=-1) / repeats**2
    return np.maximum(_signs(repeats) @ products[..., first, second].T + own, 0.0)


def _largest(parts: np.ndarray) -> np.ndarray:
    """The largest squared distance of any part, for each split; parts (parts, drives, numbers)."""
    found = np.zeros(1)
    for begin in range(0, len(parts), _AT_ONCE):
        some = parts[begin : begin + _AT_ONCE]
        found = np.maximum(found, _distances(some @ some.transpose(0, 2, 1)).max(axis=1))
    return found


@cache
def _splits(repeats: int) -> np.ndarray:
    """All ways to deal 2 `repeats` drives out to two groups: (ways, drives), plus and minus 1/repeats; ours first."""
    chosen = [(0, *others) for others in combinations(range(1, 2 * repeats), repeats - 1)]
    splits = np.full((len(chosen), 2 * repeats), -1 / repeats)
    for row, members in enumerate(chosen):
        splits[row, members] = 1 / repeats
    return splits


@cache
def _signs(repeats: int) -> np.ndarray:
    """What the product of each two drives adds to the squared distance, for each split: (ways, pairs of drives)."""
    splits = _splits(repeats)
    first, second = np.triu_indices(2 * repeats, 1)
    return 2 * splits[:, first] * splits[:, second]


def spread_of(states: np.ndarray) -> float:
    """Standard deviation of states (repeats, time, nodes) over time, all nodes together; 1 where nothing moves."""
    mean = states.astype(np.float64).mean(axis=0)
    return float(np.sqrt(np.mean((mean - mean.mean(axis=0)) ** 2))) or 1.0
