"""`kind: visa`: generator, device under test and digitizer, and what is played and read between them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    WithJsonSchema,
    model_validator,
)

from reservoir_hw.backends.visa.burst import BurstLayout
from reservoir_hw.core import registry
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.knobs import Knob, KnobConfig, Monitor, MonitorConfig
from reservoir_hw.core.reservoir_config import Action, Encoder, ReservoirConfig
from reservoir_hw.core.signal import MaskConfig, SampleAndHold, Scaling, marker
from reservoir_hw.core.spec import Continuity
from reservoir_hw.drivers.visa.links import SCPI, resource_of
from reservoir_hw.drivers.visa.roles import DigitizerConfig, GeneratorConfig, SafeState, Trigger
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
        connection = SCPI.model_copy(update={"library": self.library, "timeout_s": self.timeout_s})
        return SafeState(self.address, (self.command(self.closing),), connection)

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
            self._instruments[one.address] = ScpiInstrument(one.address, library=one.library, timeout_s=one.timeout_s)
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


_SCHEMA = WithJsonSchema({"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]})
# What is used of a step or a slew that is allowed: the rest is for rounding.
_SAFELY = 0.99


def _of_its_kind(role: type[GeneratorConfig] | type[DigitizerConfig]) -> BeforeValidator:
    return BeforeValidator(lambda value: registry.of_its_kind("instruments", value, role))


class Channels(Config):
    """Which output drives the device, and which inputs show what."""

    output: PositiveInt = Field(default=1, description="of the generator, to the device")
    answer: PositiveInt = Field(default=1, description="input of the digitizer, from the device")
    monitor: PositiveInt | None = Field(
        default=None, description="input of the digitizer that shows the output itself; null: needs a calibration"
    )

    @model_validator(mode="after")
    def _different(self) -> Self:
        if self.answer == self.monitor:
            raise ValueError(f"answer and monitor are both input {self.answer}: they are two inputs of the digitizer")
        return self


class BenchConfig(ReservoirConfig):
    """Instruments, wiring, and what is played and read."""

    continuity: ClassVar[Continuity] = "replayed"

    device_name: str = Field(min_length=1, description="what lies between generator and digitizer; names the device")
    simulated: bool = Field(description="false for a real device: every result says which it was")
    nodes: PositiveInt = Field(description="virtual nodes in one step")
    theta_s: PositiveFloat = Field(description="time of one virtual node")
    points_per_node: PositiveInt = Field(default=10, description="samples of the generator for each node")
    mask: MaskConfig = MaskConfig()
    seed: NonNegativeInt = Field(default=0, description="of the mask, if that has none of its own")
    scaling: Scaling = Field(
        default=Scaling(), description="from masked inputs to volts: volts = gain (mask u + bias) + offset"
    )
    input_range: tuple[float, float] | None = Field(default=(-1.0, 1.0), description="[lowest, highest] input")
    memory_steps: PositiveInt = Field(description="after so many steps the device has forgotten an input")
    repetitions: PositiveInt = Field(default=1, description="bursts of the same inputs, of which states are the mean")
    samples_per_node: Annotated[float, Field(ge=2)] = Field(default=10.0, description="of the digitizer, at least")
    position: Annotated[float | None, Field(ge=0, lt=1)] = Field(
        default=None,
        description="where in a node its state is read, 0: at its beginning, towards 1: at its end; by default so that "
        "`average` ends a sample of the generator before the node",
    )
    average: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2, description="share of a node, around `position`, over which samples are averaged"
    )
    generator: Annotated[SerializeAsAny[GeneratorConfig], _of_its_kind(GeneratorConfig), _SCHEMA]
    digitizer: Annotated[SerializeAsAny[DigitizerConfig], _of_its_kind(DigitizerConfig), _SCHEMA]
    channels: Channels = Channels()
    trigger: Annotated[Trigger | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None,
        description="of the digitizer; by default the first edge of the monitor, or else the trigger input",
    )
    marker_v: float | None = Field(
        default=None,
        description="level of the markers; by default the end of the output's range that is farther from safe_v, or "
        "else the upper one",
    )
    max_residual: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = Field(
        default=0.15, description="of a marker, what may differ from what was played (rms, as a part of it)"
    )
    settle_s: Annotated[NonNegativeFloat | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="rest before each burst; by default as long as memory_steps last"
    )
    interlock: Annotated[Action | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="module:function or a command, asked before every burst whether it may be played"
    )
    knobs: dict[str, AuxiliaryKnob] = Field(
        default={},
        description="settings of other instruments, which are turned while the device is open; in this order",
    )
    monitors: Annotated[dict[str, AuxiliaryMonitor], NO_INFLUENCE_ON_STATES] = Field(
        default={}, description="what is read of other instruments every few seconds while the device is driven"
    )
    calibration: Annotated[str | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="a file of `reservoir-hw device calibrate`"
    )
    max_calibration_age_h: Annotated[PositiveFloat | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="an older calibration is refused"
    )

    @model_validator(mode="after")
    def _wired(self) -> Self:
        channels = self.channels
        if channels.output not in self.generator.outputs:
            raise ValueError(
                f"channels.output is {channels.output}, and generator.outputs has {[*self.generator.outputs]}"
            )
        for name, number in (("answer", channels.answer), ("monitor", channels.monitor)):
            if number is not None and number not in self.digitizer.inputs:
                raise ValueError(f"channels.{name} is {number}, and digitizer.inputs has {[*self.digitizer.inputs]}")
        if channels.monitor is None and self.calibration is None:
            raise ValueError(
                "without channels.monitor a calibration must say how the device answers to a marker: name the "
                "file that `reservoir-hw device calibrate` writes, also before there is one"
            )
        if self.generator.locked == self.digitizer.locked and self.generator.address != self.digitizer.address:
            raise ValueError("generator and digitizer are one instrument at two addresses: give them the same")
        low, high = self.generator.outputs[channels.output].range_v
        if not low <= self.scaling.offset <= high:
            raise ValueError(f"scaling.offset {self.scaling.offset:g} V lies beyond range_v [{low:g}, {high:g}]")
        return self

    @property
    def kind_name(self) -> str:
        """The name of the device, and its nodes."""
        return f"{self.device_name}({self.nodes})"

    @property
    def step_period_s(self) -> float:
        """Time of one step."""
        return self.nodes * self.theta_s

    @property
    def read_at(self) -> float:
        """`position`, also where it was left out. A generator's filter goes over to the next node within a sample."""
        if self.position is not None:
            return self.position
        return 1 - 1 / max(2, self.points_per_node) - self.average / 2

    @property
    def sample_rate_hz(self) -> float:
        """Of the generator, as it is asked for."""
        return self.points_per_node / self.theta_s

    @property
    def rest_v(self) -> float:
        """Of the output between bursts."""
        return self.generator.outputs[self.channels.output].safe_v

    @property
    def highest_marker_v(self) -> float:
        """The level of the markers' chips that are not at rest, within the limits of the output."""
        if self.marker_v is not None:
            return self.marker_v
        low, high = self.generator.outputs[self.channels.output].range_v
        step = max(high - self.rest_v, low - self.rest_v, key=abs)
        return self.rest_v + float(np.sign(step) * min(abs(step), self.largest_step_v))

    @property
    def largest_step_v(self) -> float:
        """Between two samples of the output; infinity without a limit."""
        output = self.generator.outputs[self.channels.output]
        slew = output.highest_slew_v_per_s
        limits = [output.highest_step_v, None if slew is None else slew / self.sample_rate_hz]
        return _SAFELY * min([limit for limit in limits if limit is not None], default=float("inf"))

    @property
    def _rest_after(self) -> int:
        """Steps of rest before the second marker."""
        if self.channels.monitor is None:
            return self.memory_steps
        # The marker may be farther from the last node than the output may go at once.
        return int(np.isfinite(self.largest_step_v))

    @property
    def encoded_width(self) -> int:
        """One voltage for each virtual node."""
        return self.nodes

    def encoder(self) -> Encoder:
        """The volts that the generator holds at each virtual node."""
        mask = self.mask.build(self.nodes, self.required_inputs(), seed=self.seed)
        return lambda u: self.scaling.apply(mask.apply(u))

    def layout(self, longest: int) -> BurstLayout:
        """What a burst consists of, for an instrument whose longest waveform has so many samples.

        Raises `ConfigurationError` if not even one step fits, or the output can play no marker.
        """
        return BurstLayout(
            mask=self.mask.build(self.nodes, self.required_inputs(), seed=self.seed),
            scaling=self.scaling,
            hold=SampleAndHold(points_per_node=self.points_per_node, sample_rate_hz=self.sample_rate_hz),
            memory_steps=self.memory_steps,
            rest_after=self._rest_after,
            rest_v=self.rest_v,
            marker=self.rest_v + (self.highest_marker_v - self.rest_v) * marker(self.points_per_node),
            longest=longest,
        )
