"""What every measure returns: a value, an interval that says how it was found, and a note."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import all_finite, as_numpy
from reservoir_hw.core.errors import InputRangeError, ShapeError
from reservoir_hw.core.statistics import t_quantile

CONFIDENCE = 0.95
"""Probability with which an interval holds the true value."""


@dataclass(frozen=True)
class Interval:
    """Where the true value lies with the probability `CONFIDENCE`; `method` says how that was found.

    An end is infinite where nothing bounds it.
    """

    low: float
    high: float
    confidence: float = field(default=CONFIDENCE, init=False)
    method: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """The result of a measure. Each measure adds the arrays that its figure shows."""

    value: float
    interval: Interval
    note: str = ""


# ---- Quantiles and standard errors, with numpy alone.


BATCHES = 20
"""Pieces into which a series is cut for its batch means."""

SPAN = 4
"""Correlation times in a piece that is nearly independent of the next."""

FEWEST = 4
"""Pieces that an interval needs."""


def require_steps(steps: int) -> None:
    """Raise `ShapeError` where there are fewer than two steps for each of `BATCHES` pieces."""
    if steps < 2 * BATCHES:
        raise ShapeError(f"{steps} steps are too few for an interval: at least {2 * BATCHES} are needed")


def chi2_quantile(probability: float, degrees: float) -> float:
    """Quantile of the chi-square distribution (Wilson & Hilferty 1931).

    In the upper tail it errs to the large side: by 7 % for one degree of freedom, 2 % for five, nothing for fifty.
    """
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + NormalDist().inv_cdf(probability) * spread**0.5) ** 3


def correlation_times(series: np.ndarray) -> np.ndarray:
    """Integrated autocorrelation time of each column of (time, columns), in steps: 1 where steps are independent.

    The mean of n steps of a series with the time τ is as certain as that of n / τ independent ones. Autocorrelations
    are added up in pairs of neighbouring lags as long as the pairs are positive (Geyer 1992), which for a short series
    errs less to the small side than a fixed window does.
    """
    moved = series - series.mean(axis=0)
    spectrum = np.fft.rfft(moved, 2 * len(series), axis=0)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[: len(series) // 2 * 2]
    pairs = products[::2] + products[1::2]
    counted = np.where(np.logical_and.accumulate(pairs > 0, axis=0), pairs, 0.0).sum(axis=0)
    power = products[0]
    return np.maximum(2 * np.divide(counted, power, out=np.ones_like(power), where=power > 0) - 1, 1.0)


def independent_pieces(series: np.ndarray, most: int) -> np.ndarray:
    """Into how many pieces with nearly independent means, up to `most`, each column of (time, columns) can be cut.

    A piece is at least `SPAN` times the correlation time.
    """
    return np.minimum(len(series) / (SPAN * correlation_times(series)), most).astype(int)


@dataclass(frozen=True)
class BatchMeans:
    """Mean of a correlated series, and its standard error from the means of consecutive pieces.

    `batches` is how many of them are independent; with fewer than `FEWEST` the error is too small for an interval.
    """

    mean: float
    error: float
    batches: int

    def interval(self, value: float) -> Interval:
        """Interval for a `value` that has this error."""
        if self.batches < FEWEST:
            return no_interval()
        method = f"{self.batches} batch means over time, Student's t"
        return t_interval(value, self.error, self.batches - 1, method)


def batch_means(series: np.ndarray) -> BatchMeans:
    """Mean of a correlated series (time,) with its error.

    Means of consecutive pieces are nearly independent where a piece is much longer than the correlation time of the
    series (Conway 1963; Law & Kelton 2000, section 9.5.3). There are `BATCHES` of them, and fewer where the measured
    correlation time asks for longer ones. Raises `ShapeError` where there are fewer than two steps for each of
    `BATCHES` pieces.
    """
    require_steps(len(series))
    batches = int(independent_pieces(series[:, None], BATCHES)[0])
    count = max(batches, FEWEST)
    length = len(series) // count
    means = series[len(series) - length * count :].reshape(count, length).mean(axis=1)
    return BatchMeans(float(series.mean()), float(means.std(ddof=1) / count**0.5), batches)


def t_interval(value: float, error: float, degrees: int, method: str) -> Interval:
    """`value` plus and minus its standard error times Student's quantile."""
    half = t_quantile((1 + CONFIDENCE) / 2, degrees) * error
    return Interval(value - half, value + half, method)


def no_interval() -> Interval:
    """Where too few pieces of time are independent."""
    return Interval(-np.inf, np.inf, f"none: fewer than {FEWEST} independent pieces of time")


def remark(interval: Interval) -> str:
    """A sentence for a result without an interval, else empty."""
    if np.isfinite([interval.low, interval.high]).any():
        return ""
    return f"No interval: slow changes leave fewer than {FEWEST} stretches of time that are independent. Record longer."


def bounded(interval: Interval, least: float, most: float) -> Interval:
    """The part of an interval that is possible."""
    return replace(interval, low=min(max(interval.low, least), most), high=max(min(interval.high, most), least))


# ---- Arrays as the measures take them: checked for shape and for values that are no numbers.


# Standard deviations below this, relative to the mean, are rounding.
_ROUNDING = 64 * np.finfo(np.float64).eps


def checked(values: Any, axes: tuple[str, ...], name: str = "states") -> np.ndarray:
    """`values` in float64 with these axes.

    Raises `ShapeError` for other numbers of axes and for empty ones, `InputRangeError` for NaN and infinity.
    """
    array = np.asarray(as_numpy(values))
    wanted = f"({', '.join(axes)})"
    if array.ndim != len(axes):
        raise ShapeError(f"{name} must be {wanted}, not an array of shape {array.shape}")
    if 0 in array.shape:
        raise ShapeError(f"{name} {wanted} are empty: {array.shape}")
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{name} must hold real numbers, not {array.dtype}")
    if not all_finite(array):
        raise InputRangeError(
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} values of the {name} are not finite; leave out "
            "the channels or steps that were not recorded"
        )
    return array.astype(np.float64)


def precision(dtype: Any) -> np.floating:
    """Relative precision of numbers as they were recorded, in their own dtype; that of float64 for whole numbers."""
    dtype = np.dtype(dtype)
    return np.finfo(dtype if dtype.kind == "f" else np.float64).eps


def deviations(states: np.ndarray, axis: int) -> np.ndarray:
    """`states` about their mean over time; exactly 0 for a node that only rounding moves."""
    mean = states.mean(axis=axis, keepdims=True)
    moved = states - mean
    still = np.ptp(states, axis=axis, keepdims=True) <= _ROUNDING * np.abs(mean)
    return np.where(still, 0.0, moved)


def moving_nodes(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Which nodes move by more than rounding (nodes,), from their means and standard deviations.

    Raises `InputRangeError` if none does.
    """
    moving = spread > _ROUNDING * np.abs(mean)
    refuse_still(moving)
    return moving


def refuse_still(moving: np.ndarray) -> None:
    """Raise `InputRangeError` if no node moves; `moving` (nodes,) holds a truth value for each."""
    if not moving.any():
        raise InputRangeError(
            f"all {moving.size} nodes are constant: the device does not respond. Check the amplitude of the drive and "
            "the read-out"
        )
