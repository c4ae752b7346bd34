"""The yardstick of an error at the edge: how much an output moves, whatever its unit and its offset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

INT8_LIMIT = 0.1
"""Of the root mean square of what int8 changes, in spreads."""
STILL = 8 * float(np.finfo(np.float32).eps)
"""What hardly moves is measured in this part of its largest number."""

Array = npt.NDArray[np.float64]


def spread_of(values: np.ndarray, *, logits: bool = False) -> Array:
    """Standard deviation (outputs,) of outputs (..., outputs), each for itself; never 0.

    Logits count without what all of one step have in common, which changes no probability.
    """
    rows = np.asarray(values, np.float64).reshape(-1, values.shape[-1])
    largest = np.abs(rows).max(axis=0, initial=0.0)
    if logits:
        rows = rows - rows.mean(axis=1, keepdims=True)
    spread = rows.std(axis=0) if len(rows) else np.zeros(rows.shape[1])
    return np.maximum(spread, np.maximum(STILL * largest, np.finfo(np.float32).tiny))


def limit_of(dtype: str, precision: str = "fp32", target: str = "segments") -> float:
    """How far a graph may be from its model in a value of this dtype, in spreads."""
    if precision == "int8":
        return INT8_LIMIT
    # The states of a simulated network inside carry errors on.
    return 1e-3 if target == "whole" else {"float32": 1e-4, "float64": 1e-5}[dtype]


class Deviation(NamedTuple):
    """The error of the output (`channel` of `value`) that is worst in units of what is allowed; in its spreads."""

    value: str
    channel: int
    error: float
    limit: float
    spread: float

    @property
    def share(self) -> float:
        """Of what is allowed; infinite for what is not finite."""
        return self.error / self.limit if np.isfinite(self.error) else np.inf


def deviation_of(
    name: str, found: np.ndarray, expected: np.ndarray, spread: np.ndarray, limit: float, *, median: bool = False
) -> Deviation:
    """The worst channel of a value (..., channels): found beside expected, both in one precision.

    A number is rounded to that precision once on each side, which is allowed beside `limit` spreads. Of a channel the
    largest error counts, or with `median` that of half of its numbers.
    """
    width = expected.shape[-1] if expected.ndim else 1
    one, other = (np.asarray(side, np.float64).reshape(-1, width) for side in (found, expected))
    spread = np.broadcast_to(spread, width)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(one - other)
        errors = (np.median(apart, axis=0) if median else apart.max(axis=0, initial=0.0)) / spread
    rounding = np.finfo(expected.dtype).eps * np.abs(other).max(axis=0, initial=0.0) / spread
    limits = limit + rounding
    worst = int(np.argmax(np.nan_to_num(errors / limits, nan=np.inf)))
    error = float(errors[worst])
    return Deviation(
        name, worst, error if np.isfinite(error) else float("inf"), float(limits[worst]), float(spread[worst])
    )
