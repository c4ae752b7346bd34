"""`kind: commands`: the instruments, and the lines of text that make a step."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.backends.commands.lines import CommandKnob, CommandMonitor, Line, Lines, unrolled
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config, decisive
from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.signal import Scaling
from reservoir_hw.core.spec import (
    Continuity,
    Identity,
    NoReset,
    ReservoirSpec,
    ResetByCommand,
    ResetByIdle,
    ResetPolicy,
)
from reservoir_hw.drivers.commands import Place
from reservoir_hw.drivers.visa.links import ConnectionConfig

_INPUT = re.compile(r"\{u\[(\d+)\]")
_ADDRESS = "a VISA address (TCPIP::host::5025::SOCKET, ASRL/dev/ttyUSB0::INSTR, GPIB::24::INSTR), or a serial port"
# What rounding in the last digit of a double may add to a limit.
_DIGITS = ".12g"


class _InstrumentKeys(ConnectionConfig):
    setup: Lines = Field(default=[], description="lines that are sent when the device is opened, and after a fault")
    done: Annotated[str | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None,
        description="a line that is answered when all before it is done, asked before another instrument is told "
        'something; by default *OPC? where there are several instruments; "": none',
    )


class InstrumentConfig(_InstrumentKeys):
    """One of several instruments."""

    address: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(min_length=1, description=_ADDRESS)


class BurstConfig(Config):
    """Many steps at once, where an instrument has a list sweep. In its lines, `u[0]` is a list of numbers."""

    most: PositiveInt = Field(description="points of the longest list")
    lines: Lines = Field(min_length=1, description="{u[0]:.4f} becomes 0.1000,0.2000,...; {steps}: how many they are")


class LinesConfig(_InstrumentKeys, ReservoirConfig):
    """The instruments, and the lines that make a step."""

    address: Annotated[str | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description=f"{_ADDRESS}; of the only instrument"
    )
    instruments: dict[str, InstrumentConfig] = Field(
        default={}, description="name -> address and keys of an instrument, where there are several"
    )
    device_name: str = Field(default="commands", min_length=1, description="what is driven; names the device")
    simulated: bool = Field(description="false for a real device: every result says which it was")
    nodes: PositiveInt = Field(description="states in one step: numbers that are read of its answers")
    step: Lines = Field(default=[], description="the lines of one step; {u[0]:.4f} is the first input, scaled")
    burst: BurstConfig | None = Field(default=None, description="instead of `step`: a list of points at once")
    continuity: Continuity = Field(
        description="what happens between two calls: held (frozen), replayed (driven anew from rest), free_running"
    )
    memory_steps: NonNegativeInt = Field(default=0, description="after so many steps an input no longer matters")
    input_range: tuple[float, float] = Field(
        default=(-1.0, 1.0), description="[lowest, highest] input; what is written lies within these ends, scaled"
    )
    scaling: Scaling = Field(default=Scaling(), description="from an input to what is written: gain u + offset")
    state_scale: float = Field(default=1.0, description="a state is what is read times this")
    period_s: PositiveFloat | None = Field(
        default=None, description="time from one step to the next; a step that begins later is counted"
    )
    rest: Lines = Field(default=[], description="lines that bring the device to rest")
    reset: ResetPolicy | None = Field(default=None, description="how it is brought to rest after the lines of `rest`")
    safe: Annotated[Lines, NO_INFLUENCE_ON_STATES] = Field(
        default=[], description="lines of the safe state, in this order: at the end, after a fault, and by the guard"
    )
    knobs: dict[str, CommandKnob] = Field(default={}, description="settings that are turned while the device is open")
    monitors: Annotated[dict[str, CommandMonitor], NO_INFLUENCE_ON_STATES] = Field(
        default={}, description="what is asked beside its states while it is driven"
    )
    deterministic: bool = False
    input_bits: PositiveInt | None = Field(default=None, description="of the converter that is written to")
    state_unit: str = Field(default="1", description="of a state")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.address is None) == (not self.instruments):
            raise ValueError("give either `address` (one instrument) or `instruments` (several by name)")
        misplaced = self.model_fields_set & _InstrumentKeys.model_fields.keys() if self.instruments else ()
        if misplaced:
            raise ValueError(f"{', '.join(sorted(misplaced))} belongs to an instrument: write it below its name")
        if bool(self.step) == (self.burst is not None):
            raise ValueError("give either `step` (lines of one step) or `burst` (a list of points at once)")
        low, high = self.input_range
        if not low < high:
            raise ValueError(f"input_range {list(self.input_range)} must be [lowest, highest]")
        if self.continuity == "replayed" and not self.memory_steps:
            raise ValueError("continuity replayed needs memory_steps: how many earlier inputs each call replays")
        if isinstance(self.reset, ResetByCommand) and not self.rest:
            raise ValueError("reset: {kind: command} needs `rest:`, the lines that bring the device to rest")
        if self.inputs is None:
            # The device has as many inputs as its lines name.
            lines = self.step if self.burst is None else self.burst.lines
            named = _INPUT.findall(json.dumps([line.model_dump(mode="json") for line in lines]))
            object.__setattr__(self, "inputs", max(map(int, named)) + 1 if named else None)
        self._check_lines()
        return self

    def _check_lines(self) -> None:
        """Raise `ValueError` for lines that name what is not there, or would write what is beyond the limits."""
        for name, lines in (("step", self.step), ("rest", self.rest), ("safe", self.safe)):
            if name != "step" and any(line.answer == "floats" or line.reads for line in lines):
                raise ValueError(f"{name}: no states are read there; leave `answer` and `reads` out, or give a pattern")
        for one in self.all_instruments.values():
            unrolled([line.model_copy(update={"to": None}) for line in one.setup], [""], {"n": None})
        for lines in (self.rest, self.safe):
            unrolled(lines, self.names, {"n": None})
        for knob in self.knobs.values():
            knob.set_line(self.names)
            knob.read_line(self.names)
        for name, monitor in self.monitors.items():
            monitor.line(self.names)
            if name in self.knobs:
                raise ValueError(f"{name} is in knobs and in monitors: what a knob reads is read with it")
        if self.inputs is None:
            raise ValueError("no line of the step names an input, such as {u[0]:.4f}: give `inputs`, or name one")
        driven = self.driven_lines()
        if not any(line.asks for line in driven):
            raise ValueError("no line of the step asks for anything: states are read of the answer to an `ask:`")
        named = {place.index for line in driven for place in line.template.places if place.name == "u"}
        if unused := [f"u[{channel}]" for channel in range(self.inputs) if channel not in named]:
            raise ValueError(f"inputs is {self.inputs}, and no line of the step writes {', '.join(unused)}")
        limits = Limits(self)
        for end in self.input_range:
            volts = [self.scaling.apply(end)] * self.inputs
            for line in driven:
                try:
                    line.template.filled({"u": volts, "n": 0, "steps": 1}, limits.passed)
                except ValueError as error:
                    raise ValueError(f"{line.template.text!r}: {error}, for an input of {end:g}") from None
        periods = [line.at_s for line in driven if line.at_s is not None]
        if periods != sorted(periods) or (self.period_s is not None and periods and periods[-1] >= self.period_s):
            raise ValueError("at_s must grow from line to line, and stay below period_s")

    @property
    def names(self) -> list[str]:
        """Of the instruments; the only one has the name ""."""
        return [*self.instruments] or [""]

    @property
    def all_instruments(self) -> Mapping[str, _InstrumentKeys]:
        """By name; the only one has the name ""."""
        return self.instruments or {"": self}

    def address_of(self, name: str) -> str:
        """Of an instrument."""
        return self.instruments[name].address if self.instruments else self.address or ""

    def done_line(self, name: str) -> str:
        """What an instrument is asked before another one goes on; empty: nothing."""
        told = self.all_instruments[name].done
        return ("*OPC?" if len(self.instruments) > 1 else "") if told is None else told

    def driven_lines(self) -> list[Line]:
        """Those of a step, or of a burst."""
        widths = {"u": self.required_inputs(), "n": None}
        if self.burst is not None:
            return unrolled(self.burst.lines, self.names, {**widths, "steps": None}, step=True)
        return unrolled(self.step, self.names, widths, step=True)

    def other_lines(self, lines: Lines) -> list[Line]:
        """Those of `rest` and `safe`."""
        return unrolled(lines, self.names, {"n": None})

    def setup_lines(self, name: str) -> list[Line]:
        """Those of an instrument."""
        setup = [line.model_copy(update={"to": name}) for line in self.all_instruments[name].setup]
        return unrolled(setup, [name], {"n": None})

    @property
    def reset_policy(self) -> ResetPolicy:
        """`reset`, or what follows from the lines of `rest`."""
        if self.reset is not None:
            return self.reset
        return ResetByCommand() if self.rest else NoReset(reason="its file has neither `rest` nor `reset`")

    @property
    def kind_name(self) -> str:
        """The name of the device, and its nodes."""
        return f"{self.device_name}({self.nodes})"

    def spec(self, serial: str = "") -> ReservoirSpec:
        """What it declares; `serial` is what its instruments say they are."""
        decides = {name: decisive(getattr(self, name)) for name in _CONTENT}
        decides["knobs"] = {name: decisive(knob.set) for name, knob in self.knobs.items()}
        reset = self.reset_policy
        return ReservoirSpec(
            inputs=self.required_inputs(),
            nodes=self.nodes,
            dtype="float64",
            input_range=self.input_range,
            max_batch=1,
            continuity=self.continuity,
            memory_steps=self.memory_steps,
            step_period_s=self.period_s,
            reset_time_s=reset.settle_s if isinstance(reset, ResetByIdle) else 0.0,
            snapshot=self.continuity == "replayed",
            deterministic=self.deterministic,
            input_bits=self.input_bits,
            state_unit=self.state_unit,
            identity=Identity(
                vendor="bench",
                model=self.device_name,
                serial=serial,
                simulated=self.simulated,
                content=json.dumps(decides, sort_keys=True),
            ),
        )


_CONTENT = ("setup", "instruments", "step", "burst", "rest", "scaling", "state_scale", "period_s")


class Limits:
    """Between which every number lies that is written for an input, as it stands in its line.

    They are the ends of the input range, scaled.
    """

    def __init__(self, config: LinesConfig) -> None:
        ends = sorted(config.scaling.apply(end) for end in config.input_range)
        self.low, self.high = (float(f"{end:{_DIGITS}}") for end in ends)

    def passed(self, place: Place, text: str) -> str:
        """What is written at a place. Raises `InputRangeError` for an input beyond the limits."""
        if place.name == "u":
            base = 16 if place.format[-1:] in ("x", "X") else 10
            for one in text.split(","):
                number = int(one, base) if base == 16 else float(one)
                if not self.low <= number <= self.high:
                    raise InputRangeError(
                        f"{one} would be written, beyond {self.low:g} to {self.high:g} (input_range, scaled): more "
                        "digits, or a range that ends on one"
                    )
        return text
