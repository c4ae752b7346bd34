"""Lyapunov spectrum and Kaplan–Yorke dimension of a system whose state can be set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.statistics import jackknife_error
from reservoir_hw.core.validation import at_least
from reservoir_hw.measures._arrays import checked, precision
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._statistics import BATCHES, batch_means, check_confidence, remark, t_interval

Step: TypeAlias = Callable[[int, np.ndarray], np.ndarray]

# A state smaller than this counts as this large where a small distance from it is chosen.
_SMALL = 1e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class LyapunovSpectrum(Measured):
    """`value` is the largest exponent, per time step, in natural logarithms.

    `exponents` (exponents,), falling, with `exponent_intervals`; `growth` (time, exponents) is what each step did to
    each direction. `dimension` is the Kaplan–Yorke dimension, NaN where more exponents would be needed. `known`
    (known,) are exponents of the system that this one should imitate, empty where there is none.
    """

    exponents: np.ndarray
    exponent_intervals: tuple[Interval, ...]
    dimension: float
    dimension_interval: Interval
    growth: np.ndarray
    known: np.ndarray


def lyapunov_spectrum(
    step: Step,
    states: Any,
    *,
    steps: int,
    exponents: int | None = None,
    settle: int = 100,
    size: float | None = None,
    known: Sequence[float] = (),
    seed: int = 0,
    confidence: float = 0.95,
) -> LyapunovSpectrum:
    """The largest Lyapunov exponents, by QR decompositions (Benettin et al. 1980; Shimada & Nagashima 1979).

    Beside each trajectory run others at small distances in orthogonal directions. After every step these are made
    orthogonal again; the mean logarithm of what the step made of each of them is an exponent. For a driven system
    these are the conditional exponents; for a closed loop those of the autonomous system.

    Parameters
    ----------
    step
        One time step: number of the step, and states (any number, dimension) -> the states after it. The rows are the
        trajectories, then all of them displaced in the first direction, and so on.
    states
        (trials, dimension), where the trajectories begin.
    steps
        Of each trajectory; the first `settle` turn the directions and do not count.
    exponents
        How many of the largest ones; by default all.
    size
        The distance, relative to the size of the state; by default the square root of the precision of `states`. What
        a step shrinks by more than this factor cannot be told.

    The intervals are those of batch means over time of the mean over the trials; that of the dimension is of the
    jackknife over as many pieces of time. Raises `InputRangeError` where a trajectory is not finite, and
    `ConfigurationError`.
    """
    check_confidence(confidence)
    given = np.asarray(states)
    x = checked(given, ("trials", "dimension"))
    trials, dimension = x.shape
    count = dimension if exponents is None else exponents
    at_least(exponents=(count, 1), settle=(settle, 0))
    if count > dimension:
        raise ConfigurationError(f"exponents is {count}, but the state has {dimension} numbers")
    if steps - settle < 2 * BATCHES:
        raise ConfigurationError(f"{steps} steps are too few: {settle} to settle and {2 * BATCHES} for an interval")
    relative = float(precision(given.dtype) ** 0.5) if size is None else size
    if not relative > 0:
        raise ConfigurationError(f"size is {size}; it must be more than 0")
    random = generator(seed, "measures/lyapunov spectrum").standard_normal((trials, dimension, count))
    directions = np.linalg.qr(random)[0]
    growth = np.empty((steps, count))
    for t in range(steps):
        distance = relative * np.maximum(np.linalg.norm(x, axis=1), _SMALL)
        beside = x + distance[:, None] * np.moveaxis(directions, 2, 0)
        after = step(t, np.concatenate([x[None], beside]).reshape(-1, dimension).astype(given.dtype))
        after = after.astype(np.float64).reshape(count + 1, trials, dimension)
        if not np.isfinite(after).all():
            raise InputRangeError(f"a trajectory is not finite after {t + 1} steps: the system diverges")
        x = after[0]
        columns = np.moveaxis(after[1:] - x, 0, 2) / distance[:, None, None]
        directions, upper = np.linalg.qr(columns)
        lengths = np.abs(np.diagonal(upper, axis1=1, axis2=2))
        # What has vanished in rounding is known to have shrunk at least so far.
        growth[t] = np.log(np.maximum(lengths, np.finfo(np.float64).tiny)).mean(axis=0)
    counted = growth[settle:]
    over_time = [batch_means(series) for series in counted.T]
    found = np.array([one.mean for one in over_time])
    intervals = tuple(one.interval(one.mean, confidence) for one in over_time)
    order = np.argsort(-found, kind="stable")
    value = kaplan_yorke(found[order])
    pieces = np.array_split(counted, BATCHES)
    without = np.array(
        [
            kaplan_yorke(np.sort(np.concatenate(pieces[:left] + pieces[left + 1 :]).mean(axis=0))[::-1])
            for left in range(BATCHES)
        ]
    )
    error = jackknife_error(without)
    method = f"jackknife over {BATCHES} pieces of time, Student's t"
    first = intervals[order[0]]
    dimension_note = "" if math.isnan(value) else f"Kaplan–Yorke dimension {value:.4g}."
    if math.isnan(value):
        dimension_note = f"The dimension needs more than {count} exponents."
    return LyapunovSpectrum(
        value=float(found[order[0]]),
        interval=first,
        note=" ".join(filter(None, [dimension_note, f"From {trials} trials of {steps} steps.", remark(first)])),
        exponents=found[order],
        exponent_intervals=tuple(intervals[place] for place in order),
        dimension=value,
        dimension_interval=t_interval(value, error, BATCHES - 1, confidence, method),
        growth=growth[:, order],
        known=np.asarray(known, dtype=np.float64),
    )


def kaplan_yorke(exponents: np.ndarray) -> float:
    """Kaplan–Yorke dimension of falling exponents: j + Σ_{i≤j} λ_i / |λ_{j+1}|, with the largest j whose sum is >= 0.

    (Kaplan & Yorke 1979.) NaN where the sum of all that are known is not negative.
    """
    sums = np.cumsum(exponents)
    below = np.flatnonzero(sums < 0)
    if not len(below):
        return math.nan
    j = int(below[0])
    return j + (float(sums[j - 1]) / abs(float(exponents[j])) if j else 0.0)
