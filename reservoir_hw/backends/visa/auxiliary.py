"""What else stands on a bench and is set once: a bias supply, a temperature controller, an attenuator."""

from __future__ import annotations

import time
from typing import Annotated, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.drivers.visa.addresses import resource_of
from reservoir_hw.drivers.visa.roles import SafeState
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

_VALUE = "{value}"
_POLL_S = 0.05


class AuxiliaryConfig(Config):
    """A setting of an instrument that speaks SCPI."""

    address: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(description="a VISA address")
    library: Annotated[str, NO_INFLUENCE_ON_STATES] = "@py"
    timeout_s: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = 5.0
    set: str = Field(description='the command that sets it, such as "VOLT {value}"')
    read: str | None = Field(default=None, description='the query that reads it back, such as "MEAS:VOLT?"')
    value: float = Field(description="set when the device is opened")
    limits: tuple[float, float] = Field(description="[lowest, highest] that may ever be set")
    tolerance: PositiveFloat = Field(
        default=0.01, description="how far what is read back may be from what was set, as a part of the limits' span"
    )
    ramp_step: PositiveFloat | None = Field(default=None, description="the largest step at once")
    ramp_wait_s: NonNegativeFloat = Field(default=0.1, description="after each step of a ramp")
    settle_s: NonNegativeFloat = Field(
        default=0.0, description="the longest wait until the value is read back, and the wait after it"
    )
    closing: float | None = Field(default=None, description="set when the device is closed; null: it keeps its value")

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        low, high = self.limits
        if not low < high:
            raise ValueError(f"limits {list(self.limits)} must be [lowest, highest]")
        for name in ("value", "closing"):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name} {value:g} lies beyond limits [{low:g}, {high:g}]")
        if _VALUE not in self.set:
            raise ValueError(f"set {self.set!r} must say where the number goes: {_VALUE}")
        if self.ramp_step is not None and self.read is None:
            raise ValueError("a ramp begins at the value that is there: `read:` must say how it is read")
        return self

    @property
    def locked(self) -> str:
        """The name under which the instrument is locked."""
        return resource_of(self.address)

    @property
    def safe_state(self) -> SafeState | None:
        """What sets the closing value at once; None where it keeps its value."""
        if self.closing is None:
            return None
        return SafeState(self.address, (self.command(self.closing),), self.library, self.timeout_s)

    def command(self, value: float) -> str:
        """What sets a value."""
        return self.set.replace(_VALUE, f"{value!r}")


class Auxiliary:
    """One of them, by its name in the configuration."""

    def __init__(self, name: str, config: AuxiliaryConfig) -> None:
        self.name, self._config = name, config
        self._instrument = ScpiInstrument(config.address, library=config.library, timeout_s=config.timeout_s)
        self._set = False

    def apply(self) -> None:
        """Set it, by a ramp where there is one. Raises `DeviceFault` if something else is read back."""
        self._set = True
        self._go(self._config.value)
        time.sleep(self._config.settle_s)

    def read(self) -> float | None:
        """What is read back now; None where nothing can be read."""
        return None if self._config.read is None else self._instrument.query_number(self._config.read)

    def close(self) -> None:
        """Set the closing value, if there is one and it was ever set, and disconnect."""
        try:
            if self._set and self._config.closing is not None:
                self._go(self._config.closing)
                self._set = False
        finally:
            self._instrument.close()

    def _go(self, value: float) -> None:
        config = self._config
        for step in self._ramp(value):
            self._instrument.write(config.command(step))
            self._instrument.finish(f"setting aux.{self.name}", config.timeout_s)
            if step != value:
                time.sleep(config.ramp_wait_s)
        self._instrument.check_errors()
        until = time.monotonic() + config.settle_s
        # A supply that is measured takes its time to come there.
        while (found := self.read()) is not None and abs(found - value) > self._tolerated:
            if time.monotonic() > until:
                raise DeviceFault(f"aux.{self.name}: {value:g} was set, and {found:g} is read back ({config.read})")
            time.sleep(_POLL_S)

    @property
    def _tolerated(self) -> float:
        low, high = self._config.limits
        return self._config.tolerance * (high - low)

    def _ramp(self, value: float) -> list[float]:
        """Values to set one after the other, all of them within the limits."""
        if self._config.ramp_step is None:
            return [value]
        low, high = self._config.limits
        there = self.read() or 0.0
        begin = min(max(there, low), high)
        if abs(there - begin) > self._tolerated:
            raise DeviceFault(
                f"aux.{self.name} is at {there:g}, beyond its limits [{low:g}, {high:g}]: bring it within them first"
            )
        steps = max(1, int(np.ceil(abs(value - begin) / self._config.ramp_step)))
        return [*(float(step) for step in np.linspace(begin, value, steps + 1)[1:-1]), value]
