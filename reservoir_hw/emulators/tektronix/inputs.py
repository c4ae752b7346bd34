"""The settings of an input of an oscilloscope."""

from __future__ import annotations

from dataclasses import dataclass


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
    def lowest_scale_v(self) -> float:
        """See `highest_scale_v`."""
        return 500e-6

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
    def lowest_offset_v(self) -> float:
        """See `highest_offset_v`."""
        return -self.highest_offset_v

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
        self.offset_v = min(max(self.offset_v, self.lowest_offset_v), self.highest_offset_v)
        self.level_v = min(max(self.level_v, self.lowest_level_v), self.highest_level_v)
