"""Climate of a closed loop: whether it goes on like the system that it has learned, long after it has left it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import InputRangeError, ShapeError
from reservoir_hw.core.statistics import jackknife_error
from reservoir_hw.measures._measured import Measured, checked, t_interval

FEWEST_SERIES = 4
"""Series that a climate needs of the loop, and of the true system."""

# Frequencies that together have this share of the power are compared.
_POWER = 0.999


@dataclass(frozen=True, eq=False, kw_only=True)
class Climate(Measured):
    """`value` is the distance between the power spectra of loop and true system, in dB.

    `power` and `true_power` (channels, frequencies) belong to `frequencies` (frequencies,), in cycles per step;
    `compared` (channels, frequencies) says where. `floor` is the distance between two halves of the true series.
    `maxima` and `true_maxima` (pairs, 2) are successive maxima of the last channel: the return map. `ended` series of
    the loop have diverged and are in nothing.
    """

    frequencies: np.ndarray
    power: np.ndarray
    true_power: np.ndarray
    compared: np.ndarray
    floor: float
    maxima: np.ndarray
    true_maxima: np.ndarray
    ended: int


def climate(loop: Any, true: Any) -> Climate:
    """How a closed loop differs from the true system in its statistics (Pathak et al. 2017; Lu, Hunt & Ott 2018).

    `loop` and `true` are (series, time, channels), of the same channels and steps; NaN ends a series of the loop that
    has diverged. The power spectra are means of periodograms over the series, with a Hann window (Welch 1967). Their
    distance is the root mean square over frequencies of the ratio in dB, over those that have 99.9 % of the true power.

    The return map has each maximum of the last channel over the one before, which for z of the Lorenz system is a
    sharp curve (Lorenz 1963).

    The interval is that of the jackknife over the series of the loop. Raises `ShapeError` for fewer than four series
    or other shapes, `InputRangeError` where fewer than four series have not diverged.
    """
    y, u = np.asarray(loop, dtype=np.float64), checked(true, ("series", "time", "channels"), "true series")
    if y.ndim != 3 or y.shape[1:] != u.shape[1:]:
        raise ShapeError(f"loop {y.shape} and true series {u.shape} must be (series, time, channels) and fit together")
    if min(len(y), len(u)) < FEWEST_SERIES:
        raise ShapeError(f"a climate needs at least {FEWEST_SERIES} series of the loop and of the true system")
    whole = np.asarray(np.isfinite(y).all(axis=(1, 2)))
    ended = int(np.count_nonzero(~whole))
    if len(y) - ended < FEWEST_SERIES:
        raise InputRangeError(
            f"{ended} of {len(y)} forecasts have diverged: too few are left for a climate. Train on more steps, or "
            "with a larger alpha"
        )
    y = y[whole]
    of_loop, of_true = _periodograms(y), _periodograms(u)
    mean_of_true = of_true.mean(axis=0)
    compared = _strong(mean_of_true)
    value = _distance(of_loop.mean(axis=0), mean_of_true, compared)
    of_others = (np.delete(of_loop, one, axis=0).mean(axis=0) for one in range(len(of_loop)))
    without = np.array([_distance(power, mean_of_true, compared) for power in of_others])
    method = f"jackknife over {len(y)} forecasts, Student's t"
    interval = t_interval(value, jackknife_error(without), len(y) - 1, method)
    floor = _distance(of_true[::2].mean(axis=0), of_true[1::2].mean(axis=0), compared)
    notes = [
        f"Two halves of the true series differ by {floor:.3g} dB.",
        f"{ended} of {len(whole)} forecasts have diverged and are left out." if ended else "",
    ]
    return Climate(
        value=value,
        interval=interval,
        note=" ".join(filter(None, notes)),
        frequencies=np.fft.rfftfreq(u.shape[1])[1:],
        power=of_loop.mean(axis=0),
        true_power=mean_of_true,
        compared=compared,
        floor=floor,
        maxima=_successive_maxima(y[:, :, -1]),
        true_maxima=_successive_maxima(u[:, :, -1]),
        ended=ended,
    )


def _periodograms(series: np.ndarray) -> np.ndarray:
    """(series, time, channels) -> (series, channels, frequencies), without the mean."""
    moved = series - series.mean(axis=(0, 1))
    window = np.hanning(series.shape[1])[:, None]
    spectrum = np.fft.rfft(moved * window, axis=1)[:, 1:]
    return np.moveaxis(np.abs(spectrum) ** 2, 1, 2) / (window**2).sum()


def _strong(power: np.ndarray) -> np.ndarray:
    """The strongest frequencies of each channel (channels, frequencies) that have `_POWER` together."""
    order = np.argsort(-power, axis=1)
    share = np.cumsum(np.take_along_axis(power, order, axis=1), axis=1) / power.sum(axis=1, keepdims=True)
    strong = np.zeros(power.shape, dtype=bool)
    # The one that reaches the share belongs to it.
    np.put_along_axis(strong, order, np.roll(share < _POWER, 1, axis=1) | (np.arange(power.shape[1]) == 0), axis=1)
    return strong


def _distance(power: np.ndarray, true_power: np.ndarray, compared: np.ndarray) -> float:
    tiny = np.finfo(np.float64).tiny
    ratio = 10 * np.log10(np.maximum(power, tiny)[compared] / np.maximum(true_power, tiny)[compared])
    return float(np.sqrt(np.mean(ratio**2)))


def _successive_maxima(series: np.ndarray) -> np.ndarray:
    """Pairs (maximum, next maximum) of all series (series, time), each refined by a parabola."""
    pairs = []
    for one in series:
        before, at, after = one[:-2], one[1:-1], one[2:]
        top = np.flatnonzero((at > before) & (at >= after))
        curvature = before[top] - 2 * at[top] + after[top]
        height = at[top] - (after[top] - before[top]) ** 2 / (8 * curvature)
        pairs.append(np.stack([height[:-1], height[1:]], axis=1))
    return np.concatenate(pairs)
