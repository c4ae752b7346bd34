"""Monomials of some variables, each order computed from the one below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Numbers in one block of monomials, so that an order is still in the cache when the next one is computed from it.
_BLOCK = 1 << 18


class Monomials:
    """Products of variables: for each order d, all Σ of d exponents, of the first `variables[d - 1]` variables.

    Parameters
    ----------
    variables
        How many variables each order takes, from order 1 on; never more than the order below.
    orders
        Which orders are wanted, ascending. Those between are computed and left out.
    constant
        Whether the order 0, which is 1, is the first of all.

    Within an order the monomials are sorted by their largest variable, then by the second largest, and so on: x0 x0,
    x0 x1, x1 x1, x0 x2, ... So those of order d in which x_j is the largest variable are x_j times the first monomials
    of order d - 1, which go up to x_j.
    """

    def __init__(self, variables: Sequence[int], orders: Sequence[int], *, constant: bool = False) -> None:
        self._variables, self._orders, self._constant = tuple(variables), frozenset(orders), constant

    @property
    def count(self) -> int:
        """How many there are."""
        return count(self._variables, sorted(self._orders), constant=self._constant)

    def exponents(self) -> NDArray[np.int64]:
        """The power of each variable in each monomial, (monomials, variables)."""
        one = np.eye(self._variables[0], dtype=np.int64)
        before, found = np.zeros((1, len(one)), np.int64), []
        found += [before] * self._constant
        for order, variables in enumerate(self._variables, 1):
            before = np.concatenate([before[: _up_to(j, order - 1)] + one[j] for j in range(variables)])
            found += [before] * (order in self._orders)
        return np.concatenate(found)

    def fill(self, variables: Array, out: Array) -> None:
        """From values (variables, rows) to monomials `out` (rows, monomials)."""
        rows = variables.shape[1]
        size = max(1, min(rows, _BLOCK // out.shape[1]))
        # Row after row of `out` would make short inner loops; so each monomial is computed for many rows at once.
        block = np.empty((out.shape[1], size))
        skipped = [np.empty((_up_to(n - 1, d), size)) for d, n in enumerate(self._variables, 1) if not self._wants(d)]
        block[: self._constant] = 1.0
        for first in range(0, rows, size):
            x = variables[:, first : first + size]
            own, others = block[:, : x.shape[1]], iter(skipped)
            before, start = np.ones((1, x.shape[1])), int(self._constant)
            for order, number in enumerate(self._variables, 1):
                stop = start + _up_to(number - 1, order)
                here = own[start:stop] if self._wants(order) else next(others)[:, : x.shape[1]]
                start = stop if self._wants(order) else start
                at = 0
                for j in range(number):
                    below = _up_to(j, order - 1)
                    np.multiply(before[:below], x[j], out=here[at : at + below])
                    at += below
                before = here
            out[first : first + size] = own.T

    def _wants(self, order: int) -> bool:
        return order in self._orders


def count(variables: Sequence[int], orders: Sequence[int], *, constant: bool = False) -> int:
    """How many monomials `Monomials` of these arguments has: Σ C(n + d - 1, d) over the orders d, of n variables."""
    return int(constant) + sum(math.comb(variables[order - 1] + order - 1, order) for order in orders)


def _up_to(j: int, order: int) -> int:
    """How many monomials of an order have no variable beyond x_j."""
    return math.comb(j + order, order)
