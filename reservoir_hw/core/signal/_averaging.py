"""Repeated acquisitions of the same signal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reservoir_hw.core.errors import InputRangeError, ShapeError


class Average(NamedTuple):
    """What repetitions have in common. `standard_deviation` is that of one repetition, None where there is only one."""

    mean: NDArray[np.float64]
    standard_deviation: NDArray[np.float64] | None
    n: int


def average(repetitions: Iterable[ArrayLike]) -> Average:
    """Mean and standard deviation (divided by n - 1) of repetitions, arrays of the same shape (Welford 1962).

    They are taken one at a time, so they may be acquired meanwhile: `average(acquire() for _ in range(16))`.
    Raises `ShapeError` if there are none or their shapes differ, `InputRangeError` for values that are not finite.
    """
    n, mean, squares = 0, np.zeros(()), np.zeros(())
    for repetition in repetitions:
        x = np.asarray(repetition, np.float64)
        if n and x.shape != mean.shape:
            raise ShapeError(f"repetition {n + 1} has the shape {x.shape}, those before it have {mean.shape}")
        if not np.isfinite(x).all():
            raise InputRangeError(f"repetition {n + 1}: {int((~np.isfinite(x)).sum())} values are not finite numbers")
        n += 1
        distance = x - mean
        mean = mean + distance / n
        squares = squares + distance * (x - mean)
    if not n:
        raise ShapeError("there is nothing to average: at least one repetition is needed")
    return Average(mean, np.sqrt(squares / (n - 1)) if n > 1 else None, n)
