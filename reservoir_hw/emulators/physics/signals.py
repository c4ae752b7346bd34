"""What the output of a generator does over time, in volts at its terminals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Interpolation = Literal["hold", "linear"]
Slope = Literal["rising", "falling"]

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

    def crossing(self, end_s: float, level_v: float, slope: Slope) -> float | None:
        """When the level is crossed for the first time between 0 and `end_s`; None if it is not."""
        dt_s = 1 / (8 * self.rate_hz)
        first = -dt_s / 2
        volts = self.at(first + np.arange(math.ceil(end_s / dt_s) + 1, dtype=np.float64) * dt_s)
        return crossing(volts, first, dt_s, level_v, slope)


def crossing(volts: Array, start_s: float, dt_s: float, level_v: float, slope: Slope) -> float | None:
    """When samples (n,) at start_s + k dt_s cross the level for the first time, on straight lines between them."""
    above = volts >= level_v
    hits = above[1:] & ~above[:-1] if slope == "rising" else above[:-1] & ~above[1:]
    k = int(np.argmax(hits)) if len(hits) else 0
    if not len(hits) or not hits[k]:
        return None
    return start_s + (k + (level_v - volts[k]) / (volts[k + 1] - volts[k])) * dt_s


def at_rest(volts: float) -> Playback:
    """A constant level."""
    return Playback(0.0, 1.0, np.array([volts]), None, volts)


# ---- One cycle of the functions that every generator has.


CYCLE_SAMPLES = 1000

_PHASE = np.arange(CYCLE_SAMPLES) / CYCLE_SAMPLES
SHAPES = {
    "SIN": np.sin(2 * np.pi * _PHASE),
    "SQU": np.where(_PHASE < 0.5, 1.0, -1.0),
    "RAMP": 2 * ((_PHASE + 0.5) % 1) - 1,
    "TRI": 2 * np.abs(2 * ((_PHASE + 0.75) % 1) - 1) - 1,
}
"""Within ±1, (CYCLE_SAMPLES,), by the short form of their names."""


# ---- Analog to digital conversion, as every digitizer does it.


def to_codes(volts: NDArray[np.float64], range_v: float, offset_v: float, bits: int) -> NDArray[np.int32]:
    """Codes 0 … 2^bits - 1 of volts (n,), rounded to the nearest.

    `range_v` is the full scale from peak to peak and `offset_v` its middle. One code is range_v / 2^bits, the code
    2^(bits - 1) means `offset_v`. What lies outside of the range becomes the first or the last code: it is clipped.
    The volts of a code are offset_v + (code - 2^(bits - 1)) · range_v / 2^bits.
    """
    codes = np.rint((volts - offset_v) * (2**bits / range_v)) + 2 ** (bits - 1)
    return np.clip(codes, 0, 2**bits - 1).astype(np.int32)
