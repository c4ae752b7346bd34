"""Sample rate, length and place of a record."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        """Of the record."""
        return self.points / self.rate_hz

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

    def set_duration(self, duration_s: float) -> None:
        """The number of points follows."""
        if not self.manual:
            highest_hz = AUTOMATIC_POINTS / duration_s * (1 + 1e-9)
            self.rate_hz = next((rate for rate in _RATES_HZ if rate <= highest_hz), LOWEST_RATE_HZ)
        self._set_points(duration_s)

    def _set_points(self, duration_s: float) -> None:
        self.points = min(max(round(duration_s * self.rate_hz), SHORTEST_RECORD), LONGEST_RECORD)
