"""A signal in time: from node values to the samples of a waveform, what a signal path does to them, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError

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


class Sampler(Config):
    """Which samples of a digitizer are the state of which virtual node.

    Sample k stands for the time from k to k + 1 sample periods. The window of node i in step n begins at
    delay + (n nodes + i) theta; digitizer and generator may run at different rates.
    """

    theta_s: PositiveFloat = Field(description="duration of one virtual node")
    sample_rate_hz: PositiveFloat = Field(description="of the digitizer, as it was read back")
    delay_s: NonNegativeFloat = Field(default=0.0, description="from the first sample to the window of the first node")
    position: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.5, description="where in a window its sample is taken, 0: at its beginning, towards 1: at its end"
    )
    average: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of a window, around `position`, over which samples are averaged; 0: one sample"
    )

    @model_validator(mode="after")
    def _within_a_window(self) -> Self:
        if self.theta_s * self.sample_rate_hz < 1 - _ROUNDING:
            raise ValueError(
                f"a virtual node of {self.theta_s:g} s has less than one sample at {self.sample_rate_hz:g} Hz: "
                "take a higher sample rate or a longer theta"
            )
        if self.position < self.average / 2 or self.position + self.average / 2 > 1:
            raise ValueError(
                f"an average over {self.average:g} of a window around {self.position:g} reaches beyond the window"
            )
        return self

    @property
    def samples_averaged(self) -> int:
        """How many samples make one state."""
        return max(1, int(self.average * self.theta_s * self.sample_rate_hz + _ROUNDING))

    def samples_needed(self, steps: int, nodes: int) -> int:
        """How many samples the digitizer must take for `steps` steps of `nodes` nodes."""
        return int(self._first(np.array(steps * nodes - 1))) + self.samples_averaged

    def apply(self, samples: Any, steps: int, nodes: int) -> NDArray[Any]:
        """The states (..., steps, nodes) in samples (..., time). Raises `ShapeError` if there are too few samples."""
        samples = np.asarray(samples)
        if samples.ndim == 0 or steps < 1 or nodes < 1:
            raise ShapeError(
                f"Sampler takes samples (..., time) and at least one step and node, not {samples.shape}, "
                f"{steps} steps and {nodes} nodes"
            )
        needed = self.samples_needed(steps, nodes)
        if samples.shape[-1] < needed:
            raise ShapeError(
                f"{steps} steps of {nodes} nodes of {self.theta_s:g} s need {needed} samples at "
                f"{self.sample_rate_hz:g} Hz, the waveform has {samples.shape[-1]}: acquire for longer"
            )
        first = self._first(np.arange(steps * nodes))
        states = samples[..., first]
        if self.samples_averaged > 1:
            states = samples[..., first[:, None] + np.arange(self.samples_averaged)].mean(axis=-1)
        return states.reshape(*samples.shape[:-1], steps, nodes)

    def _first(self, window: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first sample taken in each window; windows are counted through all steps."""
        begin = self.delay_s + (window + self.position - self.average / 2) * self.theta_s
        return np.floor(begin * self.sample_rate_hz + _ROUNDING).astype(np.int64)


class LowPass(Config):
    """A one-pole low-pass, y_n = y_(n-1) + b (x_n - y_(n-1)) with b = 1 - exp(-2π bandwidth / sample rate).

    That is an RC element driven by a signal that is held during each sample period, at the end of the period.
    """

    bandwidth_hz: PositiveFloat
    sample_rate_hz: PositiveFloat

    @property
    def share(self) -> float:
        """b, the share of the way to its new value that the signal goes in one sample period.

        With one sample for each virtual node this is what `nonidealities.loop.bandwidth` means in a delay loop.
        """
        return -math.expm1(-2 * math.pi * self.bandwidth_hz / self.sample_rate_hz)

    def apply(self, samples: ArrayLike, before: ArrayLike = 0.0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Filter samples (..., time); returns them and the last value (...,), both float64.

        `before` is the last value of the samples that came before, (...,) or one number; by default the path is at
        rest. A signal in chunks, each with the last value of the one before, gives the same bits as in one piece.
        Raises `ShapeError` for shapes other than these, `InputRangeError` for values that are not finite.
        """
        x = np.asarray(samples, np.float64)
        if x.ndim == 0:
            raise ShapeError("LowPass takes samples (..., time), not one number")
        _check_finite("LowPass", "samples", x)
        start = np.asarray(before, np.float64)
        if start.shape not in ((), x.shape[:-1]):
            raise ShapeError(f"LowPass: `before` must be one number or {x.shape[:-1]}, its shape is {start.shape}")
        start = np.broadcast_to(start, x.shape[:-1])
        b = self.share
        filtered = np.empty_like(x)
        # One number after another: a sum in blocks would round by where the chunks begin.
        for row in np.ndindex(x.shape[:-1]):
            values = accumulate(x[row].tolist(), lambda y, v: y + b * (v - y), initial=float(start[row]))
            filtered[row] = np.fromiter(values, np.float64, x.shape[-1] + 1)[1:]
        return filtered, filtered[..., -1].copy() if x.shape[-1] else start.copy()


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
        _check_finite(f"repetition {n + 1}", "values", x)
        n += 1
        distance = x - mean
        mean = mean + distance / n
        squares = squares + distance * (x - mean)
    if not n:
        raise ShapeError("there is nothing to average: at least one repetition is needed")
    return Average(mean, np.sqrt(squares / (n - 1)) if n > 1 else None, n)


def _check_finite(where: str, what: str, x: NDArray[np.float64]) -> None:
    if not np.isfinite(x).all():
        raise InputRangeError(f"{where}: {int((~np.isfinite(x)).sum())} {what} are not finite numbers")


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

    @classmethod
    def between(cls, source: tuple[float, float], target: tuple[float, float]) -> Self:
        """The scaling that takes the range `source` to `target`, for instance (-1, 1) to 0..3.3 V.

        Raises `ConfigurationError` for a range of no width.
        """
        if source[0] == source[1] or target[0] == target[1]:
            raise ConfigurationError(f"no scaling takes {source} to {target}: a range must have two different ends")
        gain = (target[1] - target[0]) / (source[1] - source[0])
        return cls(gain=gain, offset=target[0] - gain * source[0])

    def apply(self, x: Any) -> Any:
        """y for x of any shape."""
        return self.gain * x + self.offset

    def invert(self, y: Any) -> Any:
        """x for y of any shape."""
        return (y - self.offset) / self.gain


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
