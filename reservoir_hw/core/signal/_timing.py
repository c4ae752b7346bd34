"""A signal in time: node values as a waveform, what a signal path does to them, and where in a record a burst lies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import DeviceFault, InputRangeError, ShapeError
from reservoir_hw.core.signal._mask import maximum_length_sequence

# Part of a sample period by which rounding may place a time before the sample that begins there.
_ROUNDING = 1e-6


class SampleAndHold(Config):
    """Each value held for `points_per_node` samples of a generator: theta is a whole number of sample periods."""

    points_per_node: PositiveInt
    sample_rate_hz: PositiveFloat = Field(description="of the generator, as it was read back")

    @property
    def theta_s(self) -> float:
        """Duration of one virtual node."""
        return self.points_per_node / self.sample_rate_hz

    def apply(self, values: Any) -> NDArray[Any]:
        """Values (..., steps, nodes) as samples (..., steps · nodes · points_per_node) of the same dtype."""
        values = np.asarray(values)
        if values.ndim < 2:
            raise ShapeError(f"SampleAndHold takes values (..., steps, nodes), their shape is {values.shape}")
        return np.repeat(values.reshape(*values.shape[:-2], -1), self.points_per_node, axis=-1)


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


# ---- The values of a signal: between numbers and volts, and what a converter makes of them.


class Scaling(Config):
    """y = gain x + offset."""

    gain: float = Field(default=1.0, description="units of y for one unit of x; not 0")
    offset: float = Field(default=0.0, description="y at x = 0")

    @field_validator("gain")
    @classmethod
    def _invertible(cls, gain: float) -> float:
        if gain == 0:
            raise ValueError("a gain of 0 would make every signal the same")
        return gain

    def apply(self, x: Any) -> Any:
        """y for x of any shape."""
        return self.gain * x + self.offset


class Quantiser(Config):
    """A converter (ADC or DAC) of so many bits.

    Its 2^bits levels are lowest + k lsb, lsb = (highest - lowest) / 2^bits, and each value goes to the nearest one.
    As in two's complement the lowest end of the range is a level and the highest is not, and 0 is a level of a
    symmetric range (a mid-tread quantiser). Values between the last level and the end of the range take that level.
    """

    bits: Annotated[int, Field(ge=1, le=24)]
    range: tuple[float, float] = Field(default=(-1.0, 1.0), description="[lowest, highest]")
    out_of_range: Literal["error", "clip"] = Field(
        default="clip", description="beyond the range: take its end and count, as a converter does, or refuse"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.range[0] < self.range[1]:
            raise ValueError(f"range {list(self.range)} must be [lowest, highest]")
        return self

    @property
    def lsb(self) -> float:
        """Distance of the levels."""
        return (self.range[1] - self.range[0]) / 2**self.bits

    def apply(self, values: Any) -> tuple[Any, int]:
        """The nearest levels, of the shape and dtype given, and how many values were beyond the range.

        Takes numpy arrays and torch tensors of floating point numbers. NaN stays NaN.
        Raises `InputRangeError` for values beyond the range if `out_of_range` is "error".
        """
        low, high = self.range
        outside = (values < low) | (values > high)
        count = int(outside.sum())
        if count and self.out_of_range == "error":
            where = tuple(int(place) for place in np.argwhere(arrays.as_numpy(outside))[0])
            at = f" at {where}" if where else ""
            raise InputRangeError(
                f"the value{at} is {float(values[where]):g}, beyond the range [{low:g}, {high:g}] of a "
                f"converter ({count} values are): scale the signal, widen the range, or set out_of_range: clip"
            )
        # In float64: float32 cannot tell which of two levels of many bits is nearer.
        exact = values.double() if arrays.is_tensor(values) else values.astype(np.float64)
        level = (exact - low) / self.lsb + 0.5
        level = level.floor() if arrays.is_tensor(level) else np.floor(level)
        level = level.clip(0, 2**self.bits - 1) * self.lsb + low
        return level.to(values.dtype) if arrays.is_tensor(level) else level.astype(values.dtype), count


# ---- Where in a digitizer's record a burst lies, told by a marker at its beginning and again at its end.


Array = NDArray[np.float64]

CHIPS = 63
# Places that are tried, in samples: around the nearest sample, and then around the best of them.
_NEAR = np.arange(-8, 9) / 8
_FINE = np.arange(-8, 9) / 64
# How much farther than clocks may differ the second marker is looked for, to say by how much they do.
_FARTHER = 10


def marker(points: int) -> Array:
    """A maximum-length sequence of 63 chips, 0 and 1, each held for `points` samples: (63 points,).

    It begins with five chips of 1 and ends with one: at rest at 0 its first and its last edge are seen, and a marker
    that is followed by another one is not taken for a marker that is followed by rest.
    """
    chips = (maximum_length_sequence(CHIPS, 0.0) + 1) / 2
    ones = np.flatnonzero(np.all([np.roll(chips, -k) == 1 for k in range(6)], axis=0))[0]
    return np.repeat(np.roll(chips, -int(ones) - 1), points)


@dataclass(frozen=True)
class Template:
    """What an input shows of a marker and of some rest after it.

    `volts` (n,) begin with the marker; each is held for its period. Gain and offset do not matter.
    """

    volts: Array
    sample_rate_hz: float

    def at(self, times: Any) -> Array:
        """Volts at times (...) after the begin of the marker."""
        index = np.floor(times * self.sample_rate_hz).astype(np.int64)
        return self.volts[np.clip(index, 0, len(self.volts) - 1)]

    def mean(self, times: Any, width_s: float) -> Array:
        """Mean volts over `width_s` around times (...)."""
        integral = np.concatenate([[0.0], np.cumsum(self.volts)])
        edges = np.arange(len(integral)) / self.sample_rate_hz
        first, last = (np.interp(times + side * width_s / 2, edges, integral) for side in (-1, 1))
        return (last - first) / (width_s * self.sample_rate_hz)


@dataclass(frozen=True)
class Alignment:
    """Where a burst lies in a record.

    `start_s` is the begin of the first marker after the record's first sample, on the digitizer's clock;
    `clock_ratio` the seconds of that clock in a second of the generator's; `residual` what the template does not
    explain of the markers: rms, as a part of that of the record there, the larger of both. A sample may show anything
    that the template shows within half a sample of it, or of the generator: where edges lie between samples, and how a
    generator goes from one to the next, is no residual.
    """

    start_s: float
    clock_ratio: float
    residual: float


def align(
    record: Array,
    sample_rate_hz: float,
    template: Template,
    distance_s: float,
    *,
    latest_s: float,
    max_residual: float = 0.15,
    max_clock_ppm: float = 200.0,
) -> Alignment:
    """Find the two markers in a record (time,), whose sample k was taken at k / `sample_rate_hz`.

    The first marker begins between 0 and `latest_s`, the second one `distance_s` later on the generator's clock.
    Raises `DeviceFault` if one of them is not found, or if the clocks differ by more than `max_clock_ppm`.
    """
    search = _Search(np.asarray(record, np.float64), sample_rate_hz, template)
    first = search.within(0.0, latest_s)
    if first.residual > max_residual:
        raise DeviceFault(
            f"the first marker is not in the record: {first.described(max_residual)}; is the monitor connected, its "
            "range right, and the output on?"
        )
    expected_s, tolerance_s = first.start_s + distance_s, max_clock_ppm * 1e-6 * distance_s + 2 / sample_rate_hz
    second = search.within(expected_s - tolerance_s, expected_s + tolerance_s)
    if second.residual > max_residual:
        farther_s = _FARTHER * tolerance_s
        there = search.within(expected_s - farther_s, expected_s + farther_s)
        if there.residual <= max_residual:
            ppm = 1e6 * ((there.start_s - first.start_s) / distance_s - 1)
            raise DeviceFault(
                f"the clocks of generator and digitizer differ by {ppm:.0f} ppm, and {max_clock_ppm:g} are expected at "
                "most: connect a reference clock"
            )
        raise DeviceFault(
            f"the second marker is not in the record: {second.described(max_residual)}; the burst was cut, or the "
            f"clocks differ by more than {_FARTHER * max_clock_ppm:g} ppm"
        )
    ratio = (second.start_s - first.start_s) / distance_s
    return Alignment(first.start_s, ratio, max(first.residual, second.residual))


@dataclass(frozen=True)
class _Place:
    start_s: float
    residual: float

    def described(self, max_residual: float) -> str:
        return f"where it fits best it leaves a residual of {self.residual:.2f}, and {max_residual:g} is allowed"


class _Search:
    """Looks for the template in a record by normalised correlation, which knows neither gain nor offset."""

    def __init__(self, record: Array, rate_hz: float, template: Template) -> None:
        self._record, self._rate_hz, self._template = record, rate_hz, template
        # Less at each end than it has: all places within a sample are compared on the same samples.
        self._samples = int(len(template.volts) / template.sample_rate_hz * rate_hz) - 4

    def within(self, low_s: float, high_s: float) -> _Place:
        """The place between two times in which it fits best."""
        low = max(0, int(np.floor(low_s * self._rate_hz)))
        high = min(int(np.ceil(high_s * self._rate_hz)), len(self._record) - self._samples - 4)
        if high < low:
            raise DeviceFault(
                f"the record of {len(self._record)} samples ends before the marker that is due in it: the digitizer "
                "took too few"
            )
        part = self._record[low + 2 : high + 2 + self._samples]
        coarse = low + int(np.argmax(_correlation(part, self._means(np.zeros(1))[0])))
        window = self._record[coarse + 2 : coarse + 2 + self._samples]
        window = window - window.mean()
        best = 0.0
        for shifts in (_NEAR, _FINE):
            means = self._means(best + shifts)
            means -= means.mean(axis=1, keepdims=True)
            fits = means @ window / np.sqrt((means**2).sum(axis=1))
            best += shifts[np.argmax(fits)]
        return _Place((coarse + best) / self._rate_hz, self._residual(window, best))

    def _times(self, shifts: Any) -> Array:
        """When samples 2, 3, ... (last axis) are taken, after the begin of a marker `shifts` samples after sample 0."""
        return (np.arange(self._samples) + 2.0 - shifts) / self._rate_hz

    def _means(self, shifts: Array) -> Array:
        """Over a sample: edges may be as steep as they like, and the digitizer may take a mean itself."""
        return self._template.mean(self._times(shifts[:, None]), 1 / self._rate_hz)

    def _residual(self, window: Array, shift: float) -> float:
        """What lies outside of what the template shows within half a sample, as a part of a window without its mean.

        The sample is that of the record or of the template, whichever is longer.
        """
        size = np.linalg.norm(window)
        mean = self._means(np.array([shift]))[0]
        centre = mean.mean()
        gain = (mean - centre) @ window / ((mean - centre) ** 2).sum()
        if size == 0 or gain <= 0:
            return 1.0
        half = max(1.0, self._rate_hz / self._template.sample_rate_hz) / 2
        reached = gain * (self._template.at(self._times(shift + np.array([[-half], [0.0], [half]]))) - centre)
        outside = window - np.clip(window, reached.min(axis=0), reached.max(axis=0))
        return float(np.linalg.norm(outside) / size)


def _correlation(record: Array, shape: Array) -> Array:
    """The correlation coefficient of a shape (n,) with each n samples of a record (m,): (m - n + 1,)."""
    n, places = len(shape), len(record) - len(shape) + 1
    shape = shape - shape.mean()
    centred = record - record.mean()
    sums, squares = (np.cumsum(np.concatenate([[0.0], x])) for x in (centred, centred**2))
    variance = (squares[n:] - squares[:-n]) - (sums[n:] - sums[:-n]) ** 2 / n
    # Of a constant window rounding is left.
    norm = np.sqrt(np.maximum(variance, 1e-12 * max(1e-300, float(squares[-1])))) * np.linalg.norm(shape)
    # Of a power of two, long enough that nothing comes around.
    size = 1 << (len(record) - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(centred, size) * np.conj(np.fft.rfft(shape, size)), size)
    return products[:places] / norm
