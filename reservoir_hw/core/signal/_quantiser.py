"""What a converter makes of a signal."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from reservoir_hw.core import arrays
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import InputRangeError


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
            where = tuple(int(place) for place in np.argwhere(np.asarray(outside))[0])
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
