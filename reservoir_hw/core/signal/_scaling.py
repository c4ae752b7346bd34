"""Between dimensionless numbers and what is measured in volts."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError


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
