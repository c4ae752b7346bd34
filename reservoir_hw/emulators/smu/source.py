"""A source-measure unit as of the Keithley 2400: it sets volts, and measures the current.

Of the 2400, its voltage source is here, with compliance, list sweeps and buffer. Its current source is not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from reservoir_hw.emulators.bench import EventLog
from reservoir_hw.emulators.physics.devices import Film, FilmConfig
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.messages import (
    Argument,
    Boolean,
    Integer,
    Keyword,
    ListOf,
    Number,
    Numbers,
    ScpiError,
    String,
)
from reservoir_hw.emulators.scpi.tree import Pair, command, constant, pair, query, reading, setting

Clock = Literal["steps", "wall"]
STEP_S = 0.05
SOURCE, GATE = 1, 2
"""Their channels in the log."""


class FilmBench:
    """Source, switch and gate on a film. Methods may be called from any thread.

    The log has "on" and "off" of the source, and "level" with the volts of source and gate, whenever they are set.
    """

    def __init__(self, config: FilmConfig, clock: Clock = "steps", log: Path | None = None) -> None:
        self.log = EventLog(log)
        self.film = Film(config)
        self.closed: list[int] = []
        """The electrodes that are connected, counted from 0."""
        self.gate_v = 0.0
        self._clock: Clock = clock
        self._volts, self._is_on = 0.0, False
        self._changed_s = self._began_s = time.monotonic()
        self._lock = threading.RLock()
        # The file may say that an earlier process left it on.
        self._write("off", SOURCE, 0.0)

    @property
    def source(self) -> tuple[bool, float]:
        """Whether the output is on, and the volts that it is set to."""
        return self._is_on, self._volts

    def set_source(self, volts: float) -> None:
        """The source is set to these volts. On the clock of steps, a step passes if it is on."""
        with self._lock:
            self._live()
            self._volts = volts
            if self._is_on:
                self._write("level", SOURCE, volts)
                if self._clock == "steps":
                    self.film.advance(volts, STEP_S)

    def switch(self, on: bool) -> None:
        """The output of the source is on, or off."""
        with self._lock:
            self._live()
            # What is switched off twice says so twice: the log shows what came last.
            if on != self._is_on or not on:
                self._is_on = on
                self._write("on" if on else "off", SOURCE, self._volts if on else 0.0)
                if self._clock == "steps" and not on:
                    self.film.rest()

    def set_gate(self, volts: float) -> None:
        """The gate is at these volts."""
        with self._lock:
            self._live()
            self.gate_v = volts
            self._write("level", GATE, volts)
            self.film.set_gate(volts)

    def connect(self, electrodes: Sequence[int]) -> None:
        """These electrodes and no others are connected to the source."""
        with self._lock:
            self._live()
            self.closed = [*electrodes]

    def measure(self) -> tuple[float, float]:
        """The current through the connected electrodes now, with the noise of a reading, and their conductance."""
        with self._lock:
            self._live()
            conductance_s = sum(self.film.conductance_s(electrode) for electrode in self.closed)
            volts = self._volts if self._is_on else 0.0
            return volts * conductance_s + self.film.noise_a(), conductance_s

    def seconds(self) -> float:
        """Of the film's clock."""
        return self.film.age_s if self._clock == "steps" else time.monotonic() - self._began_s

    def _live(self) -> None:
        """What has passed on the wall since the last change."""
        now = time.monotonic()
        if self._clock == "wall":
            self.film.advance(self._volts if self._is_on else 0.0, now - self._changed_s)
        self._changed_s = now

    def _write(self, event: str, channel: int, volts: float) -> None:
        self.log.write(event, channel, self.seconds(), volts=volts)


_ELEMENTS = ("VOLT", "CURR", "RES", "TIME", "STAT")
_NOT_MEASURED = 9.91e37
_LARGEST_V = 210.0
_LONGEST_LIST, _LONGEST_BUFFER, _MOST_TRIGGERS = 100, 2500, 2500
# Of the status word of a reading.
_OVER, _COMPLIANCE, _MEASURED_BY = 0x1, 0x8, 0x1000
# Of the register of measurement events, and of the status byte.
_READING, _BUFFER_FULL, _MEASUREMENT_SUMMARY = 0x40, 0x200, 0x01
_VOLT = "SOURce{1-1}:VOLTage"
_VOLTS = Number("V", low=-_LARGEST_V, high=_LARGEST_V)
_LEVEL = _VOLT + "[:LEVel][:IMMediate][:AMPLitude]"
_PROTECTION = "[SENSe{1-1}:]CURRent[:DC]:PROTection"


def unused(*settings: tuple[str, Argument, Any]) -> Pair:
    """Settings that change nothing on this bench: of each the header, what it accepts, and the default."""

    def declared(header: str, argument: Argument, default: Any) -> Pair:
        def change(meter: Any, *given: Any) -> None:
            meter.plain[header] = given[-1]

        return pair(header, argument, change, lambda meter, *suffixes: meter.plain.get(header, default))

    return Pair(tuple(one for each in settings for one in declared(*each).scpi_headers))


def ignored(header: str, *arguments: Argument) -> Callable[..., None]:
    """A command that changes nothing on this bench."""
    return command(header, *arguments)(lambda *given: None)


def measuring(header: str, quantity: str) -> Callable[..., str]:
    """A query that chooses what is measured, and reads it."""

    def read(meter: Any) -> str:
        meter._measured = {quantity}
        return meter.read()

    return query(header)(read)


def counting(header: str, attribute: str, *, beside: str) -> Pair:
    """How often it triggers: a number that is multiplied by another."""

    def change(meter: Any, count: int) -> None:
        if count * getattr(meter, beside) > _MOST_TRIGGERS:
            raise ScpiError(-221)
        setattr(meter, attribute, count)

    return pair(header, Integer(low=1, high=_MOST_TRIGGERS), change, lambda meter: getattr(meter, attribute))


class SourceMeter(ScpiDevice):
    """The instrument, on a bench."""

    identity = "KEITHLEY INSTRUMENTS INC.,MODEL 2400,1234567,C30   Mar 17 1999 09:29:29/A02  /K/J"
    number_format = "+.6E"

    def __init__(self, bench: FilmBench) -> None:
        super().__init__()
        self.plain: dict[str, Any] = {}
        self._bench = bench
        self._measurement_events = self._measurement_enable = 0
        self.reset()

    def reset(self) -> None:
        """`*RST`."""
        self._bench.switch(False)
        self._bench.set_source(0.0)
        self.plain.clear()
        self._elements = [*_ELEMENTS]
        self._measured = {"CURR"}
        self._compliance_a, self._list, self._mode = 105e-6, [0.0], "FIX"
        self._triggers = self._arms = 1
        self._readings: list[list[float]] = []
        self._buffer: list[list[float]] = []
        self._buffer_points, self._is_filled = 100, False

    def _own_summary(self) -> int:
        summary = bool(self._measurement_events & self._measurement_enable)
        return super()._own_summary() | (_MEASUREMENT_SUMMARY if summary else 0)

    # ---- output and source ----------------------------------------------------------------------

    set_output = command("OUTPut{1-1}[:STATe]", Boolean())(lambda self, on: self._bench.switch(on))

    output = query("OUTPut{1-1}[:STATe]")(lambda self: self._bench.source[0])

    @command("SOURce{1-1}:FUNCtion[:MODE]", Keyword("VOLTage", "CURRent"))
    def set_function(self, function: str) -> None:
        """`SOURce:FUNCtion`: a source of volts."""
        if function != "VOLT":
            raise ScpiError(-221, "Settings conflict; this bench has no source of current")

    function = constant("SOURce{1-1}:FUNCtion[:MODE]", "VOLT")

    set_level = command(_LEVEL, replace(_VOLTS, default=0.0))(lambda self, volts: self._bench.set_source(volts))

    level = query(_LEVEL)(lambda self: float(self._bench.source[1]))

    mode = setting(_VOLT + ":MODE", Keyword("FIXed", "LIST"), "_mode")
    """The level, or a list of levels."""

    @command("SOURce{1-1}:LIST:VOLTage", Numbers(low=-_LARGEST_V, high=_LARGEST_V))
    def set_list(self, volts: Any) -> None:
        """`SOURce:LIST:VOLTage`."""
        if len(volts) > _LONGEST_LIST:
            raise ScpiError(-223)
        self._list = volts.tolist()

    list_points = query("SOURce{1-1}:LIST:VOLTage:POINts")(lambda self: len(self._list))

    # ---- what is measured -----------------------------------------------------------------------

    @command("FORMat:ELEMents[:SENSe]", ListOf(Keyword("VOLTage", "CURRent", "RESistance", "TIME", "STATus")))
    def set_elements(self, elements: list[str]) -> None:
        """`FORMat:ELEMents`: what stands in a reading. The order stays."""
        self._elements = [element for element in _ELEMENTS if element in elements]

    elements = query("FORMat:ELEMents[:SENSe]")(lambda self: ",".join(self._elements))

    set_data_format = ignored("FORMat[:DATA]", Keyword("ASCii"))
    """Numbers are text."""

    @command("[SENSe{1-1}:]FUNCtion[:ON]", ListOf(String()))
    def set_measured(self, functions: list[str]) -> None:
        """`FUNCtion`: "CURR", "VOLT", "RES", with or without ":DC"."""
        names = {name.split(":")[0].upper()[:4] for name in functions}
        if not names <= {"CURR", "VOLT", "RES", "RESI"}:
            raise ScpiError(-224)
        self._measured |= {"RES" if name == "RESI" else name for name in names}

    @command("[SENSe{1-1}:]FUNCtion:ALL")
    def measure_all(self) -> None:
        """`FUNCtion:ALL`."""
        self._measured = {"CURR", "VOLT", "RES"}

    compliance = setting(_PROTECTION + "[:LEVel]", Number("A", low=-1.05, high=1.05), "_compliance_a", kept=abs)

    @query(_PROTECTION + ":TRIPped")
    def is_tripped(self) -> bool:
        """`CURRent:PROTection:TRIPped?`."""
        return self._bench.source[0] and abs(self._bench.measure()[0]) > self._compliance_a

    @query("READ")
    def read(self) -> str:
        """`READ?`: trigger, and the readings."""
        self.initiate()
        return self.fetch()

    measure_current = measuring("MEASure:CURRent[:DC]", "CURR")
    measure_voltage = measuring("MEASure:VOLTage[:DC]", "VOLT")
    measure_resistance = measuring("MEASure:RESistance", "RES")

    @query("FETCh")
    def fetch(self) -> str:
        """`FETCh?`: the last readings once more."""
        return self._as_text(self._readings)

    latest = query("[SENSe{1-1}:]DATA[:LATest]")(lambda self: self._as_text(self._readings[-1:]))
    """The last one of them."""

    # ---- trigger and buffer ---------------------------------------------------------------------

    @command("INITiate[:IMMediate]")
    def initiate(self) -> None:
        """`INITiate`: as many readings as triggers, in a list each at its next level."""
        if not self._bench.source[0]:
            raise ScpiError(803, "Not permitted with OUTPUT off")
        self._readings = []
        for number in range(self._triggers * self._arms):
            if self._mode == "LIST":
                self._bench.set_source(self._list[number % len(self._list)])
            self._readings.append(self._reading())
        self._measurement_events |= _READING
        if self._is_filled:
            self._buffer = (self._buffer + self._readings)[: self._buffer_points]
            if len(self._buffer) == self._buffer_points:
                self._measurement_events |= _BUFFER_FULL
                self._is_filled = False

    abort = ignored("ABORt")
    """It is idle already."""
    clear_trigger = ignored("TRIGger:CLEar")

    triggers = counting("TRIGger[:SEQuence{1-1}]:COUNt", "_triggers", beside="_arms")
    arms = counting("ARM[:SEQuence{1-1}]:COUNt", "_arms", beside="_triggers")

    @command("TRACe:CLEar")
    def clear_buffer(self) -> None:
        """`TRACe:CLEar`."""
        self._buffer = []

    @command("TRACe:POINts", Integer(low=1, high=_LONGEST_BUFFER))
    def set_buffer_points(self, points: int) -> None:
        """`TRACe:POINts`."""
        self._buffer_points, self._buffer = points, []

    buffer_points = reading("TRACe:POINts", "_buffer_points")

    buffered = query("TRACe:POINts:ACTual")(lambda self: len(self._buffer))

    set_feed = ignored("TRACe:FEED", Keyword("SENSe", "SENSe1"))
    """Readings."""

    @command("TRACe:FEED:CONTrol", Keyword("NEXT", "NEVer"))
    def set_feed_control(self, control: str) -> None:
        """`TRACe:FEED:CONTrol`: fill the buffer once, or never."""
        self._is_filled = control == "NEXT"

    buffer = query("TRACe:DATA")(lambda self: self._as_text(self._buffer))

    # ---- status ---------------------------------------------------------------------------------

    @command("STATus:PRESet")
    def preset_status(self) -> None:
        """`STATus:PRESet`."""
        self._measurement_enable = 0

    @command("STATus:MEASurement:ENABle", Integer(low=0, high=65535))
    def set_measurement_enable(self, mask: int) -> None:
        """`STATus:MEASurement:ENABle`."""
        self._measurement_enable = mask

    @query("STATus:MEASurement[:EVENt]")
    def measurement_events(self) -> int:
        """`STATus:MEASurement?` answers the register and clears it."""
        events, self._measurement_events = self._measurement_events, 0
        return events

    @command("*CLS")
    def common_clear_status(self) -> None:
        """`*CLS`, with the measurement events."""
        super().common_clear_status()
        self._measurement_events = 0

    # ---- settings that change nothing here ------------------------------------------------------

    plain_settings = unused(
        (_VOLT + ":RANGe", _VOLTS, 20.0),
        (_VOLT + ":RANGe:AUTO", Boolean(), True),
        ("SOURce{1-1}:DELay", Number("S", low=0.0, high=999.9999), 0.0),
        ("SOURce{1-1}:DELay:AUTO", Boolean(), True),
        ("SOURce{1-1}:CLEar:AUTO", Boolean(), False),
        ("[SENSe{1-1}:]CURRent[:DC]:RANGe[:UPPer]", Number("A", low=-1.05, high=1.05), 1e-4),
        ("[SENSe{1-1}:]CURRent[:DC]:RANGe:AUTO", Boolean(), True),
        ("[SENSe{1-1}:]CURRent[:DC]:NPLCycles", Number(low=0.01, high=10.0), 1.0),
        ("[SENSe{1-1}:]FUNCtion:CONCurrent", Boolean(), True),
        ("[SENSe{1-1}:]RESistance:MODE", Keyword("AUTO", "MANual"), "AUTO"),
        ("[SENSe{1-1}:]AVERage[:STATe]", Boolean(), False),
        ("[SENSe{1-1}:]AVERage:COUNt", Integer(low=1, high=100), 10),
        ("[SENSe{1-1}:]AVERage:TCONtrol", Keyword("REPeat", "MOVing"), "REP"),
        ("TRIGger:DELay", Number("S", low=0.0, high=999.9999), 0.0),
        ("TRIGger:SOURce", Keyword("IMMediate", "TLINk"), "IMM"),
        ("ARM:SOURce", Keyword("IMMediate", "BUS", "TIMer", "MANual"), "IMM"),
        ("OUTPut:SMODe", Keyword("HIMPedance", "NORMal", "ZERO", "GUARd"), "NORM"),
        ("SYSTem:RSENse", Boolean(), False),
        ("SYSTem:AZERo[:STATe]", Boolean(), True),
        ("DISPlay:ENABle", Boolean(), True),
        ("ROUTe:TERMinals", Keyword("FRONt", "REAR"), "FRON"),
    )

    # ---- how ------------------------------------------------------------------------------------

    def _reading(self) -> list[float]:
        """One reading, all elements."""
        bench = self._bench
        (current_a, conductance_s), (_, volts) = bench.measure(), bench.source
        status = _MEASURED_BY
        if abs(current_a) > self._compliance_a:
            # The source of volts becomes one of current.
            current_a = math.copysign(self._compliance_a, current_a)
            volts = current_a / conductance_s
            status |= _COMPLIANCE
        ohms = volts / current_a if "RES" in self._measured and current_a else _NOT_MEASURED
        measured = current_a if "CURR" in self._measured else _NOT_MEASURED
        return [volts, measured, ohms, bench.seconds(), float(status)]

    def _as_text(self, readings: list[list[float]]) -> str:
        if not readings:
            raise ScpiError(-230)
        chosen = [_ELEMENTS.index(element) for element in self._elements]
        return ",".join(f"{reading[at]:{self.number_format}}" for reading in readings for at in chosen)
