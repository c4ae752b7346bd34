"""`kind: commands`: each step is sent as lines of text, and its states are read of the answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from reservoir_hw.backends.commands.configuration import Limits, LinesConfig
from reservoir_hw.backends.commands.lines import CommandKnob, CommandMonitor, Line
from reservoir_hw.core.errors import (
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    NotSupported,
    ProtocolError,
    ReservoirError,
)
from reservoir_hw.core.knobs import Knob, Monitor
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Counters, ReservoirSpec
from reservoir_hw.drivers.commands import Place, Reading, TextInstrument, Unasked, Values, named
from reservoir_hw.drivers.guard import Guard
from reservoir_hw.drivers.visa.roles import SafeState

# What begins later than this, and this part of the period, is late: less is the operating system.
_JITTER_S, _JITTER = 1e-3, 0.01
Passed = Callable[[Place, str], str]

# After the last answer, one that is left over has come within this.
_LEFT_OVER_S = 0.02

# A wait is cut into pieces, between which an emergency stop is seen.
_LOOK_S = 0.1


class CommandsConfig(LinesConfig):
    """Instruments or a board that are told lines of text: a source and a meter, a DAC, a switch matrix."""

    never: ClassVar[frozenset[str]] = frozenset({"settable", "differentiable"})

    most_at_once = 1

    kind: Literal["commands"]

    def build(self) -> CommandsReservoir:
        """Not yet open."""
        instruments = {name: TextInstrument(self.address_of(name), one) for name, one in self.all_instruments.items()}
        return CommandsReservoir(self, instruments)


class CommandsReservoir(Reservoir):
    """Instruments that are told lines of text. It holds one sequence; states are (1, time, nodes)."""

    def __init__(self, config: CommandsConfig, instruments: Mapping[str, TextInstrument]) -> None:
        # What knobs need.
        self._config, self._instruments = config, instruments
        self._turned = {name: self._knob(name, knob) for name, knob in config.knobs.items()}
        super().__init__(
            config.spec(),
            reset=config.reset_policy,
            out_of_range=config.out_of_range,
            resource={one.locked for one in instruments.values()},
            knobs=[*self._turned.values()],
            monitors=[self._monitor(name, monitor) for name, monitor in config.monitors.items()],
        )
        self._step, self._limits = config.driven_lines(), Limits(config)
        self._rest, self._safe = config.other_lines(config.rest), config.other_lines(config.safe)
        self._most = 1 if config.burst is None else config.burst.most
        closing = [
            (knob.set_line(config.names), {"n": 0, "value": knob.closing})
            for knob in reversed(config.knobs.values())
            if knob.closing is not None
        ]
        told = [*closing, *((line, {"n": 0}) for line in self._safe)]
        safe_states = [_safe_state(config, line, values) for line, values in told]
        # Without lines of a safe state there is nothing that it could do.
        self._guard = Guard(safe_states, sorted(self.resources)) if safe_states else None
        self._numbers = itertools.count(1)
        self._is_on = self._is_set_up = False

    # ---- hooks ----------------------------------------------------------------------------------

    def _open(self) -> ReservoirSpec:
        for instrument in self._instruments.values():
            instrument.open()
        if self._guard is not None:
            self._guard.start()
        self._is_on = True
        self._set_up()
        return self._config.spec(", ".join(_serial(one.who) for one in self._instruments.values() if one.who))

    def _close(self) -> None:
        is_safe = False
        try:
            if self._is_on:
                self._is_on = False
                self._make_safe()
            is_safe = True
        finally:
            for instrument in self._instruments.values():
                instrument.close()
            if self._guard is not None:
                # What could not be done here is left to the guard, which may need the ports.
                (self._guard.stop if is_safe else self._guard.abandon)()

    def _reset(self, batch: int) -> None:
        try:
            self._expect_guard()
            if not self._is_set_up:
                self._set_up()
                for name, value in self.knobs.items():
                    self._turned[name].turn(value)
            self._send(self._rest)
            self._expect_no_errors(_LEFT_OVER_S)
        except BaseException as error:
            self._make_safe_after(error)
            raise

    def _check_inputs(self, u: Any) -> None:
        if self._config.continuity == "free_running" and self._config.burst is not None and u.shape[1] > self._most:
            raise NotSupported(
                f"{self.name} is free running and takes at most {self._most} steps after a reset, not {u.shape[1]}: "
                "between two lists of burst.most points it goes on without inputs"
            )

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        driven, nodes = self._config.scaling.apply(u[0]), self._config.nodes
        states, done = np.empty((1, len(driven), nodes)), 0
        try:
            self._expect_guard()
            pace = _Pace(self._config.period_s, self.counters, self.refuse_stopped)
            while done < len(driven):
                chunk = driven[done : done + self._most]
                self.look_at_monitors(states[:, :done])
                pace.begin(len(chunk))
                states[0, done : done + len(chunk)] = self._driven(chunk, pace)
                done += len(chunk)
            # A closed loop of single steps is looked at when it is reset.
            self._expect_no_errors(_LEFT_OVER_S if len(driven) > self._most else 0.0)
        except BaseException as error:
            self._make_safe_after(error)
            if isinstance(error, DeviceError):
                # Whatever came unasked, or was refused in between, may have been there at any step.
                done = 0 if isinstance(error, Unasked) or done == len(driven) else done
                error.steps_done, error.states = done, states[:, :done]
            raise
        return states

    def _emergency_stop(self) -> None:
        """The guard has connections of its own, where instruments take more than one."""
        if self._guard is None:
            raise NotSupported(f"{self.name} has no `safe:`, the lines that bring it to its safe state")
        self._guard.abandon()

    def read_back(self) -> dict[str, Any]:
        """Who the instruments say they are."""
        return {name or "instrument": one.who for name, one in self._instruments.items() if one.who}

    def _settings(self) -> dict[str, Any]:
        return {"instruments": {name or one.address: one.who for name, one in self._instruments.items()}}

    # ---- a step ---------------------------------------------------------------------------------

    def _driven(self, driven: np.ndarray, pace: _Pace) -> np.ndarray:
        """States (steps, nodes) of scaled inputs (steps, inputs): of one step, or of a burst."""
        steps, config = len(driven), self._config
        values = {"u": (driven[0] if config.burst is None else driven.T).tolist(), "steps": steps}
        parts = []
        for line in self._step:
            if line.at_s is not None:
                pace.wait_until(line.at_s)
            if (reading := self._told(line, values)) is None:
                continue
            if line.saturated is not None:
                self.counters.saturations += line.saturated.count(reading)
            if len(reading.states) % steps:
                raise ProtocolError(
                    f"{self.name}: {line.template.text!r} gave {len(reading.states)} numbers for {steps} points"
                )
            parts.append(np.reshape(reading.states, (steps, -1)))
        states = np.concatenate(parts, axis=1)
        if states.shape[1] != config.nodes:
            raise ProtocolError(f"{self.name}: a step gave {states.shape[1]} numbers, and nodes is {config.nodes}")
        return config.state_scale * states

    def _told(self, line: Line, values: dict[str, Any], passed: Passed | None = None) -> Reading | None:
        """Send a line, and read its answer, if it is read. `passed` checks what is written, by default as an input."""
        values["n"] = next(self._numbers)
        text = line.template.filled(values, passed or self._limits.passed)
        instrument = self._instruments[line.to]
        if not line.asks:
            instrument.write(text)
            done = self._config.done_line(line.to)
            if line.is_left and done:
                try:
                    instrument.ask(done)
                except DeviceTimeout as error:
                    error.add_note(f'if it knows no {done}, say `done: ""` and give the next line an `at_s`')
                    raise
            return None
        asked = f"{instrument.address}: {text!r}"
        if line.block is not None:
            numbers = instrument.ask_block(text, line.block)
            return named(numbers, line.names, asked, f"a block of {len(numbers)} numbers")
        answer = instrument.ask(text)
        if line.answer is None:
            return None
        try:
            return line.answer.read(answer, values, asked)
        except DeviceError:
            # It may have been the answer to another line.
            instrument.close()
            raise

    def _send(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._told(line, {})

    # ---- knobs and monitors ---------------------------------------------------------------------

    def _knob(self, name: str, knob: CommandKnob) -> Knob:
        config = self._config
        line, question = knob.set_line(config.names), knob.read_line(config.names)

        def write(value: float) -> None:
            self._told(line, {"value": value}, knob.passed)
            self._instruments[line.to].check_errors()

        return Knob(name, knob, write, None if question is None else lambda: self._number(question))

    def _monitor(self, name: str, monitor: CommandMonitor) -> Monitor:
        line = monitor.line(self._config.names)
        return Monitor(name, monitor, lambda: self._number(line))

    def _number(self, line: Line) -> float:
        reading = self._told(line, {})
        if reading is None or len(reading.states) != 1:
            raise ProtocolError(f"{self._instruments[line.to].address}: {line.template.text!r} gave no single number")
        return reading.states[0]

    # ---- set up, and safe -----------------------------------------------------------------------

    def _set_up(self) -> None:
        for name, instrument in self._instruments.items():
            instrument.open()
            # What an earlier owner did wrong is no fault of these lines.
            instrument.forget_errors()
            self._send(self._config.setup_lines(name))
            instrument.check_errors()
        self._is_set_up = True

    def _expect_no_errors(self, within_s: float) -> None:
        """Raise what stands in error queues, and `Unasked` for what comes within so long that nobody asked for."""
        for instrument in self._instruments.values():
            instrument.check_errors()
            instrument.expect_silence(within_s)

    def _expect_guard(self) -> None:
        if self._guard is not None:
            self._guard.expect_alive()

    def _make_safe_after(self, error: BaseException) -> None:
        try:
            self._make_safe()
        except ReservoirError as failed:
            error.add_note(f"the safe state could not be reached: {failed}")

    def _make_safe(self) -> None:
        """Send all lines of the safe state, whatever becomes of each. Raises the first error."""
        self._is_set_up = False
        first: ReservoirError | None = None
        told = {line.to: self._instruments[line.to] for line in self._safe}
        checks = [instrument.check_errors for instrument in told.values()]
        for attempt in [*((lambda line=line: self._send([line])) for line in self._safe), *checks]:
            try:
                attempt()
            except ReservoirError as error:
                first = first or error
        if first is not None:
            raise DeviceFault(f"{self.name}: {first}") from first


class _Pace:
    """When steps and lines are due. What comes late is counted as an underrun, once for each step."""

    def __init__(self, period_s: float | None, counters: Counters, look: Callable[[], None]) -> None:
        self._period_s, self._counters, self._look = period_s, counters, look
        self._began = time.monotonic()
        self._due: float | None = None
        self._is_late = False

    def begin(self, steps: int) -> None:
        """Wait until so many steps are due, and begin them."""
        self._is_late = False
        if self._due is None:
            self._look()
            self._began = time.monotonic()
        else:
            self._wait(self._due)
            # After a late step the next ones do not hurry.
            self._began = time.monotonic() if self._is_late else self._due
        if self._period_s is not None:
            self._due = self._began + steps * self._period_s

    def wait_until(self, at_s: float) -> None:
        """Until so long after the step began."""
        self._wait(self._began + at_s)

    def _wait(self, due: float) -> None:
        self._look()
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
            self._look()
        if time.monotonic() - due > _JITTER_S + _JITTER * (self._period_s or 0.0) and not self._is_late:
            self._is_late = True
            self._counters.underruns += 1


def _serial(who: str) -> str:
    """The serial number in an answer to `*IDN?` (maker, model, serial number, version), or all of another answer."""
    fields = who.split(",")
    return fields[2].strip() if len(fields) == len(("maker", "model", "serial", "version")) else who.strip()


def _safe_state(config: CommandsConfig, line: Line, values: Values) -> SafeState:
    """A line of the safe state as the guard sends it."""
    one = config.all_instruments[line.to]
    return SafeState(
        config.address_of(line.to),
        (line.template.filled(values),),
        # Another instrument there is brought to this state, too, and nobody waits for its reasons.
        one.model_copy(update={"identity": "", "errors": ""}),
        answered=line.asks,
        confirm=one.errors or config.done_line(line.to),
    )
