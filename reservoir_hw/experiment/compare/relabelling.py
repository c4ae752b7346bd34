"""Whether two groups of repeats differ by more than repeats do: a permutation test.

If both devices are the same, nothing tells whose repeat is whose. A difference is then as likely to be the largest for
the true labels as for any other way to deal the repeats out. No distribution is assumed, neither over time nor over
nodes. What must hold is that the devices do not drift, and that their repeats scatter about equally. If those of one
device alone scatter, there are fewer ways that truly differ, and p-values come out too small: with 10 repeats, 20 nodes
and equal mean responses, up to 15 of 1000 comparisons were found at a level of 2 in 1000.
"""

from __future__ import annotations

import numpy as np

from reservoir_hw.core.seeds import generator

LEVEL = 0.002
"""A p-value that is not above this counts as a difference."""

FEWEST = 8
"""Repeats of each device that a p-value needs."""

_WAYS = 1000
# Below this, statistics between 0 and 1 differ by rounding alone.
_ROUNDING = 1e-9


def can_tell(first: int, second: int) -> bool:
    """Whether there are repeats enough of both."""
    return min(first, second) >= FEWEST


def ways_to_deal(first: int, second: int) -> np.ndarray:
    """The true way to deal `first` + `second` repeats into groups of these sizes, and 999 random ones.

    (ways, repeats), True: in the first group.
    """
    true = np.arange(first + second) < first
    random = generator(0, "ways to deal")
    return np.array([true, *(random.permutation(true) for _ in range(_WAYS - 1))])


def p_values(statistics: np.ndarray) -> np.ndarray:
    """For each item the p-value, adjusted for the number of items: (items,) from statistics (ways, items) in [0, 1].

    The chance that any item that does not differ gets a p-value of at most p is p, however the items depend on each
    other: the step-down procedure of Westfall & Young (1993), algorithm 2.8.
    """
    order = statistics[0].argsort()
    greatest = np.maximum.accumulate(statistics[:, order], axis=1)
    reached = (greatest >= statistics[0, order] - _ROUNDING).mean(axis=0)
    found = np.empty(len(order))
    found[order] = np.maximum.accumulate(reached[::-1])[::-1]
    return found
