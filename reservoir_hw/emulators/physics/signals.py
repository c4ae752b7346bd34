"""What the output of a generator does over time, in volts at its terminals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Interpolation = Literal["hold", "linear"]

_ENDLESS = 2**62


@dataclass(frozen=True)
class Playback:
    """Samples played from `start_s` on, `repeats` times (None: without end); `rest_v` before and after.

    Sample k of `volts` (n,) stands for the time from k to k + 1 sample periods. The output holds it for this time
    ("hold", zero-order hold) or goes straight to the next one ("linear"). The last sample goes on to what follows it:
    the first one, or the level of rest.
    """

    start_s: float
    rate_hz: float
    volts: Array
    repeats: int | None
    rest_v: float
    interpolation: Interpolation = "hold"

    @property
    def end_s(self) -> float:
        """When the last sample ends; infinity without an end."""
        repeats = math.inf if self.repeats is None else self.repeats
        return self.start_s + len(self.volts) * repeats / self.rate_hz

    @property
    def constant(self) -> bool:
        """Whether it is a level, and not a waveform."""
        return self.repeats is None and len(self.volts) == 1

    def at(self, times: Array) -> Array:
        """Volts at times (m,) in seconds since the last burst began."""
        from reservoir_hw.emulators.physics import kernels

        last = len(self.volts) * self.repeats if self.repeats is not None else _ENDLESS
        out = np.empty(len(times))
        linear = self.interpolation == "linear"
        kernels.play(self.volts, last, self.rest_v, linear, self.start_s, self.rate_hz, times, out)
        return out


def at_rest(volts: float) -> Playback:
    """A constant level."""
    return Playback(0.0, 1.0, np.array([volts]), None, volts)
