"""The values of a signal: between numbers and volts, and what a converter makes of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError, InputRangeError


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
