"""What an oscilloscope has acquired."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.physics.signals import to_codes


@dataclass
class Input:
    """The settings of an input. Scale and position are volts and divisions of the screen."""

    on: bool = False
    scale_v: float = 0.1
    offset_v: float = 0.0
    position: float = 0.0
    termination_ohm: float = 1e6
    level_v: float = 0.0

    @property
    def middle_v(self) -> float:
        """What stands in the middle of the screen."""
        return self.offset_v - self.position * self.scale_v

    @property
    def highest_scale_v(self) -> float:
        """Of a division."""
        return 10.0 if self.termination_ohm > 50 else 1.0

    @property
    def highest_offset_v(self) -> float:
        """The more, the coarser the scale is."""
        if self.termination_ohm > 50:
            return 1.0 if self.scale_v < 64e-3 else 10.0 if self.scale_v < 1 else 100.0
        return 1.0 if self.scale_v < 0.1 else 10.0

    @property
    def highest_level_v(self) -> float:
        """A trigger level lies on the screen."""
        return self.middle_v + 5 * self.scale_v

    @property
    def lowest_level_v(self) -> float:
        """See `highest_level_v`."""
        return self.middle_v - 5 * self.scale_v

    def settle(self) -> None:
        """Scale, offset and level become the nearest ones that there are."""
        self.scale_v = min(self.scale_v, self.highest_scale_v)
        self.offset_v = min(max(self.offset_v, -self.highest_offset_v), self.highest_offset_v)
        self.level_v = min(max(self.level_v, self.lowest_level_v), self.highest_level_v)


CONVERTER_DIVISIONS = 10.24
# Codes in a division, by the bytes of a code.
DIVISION_CODES = {1: 25, 2: 6400}
# Rates up to which the converter has so many bits, the last ones in all modes.
_HIGH_RESOLUTION_BITS = ((125e6, 16), (312.5e6, 15), (625e6, 14), (1.25e9, 13))
_BITS = ((3.125e9, 12), (math.inf, 8))


@dataclass(frozen=True)
class Record:
    """Codes of 16 bits, (points,) by channel, and how to read them."""

    rate_hz: float
    first_s: float
    codes: dict[int, NDArray[np.int16]]
    scales: dict[int, tuple[float, float]]
    """Volts of a division and of the middle, by channel."""
    clipped: dict[int, bool]

    @property
    def trigger_point(self) -> int:
        """The first point that is not before the trigger."""
        return math.ceil(-self.first_s * self.rate_hz - 1e-6)


def converted(
    volts: Mapping[int, NDArray[np.float64]],
    inputs: Mapping[int, Input],
    rate_hz: float,
    first_s: float,
    high_resolution: bool,
) -> Record:
    """The record of volts (points,) by channel. Codes of fewer bits are filled up with zeros."""
    steps = (*_HIGH_RESOLUTION_BITS, *_BITS) if high_resolution else _BITS
    bits = next(bits for highest_hz, bits in steps if rate_hz <= highest_hz)
    codes, scales, clipped = {}, {}, {}
    for number, seen in volts.items():
        channel = inputs[number]
        taken = to_codes(seen, CONVERTER_DIVISIONS * channel.scale_v, channel.middle_v, bits)
        clipped[number] = bool(taken.min() == 0 or taken.max() == 2**bits - 1)
        codes[number] = ((taken - 2 ** (bits - 1)) << 16 - bits).astype(np.int16)
        scales[number] = channel.scale_v, channel.middle_v
    return Record(rate_hz, first_s, codes, scales, clipped)


# ---- Sample rate, length and place of a record.


HIGHEST_RATE_HZ, LOWEST_RATE_HZ = 6.25e9, 6.25
SHORTEST_RECORD, LONGEST_RECORD, AUTOMATIC_POINTS = 1000, 62_500_000, 1_000_000
TIME_DIVISIONS = 10

_RATES_HZ = [HIGHEST_RATE_HZ / (step * 10**power) for power in range(9) for step in (1, 2, 5)] + [LOWEST_RATE_HZ]


@dataclass
class TimeBase:
    """Settings as after `*RST`.

    In automatic mode the rate follows from the duration. In manual mode either the number of points or the duration
    stays when the rate changes.
    """

    manual: bool = False
    follower: str = "HORIZontalscale"
    rate_hz: float = HIGHEST_RATE_HZ
    points: int = 25_000
    position: float = 50.0
    delayed: bool = True
    delay_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Of the record. When it is set, the number of points follows, and in automatic mode the rate."""
        return self.points / self.rate_hz

    @duration_s.setter
    def duration_s(self, duration_s: float) -> None:
        if not self.manual:
            highest_hz = AUTOMATIC_POINTS / duration_s * (1 + 1e-9)
            self.rate_hz = next((rate for rate in _RATES_HZ if rate <= highest_hz), LOWEST_RATE_HZ)
        self._set_points(duration_s)

    @property
    def first_s(self) -> float:
        """When the first point is taken, after the trigger."""
        if self.delayed:
            return self.delay_s - self.duration_s / 2
        return -self.position / 100 * self.duration_s

    def set_rate(self, rate_hz: float) -> None:
        """The nearest one, by the ratio."""
        duration_s = self.duration_s
        self.rate_hz = min(_RATES_HZ, key=lambda rate: abs(math.log(rate / rate_hz)))
        if self.follower == "RECORDLength":
            self._set_points(duration_s)

    def _set_points(self, duration_s: float) -> None:
        self.points = min(max(round(duration_s * self.rate_hz), SHORTEST_RECORD), LONGEST_RECORD)
