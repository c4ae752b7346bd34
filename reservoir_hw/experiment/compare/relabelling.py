"""Whether two groups of repeats differ by more than repeats do: a permutation test.

If both devices are the same, nothing tells whose repeat is whose. A difference is then as likely to be the largest for
the true labels as for any other way to deal the repeats out. No distribution is assumed, neither over time nor over
nodes; what must hold is that the devices do not drift.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from reservoir_hw.core.seeds import generator

LEVEL = 0.0025
"""A p-value that is not above this counts as a difference."""

_MOST = 1000
# Below this, statistics between 0 and 1 differ by rounding alone.
_ROUNDING = 1e-9


def ways_to_deal(first: int, second: int) -> np.ndarray:
    """Ways to deal `first` + `second` repeats into groups of these sizes, (ways, repeats), True: in the first group.

    The true one is the first. Of two groups of equal size, those ways that only exchange the groups are left out. Of
    more than 1000 ways 1000 are drawn.
    """
    total, equal = first + second, first == second
    true = np.arange(total) < first
    if math.comb(total, first) // (1 + equal) <= _MOST:
        chosen = (set(way) for way in itertools.combinations(range(total), first))
        return np.array([[i in way for i in range(total)] for way in chosen if 0 in way or not equal])
    random = generator(0, "ways to deal")
    return np.array([true, *(random.permutation(true) for _ in range(_MOST - 1))])


def can_tell(ways: np.ndarray) -> bool:
    """Whether there are repeats enough for a p-value as small as `LEVEL`."""
    return 1 / len(ways) <= LEVEL


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
