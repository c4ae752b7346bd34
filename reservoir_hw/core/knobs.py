"""Knobs: settings of an open device that are turned between sequences. Monitors: what is read beside its states."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.core.spec import KnobSpec, MonitorSpec

_POLL_S = 0.05
# So many readings of a monitor are kept. Of a longer series every second one is, again and again.
_MOST_READINGS = 512

Read = Callable[[], float]


class KnobConfig(Config):
    """A setting that is turned while the device is open. A kind adds how it is set and read."""

    read: Any = None
    value: float = Field(description="set when the device is opened")
    limits: tuple[float, float] = Field(description="[lowest, highest] that may ever be set")
    unit: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(default="", description="for tables and figures")
    resolution: Annotated[PositiveFloat | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="the smallest step; values are whole multiples of it"
    )
    approach_from: float | None = Field(
        default=None,
        description="each value is approached from here, so that hysteresis is the same for all; by default the "
        "`value` of the file",
    )
    tolerance: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = Field(
        default=0.01, description="how far what is read back may be from what was set, as a part of the limits' span"
    )
    ramp_step: PositiveFloat | None = Field(default=None, description="the largest step at once")
    ramp_wait_s: NonNegativeFloat = Field(default=0.1, description="after each step of a ramp")
    settle_s: NonNegativeFloat = Field(
        default=0.0, description="the longest wait until the value is read back, and the wait after it"
    )
    closing: Annotated[float | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="set when the device is closed; null: it keeps its value"
    )

    @property
    def spec(self) -> KnobSpec:
        """What the device declares of it."""
        return KnobSpec(limits=self.limits, unit=self.unit, resolution=self.resolution)

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        low, high = self.limits
        if not low < high:
            raise ValueError(f"limits {list(self.limits)} must be [lowest, highest]")
        for name in ("value", "approach_from", "closing"):
            value = getattr(self, name)
            if value is not None and (problem := self.spec.problem_of(value)):
                raise ValueError(f"{name} {problem}")
        if self.ramp_step is not None and self.resolution is not None and self.ramp_step < self.resolution:
            raise ValueError(f"ramp_step {self.ramp_step:g} is less than the resolution {self.resolution:g}")
        if self.ramp_step is not None and self.read is None:
            raise ValueError("a ramp begins at the value that is there: `read:` must say how it is read")
        return self


class Knob:
    """A knob of a device that is open. `write` sets it at once; `read` says where it is, if anything can."""

    def __init__(self, name: str, config: KnobConfig, write: Callable[[float], None], read: Read | None = None) -> None:
        self.name, self.config = name, config
        self._write, self._read = write, read
        self._at: float | None = None
        self._turned = False

    def turn(self, value: float) -> None:
        """Set a value within the limits, coming from `approach_from`. Raises `DeviceFault` if it is not reached."""
        config = self.config
        self._turned = True
        begin = config.value if config.approach_from is None else config.approach_from
        for aim in [begin, value] if begin != value else [value]:
            self._go(aim)
        time.sleep(config.settle_s)

    def read(self) -> float | None:
        """Where it is: as read back, or else as it was set; None where it was not set."""
        return self._at if self._read is None else self._number()

    def close(self) -> None:
        """Set the closing value, if there is one and anything was set."""
        if self._turned and self.config.closing is not None:
            self._go(self.config.closing)
        self._at, self._turned = None, False

    def _go(self, value: float) -> None:
        config = self.config
        for step in self._ramp(value):
            # Also where the device does not answer: it may have taken the value.
            self._at = step
            self._write(step)
            if step != value:
                time.sleep(config.ramp_wait_s)
        if self._read is None:
            return
        until = time.monotonic() + config.settle_s
        # A supply that is measured takes its time to come there.
        while abs((found := self._number()) - value) > self._tolerated:
            if time.monotonic() > until:
                raise DeviceFault(
                    f"knob {self.name}: {_said(value, config.unit)} was set, and {_said(found, config.unit)} is read "
                    f"back after {config.settle_s:g} s"
                )
            time.sleep(_POLL_S)

    def _number(self) -> float:
        assert self._read is not None
        return number_of(self._read(), f"knob {self.name}")

    @property
    def _tolerated(self) -> float:
        low, high = self.config.limits
        return self.config.tolerance * (high - low)

    def _ramp(self, value: float) -> list[float]:
        """Values to set one after the other, all of them within the limits."""
        config, resolution = self.config, self.config.resolution
        if config.ramp_step is None:
            return [value]
        low, high = config.limits
        there = self._number()
        begin = min(max(there, low), high)
        if abs(there - begin) > self._tolerated:
            raise DeviceFault(
                f"knob {self.name} is at {_said(there, config.unit)}, beyond its limits [{low:g}, {high:g}]: bring it "
                "within them first"
            )
        # Whole multiples of the resolution, to which the values between are rounded.
        most = config.ramp_step
        most = most if resolution is None else math.floor(most / resolution + 1e-9) * resolution
        steps = max(1, math.ceil(abs(value - begin) / most - 1e-9))
        between = map(float, np.linspace(begin, value, steps + 1)[1:-1])
        return [*(one if resolution is None else round(one / resolution) * resolution for one in between), value]


class MonitorConfig(Config):
    """What is read every few seconds while the device is driven. A kind adds how."""

    every_s: PositiveFloat = Field(default=5.0, description="not more often than this")
    unit: str = Field(default="", description="for tables and figures")
    limits: tuple[float, float] | None = Field(default=None, description="[lowest, highest] that is as it should be")
    outside: Literal["warn", "stop"] = Field(default="warn", description="what a reading beyond `limits` does")

    @property
    def spec(self) -> MonitorSpec:
        """What the device declares of it."""
        return MonitorSpec(unit=self.unit, limits=self.limits)


class Monitor:
    """What is read of an open device beside its states, as a small series."""

    def __init__(self, name: str, config: MonitorConfig, read: Read) -> None:
        self.name, self.config, self._read = name, config, read
        self.begin()

    def begin(self) -> None:
        """Forget what was read."""
        self._times: list[float] = []
        self._values: list[float] = []
        self._ends = (math.inf, -math.inf)
        self._every, self._skipped, self._due = 1, 0, 0.0

    def read(self) -> float:
        """The value now. Raises `DeviceFault` where it is no number."""
        value = number_of(self._read(), f"monitor {self.name}")
        self._due = time.monotonic() + self.config.every_s
        self._ends = min(self._ends[0], value), max(self._ends[1], value)
        self._skipped += 1
        if self._skipped >= self._every or not self._times:
            self._skipped = 0
            self._times.append(time.time())
            self._values.append(value)
        if len(self._times) > _MOST_READINGS:
            self._times, self._values, self._every = self._times[::2], self._values[::2], 2 * self._every
        return value

    def is_due(self) -> bool:
        """Whether it was not read for `every_s`."""
        return time.monotonic() >= self._due

    def refuse_outside(self, value: float) -> None:
        """Raise `DeviceFault` where a reading beyond its limits stops the drive."""
        limits = self.config.limits
        if self.config.outside == "stop" and limits is not None and not limits[0] <= value <= limits[1]:
            raise DeviceFault(
                f"monitor {self.name} is {_said(value, self.config.unit)}, beyond its limits [{limits[0]:g}, "
                f"{limits[1]:g}]: the drive was stopped"
            )

    @property
    def series(self) -> dict[str, Any]:
        """Unit, limits, times (seconds since 1970) and values, and the lowest and highest of all readings."""
        low, high = self._ends if self._times else (None, None)
        return {
            "unit": self.config.unit,
            "limits": self.config.limits,
            "times": list(self._times),
            "values": list(self._values),
            "lowest": low,
            "highest": high,
        }


def number_of(value: Any, what: str) -> float:
    """A number that was read. Raises `DeviceFault` where it is none, or not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DeviceFault(f"{what}: {value!r} was read, which is no number") from None
    if not math.isfinite(number):
        raise DeviceFault(f"{what}: {number} was read, which is not finite")
    return number


def about_monitors(series: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each monitor (`Monitor.series`) of which a reading was beyond its limits."""
    found = []
    for name, one in series.items():
        limits, ends = one["limits"], (one["lowest"], one["highest"])
        if limits is None or ends[0] is None or (limits[0] <= ends[0] and ends[1] <= limits[1]):
            continue
        found.append(
            f"monitor {name} was between {_said(ends[0], one['unit'])} and {_said(ends[1], one['unit'])}, beyond its "
            f"limits [{limits[0]:g}, {limits[1]:g}]"
        )
    return found


def closed(knobs: Sequence[Knob]) -> None:
    """Set all closing values, the last knob first. What one fails with is raised when all were tried."""
    with ExitStack() as stack:
        for knob in knobs:
            stack.callback(knob.close)


def _said(value: float, unit: str) -> str:
    return f"{value:g} {unit}".strip()
