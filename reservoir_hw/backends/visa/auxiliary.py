"""What else stands on a bench: a bias supply, a temperature controller, an attenuator, each a knob or a monitor."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, PositiveFloat, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES
from reservoir_hw.core.knobs import Knob, KnobConfig, Monitor, MonitorConfig
from reservoir_hw.drivers.visa.addresses import resource_of
from reservoir_hw.drivers.visa.roles import SafeState
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

_VALUE = "{value}"

Address = Annotated[str, NO_INFLUENCE_ON_STATES]


class AuxiliaryKnob(KnobConfig):
    """A setting of an instrument that speaks SCPI."""

    address: Address = Field(description="a VISA address")
    library: Address = "@py"
    timeout_s: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = 5.0
    set: str = Field(description='the command that sets it, such as "VOLT {value}"')
    read: str | None = Field(default=None, description='the query that reads it back, such as "MEAS:VOLT?"')

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if _VALUE not in self.set:
            raise ValueError(f"set {self.set!r} must say where the number goes: {_VALUE}")
        return self

    @property
    def safe_state(self) -> SafeState | None:
        """What sets the closing value at once; None where it keeps its value."""
        if self.closing is None:
            return None
        return SafeState(self.address, (self.command(self.closing),), self.library, self.timeout_s)

    def command(self, value: float) -> str:
        """What sets a value."""
        return self.set.replace(_VALUE, f"{value!r}")


class AuxiliaryMonitor(MonitorConfig):
    """What an instrument that speaks SCPI is asked for while the device is driven."""

    address: Address = Field(description="a VISA address")
    library: Address = "@py"
    timeout_s: PositiveFloat = 5.0
    read: str = Field(description='the query, such as "MEAS:TEMP?"')


class Auxiliaries:
    """The instruments behind knobs and monitors, one connection for each address."""

    def __init__(self, knobs: dict[str, AuxiliaryKnob], monitors: dict[str, AuxiliaryMonitor]) -> None:
        self._instruments: dict[str, ScpiInstrument] = {}
        self.resources = {resource_of(one.address) for one in (*knobs.values(), *monitors.values())}
        self.knobs = [self._knob(name, one) for name, one in knobs.items()]
        self.monitors = [self._monitor(name, one) for name, one in monitors.items()]

    def close(self) -> None:
        """Disconnect."""
        for instrument in self._instruments.values():
            instrument.close()

    def _at(self, one: AuxiliaryKnob | AuxiliaryMonitor) -> ScpiInstrument:
        if one.address not in self._instruments:
            made = ScpiInstrument(one.address, library=one.library, timeout_s=one.timeout_s)
            self._instruments[one.address] = made
        return self._instruments[one.address]

    def _knob(self, name: str, knob: AuxiliaryKnob) -> Knob:
        instrument, query = self._at(knob), knob.read

        def write(value: float) -> None:
            instrument.write(knob.command(value))
            instrument.finish(f"setting knob {name}", knob.timeout_s)
            instrument.check_errors()

        return Knob(name, knob, write, None if query is None else lambda: instrument.query_number(query))

    def _monitor(self, name: str, monitor: AuxiliaryMonitor) -> Monitor:
        instrument = self._at(monitor)
        return Monitor(name, monitor, lambda: instrument.query_number(monitor.read))
