"""A signal in time: from node values to the samples of a waveform, what a signal path does to them, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import InputRangeError, ShapeError

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
