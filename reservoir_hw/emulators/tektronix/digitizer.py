"""A Tektronix MSO54 (4/5/6 Series MSO Programmer Manual), as far as records of its analog inputs go.

What the manual leaves open, or what is simpler here:

- Sample rates are 6.25 GSa/s divided by 1, 2, 5, 10, 20 …; the nearest one is taken. In automatic mode it is the
  highest with which the record has at most 1,000,000 points.
- The converter spans 10.24 divisions. It has 8 bits at 6.25 GSa/s and 12 below. The mode HIRes has up to 16,
  but nothing is averaged.
- A value beyond a limit becomes the limit, and is an event, too (222).
- A new acquisition leaves the record before it in place until its own is complete.
- `WFMOutpre:XZEro?` does not know where between two samples the bench's trigger came.
- Not emulated, and so errors: AC coupling, limits of the bandwidth, modes other than SAMple and HIRes, triggers other
  than edges, digital channels, reference and math waveforms, encodings other than ASCII and signed integers, `DESE`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from reservoir_hw.emulators.bench import Acquisition, VirtualBench
from reservoir_hw.emulators.scpi.arguments import Boolean, Integer, Number, definite_block
from reservoir_hw.emulators.scpi.messages import ScpiError
from reservoir_hw.emulators.scpi.tree import command, constant, query, setting
from reservoir_hw.emulators.tektronix.oscilloscope import Choice, ExecutionError, Oscilloscope, RunOrStop, Word
from reservoir_hw.emulators.tektronix.record import (
    DIVISION_CODES,
    HIGHEST_RATE_HZ,
    LONGEST_RECORD,
    LOWEST_RATE_HZ,
    SHORTEST_RECORD,
    TIME_DIVISIONS,
    Input,
    Record,
    TimeBase,
    converted,
)

# In mode AUTO, so long after arming the instrument triggers itself.
AUTO_TRIGGER_S = 0.05
BANDWIDTH_HZ = 2e9
AUXILIARY_RANGE_V = 8.0
CHANNELS = tuple(f"CH{number}" for number in range(1, 5))
CHANNEL = "CH{channel:1-4}"
AUXILIARY = "AUXiliary"
_BINARY = {"RIBinary": "MSB", "SRIbinary": "LSB"}


def _range(low: str, high: str) -> Any:
    """A number within limits that are properties of its channel."""
    return Number(
        "V",
        lambda scope, channel: getattr(scope.channel(channel), low),
        lambda scope, channel: getattr(scope.channel(channel), high),
        clips=True,
    )


@dataclass
class _Settings:
    inputs: dict[int, Input] = field(default_factory=lambda: {n: Input(on=n == 1) for n in range(1, 5)})
    time: TimeBase = field(default_factory=TimeBase)
    trigger_mode: str = "AUTO"
    source: str = CHANNELS[0]
    slope: str = "RISe"
    auxiliary_level_v: float = 0.0
    mode: str = "SAMple"
    stop_after: str = "RUNSTop"


@dataclass
class _Transfer:
    """`*RST` leaves it as it is."""

    source: str = CHANNELS[0]
    ascii: bool = False
    byte_order: str = "MSB"
    width: int = 1
    start: int = 1
    stop: int = 2500


def _settings(scope: Any) -> _Settings:
    return scope._set


def _time(scope: Any) -> TimeBase:
    return scope._set.time


def _input(scope: Any, *suffixes: int) -> Input:
    return scope.channel(suffixes[-1])


# After a change, what is being acquired begins again.
scope_setting = partial(setting, of=_settings, changed=lambda scope: scope._changed())
time_setting = partial(setting, of=_time, changed=lambda scope: scope._changed())
input_setting = partial(setting, of=_input, changed=lambda scope, *_: scope._changed())
settled_setting = partial(setting, of=_input, changed=lambda scope, number: scope._settle(number))
transfer_setting = partial(setting, of=lambda scope: scope._transfer)


class Mso54(Oscilloscope):
    """The oscilloscope on a bench, whose inputs 1 to 4 are its channels.

    Args:
        bench: What it measures.
        auxiliary_input: It has an input for triggers, as a MSO58LP has.
    """

    identity = "TEKTRONIX,MSO54,C000002,CF:91.1CT FV:2.0.3.950"

    def __init__(self, bench: VirtualBench, *, auxiliary_input: bool = False) -> None:
        super().__init__()
        self._bench = bench
        self._has_auxiliary = auxiliary_input
        self._state = threading.RLock()
        self._transfer = _Transfer()
        self.reset()

    def channel(self, number: int) -> Input:
        """The settings of a channel."""
        return self._set.inputs[number]

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """The default setup: channel 1 is on, and the instrument runs and triggers itself."""
        with self._state:
            self._set = _Settings()
            self._record: Record | None = None
            self._run()

    def operation_complete(self, timeout_s: float) -> bool:
        """A single acquisition is waited for."""
        if not self._single():
            return True
        self._bench.capture(timeout_s)
        self._look()
        return not self._single()

    # ---- acquisition ----------------------------------------------------------------------------

    def _single(self) -> bool:
        return self._running and self._set.stop_after == "SEQuence"

    def _run(self) -> None:
        with self._state:
            self._running, self._acquired = True, 0
            self._arm()

    def _arm(self) -> None:
        settings = self._set
        external = settings.source == AUXILIARY
        number = 0 if external else int(settings.source[-1])
        self._acquisition = Acquisition(
            rate_hz=settings.time.rate_hz,
            samples=settings.time.points,
            first_s=settings.time.first_s,
            source="external" if external else number,
            level_v=settings.auxiliary_level_v if external else settings.inputs[number].level_v,
            slope="rising" if settings.slope == "RISe" else "falling",
            channels=[number for number, channel in settings.inputs.items() if channel.on],
        )
        self._armed_at = time.monotonic()
        self._bench.arm(self._acquisition)

    def _changed(self) -> None:
        """What is being acquired begins again with new settings."""
        with self._state:
            if self._running:
                self._arm()

    def _look(self) -> None:
        """Take the record if the trigger has come."""
        with self._state:
            if not self._running:
                return
            if self._set.trigger_mode == "AUTO" and time.monotonic() > self._armed_at + AUTO_TRIGGER_S:
                self._bench.force()
            volts = None if self._bench.armed else self._bench.capture(0)
            if volts is None:
                return
            seen, high_resolution = self._acquisition, self._set.mode == "HIRes"
            self._record = converted(volts, self._set.inputs, seen.rate_hz, seen.first_s, high_resolution)
            self._acquired += 1
            self._running = self._set.stop_after == "RUNSTop"
            self._changed()

    @command("ACQuire:STATE", RunOrStop())
    def set_state(self, run: bool) -> None:
        """`ACQuire:STATE`."""
        if run:
            self._run()
            return
        self._look()
        with self._state:
            self._running = False
            self._bench.disarm()

    @query("ACQuire:STATE")
    def state(self) -> bool:
        """`ACQuire:STATE?`."""
        self._look()
        return self._running

    stop_after = setting("ACQuire:STOPAfter", Choice("RUNSTop", "SEQuence"), "stop_after", of=_settings)
    mode = scope_setting("ACQuire:MODe", Choice("SAMple", "HIRes"), "mode")

    @query("ACQuire:NUMACq")
    def acquired(self) -> int:
        """`ACQuire:NUMACq?`: how many acquisitions there were since it was started."""
        self._look()
        return self._acquired

    highest_rate = constant("ACQuire:MAXSamplerate", HIGHEST_RATE_HZ)

    @query("BUSY")
    def busy(self) -> bool:
        """`BUSY?`: whether a single acquisition goes on."""
        self._look()
        return self._single()

    # ---- channels -------------------------------------------------------------------------------

    view = input_setting("DISplay:WAVEView{view:1-1}:" + CHANNEL + ":STATE", Boolean(), "on")
    display = input_setting("DISplay:GLObal:" + CHANNEL + ":STATE", Boolean(), "on")
    selected = input_setting("SELect:" + CHANNEL, Boolean(), "on")
    """Only channels that are on are recorded."""
    scale = settled_setting(CHANNEL + ":SCAle", _range("lowest_scale_v", "highest_scale_v"), "scale_v")
    """Of a division."""
    offset = settled_setting(CHANNEL + ":OFFSet", _range("lowest_offset_v", "highest_offset_v"), "offset_v")
    """What stands at the position."""
    position = settled_setting(CHANNEL + ":POSition", Number((), -5.0, 5.0, clips=True), "position")
    """Divisions above the middle of the screen."""

    @command(CHANNEL + ":TERmination", Number("OHM", 50.0, 1e6))
    def set_termination(self, channel: int, ohm: float) -> None:
        """`CH<x>:TERmination`: 50 or 1E6. What loads an output is the bench's affair; the ranges are others."""
        if ohm not in (50.0, 1e6):
            raise ScpiError(-224)
        self.channel(channel).termination_ohm = ohm
        self._settle(channel)

    @query(CHANNEL + ":TERmination")
    def termination(self, channel: int) -> float:
        """`CH<x>:TERmination?`."""
        return self.channel(channel).termination_ohm

    coupling = constant(CHANNEL + ":COUPling", Word("DC"), Choice("DC"))
    bandwidth = constant(CHANNEL + ":BANdwidth", BANDWIDTH_HZ, Choice("FULl"))

    @query(CHANNEL + ":CLIPping")
    def clipping(self, channel: int) -> bool:
        """`CH<x>:CLIPping?`: whether the last record reached the ends of the converter."""
        self._look()
        return bool(self._record and self._record.clipped.get(channel))

    probe_type = constant(CHANNEL + ":PROBETYPE", Word("ANALOG"))
    probe_name = constant(CHANNEL + ":PRObe:ID:TYPe", '"No Probe Detected"')
    """None is connected."""
    probe_serial = constant(CHANNEL + ":PRObe:ID:SERnumber", '"N/A"')

    def _settle(self, channel: int) -> None:
        self.channel(channel).settle()
        self._changed()

    # ---- time base ------------------------------------------------------------------------------

    @command("HORizontal:MODe", Choice("AUTO", "MANual"))
    def set_time_mode(self, mode: str) -> None:
        """`HORizontal:MODe`."""
        time_base = self._set.time
        time_base.manual = mode == "MANual"
        if mode == "AUTO":
            time_base.set_duration(time_base.duration_s)
            self._changed()

    @query("HORizontal:MODe")
    def time_mode(self) -> Word:
        """`HORizontal:MODe?`."""
        return Word("MANual" if self._set.time.manual else "AUTO")

    follower = setting(
        "HORizontal:MODe:MANual:CONFIGure", Choice("HORIZontalscale", "RECORDLength"), "follower", of=_time
    )
    """What follows when the sample rate changes."""

    @command("HORizontal:SAMPLERate", Number((), LOWEST_RATE_HZ, HIGHEST_RATE_HZ, clips=True))
    @command("HORizontal:MODe:SAMPLERate", Number((), LOWEST_RATE_HZ, HIGHEST_RATE_HZ, clips=True))
    def set_rate(self, rate_hz: float) -> None:
        """`HORizontal:MODe:SAMPLERate`, in manual mode."""
        self._expect_manual()
        self._set.time.set_rate(rate_hz)
        self._changed()

    @query("HORizontal:SAMPLERate")
    @query("HORizontal:MODe:SAMPLERate")
    def rate(self) -> float:
        """`HORizontal:MODe:SAMPLERate?`."""
        return self._set.time.rate_hz

    @command("HORizontal:RECOrdlength", Integer((), SHORTEST_RECORD, LONGEST_RECORD, clips=True))
    @command("HORizontal:MODe:RECOrdlength", Integer((), SHORTEST_RECORD, LONGEST_RECORD, clips=True))
    def set_points(self, points: int) -> None:
        """`HORizontal:MODe:RECOrdlength`, in manual mode. The scale follows."""
        self._expect_manual()
        self._set.time.points = points
        self._changed()

    @query("HORizontal:RECOrdlength")
    @query("HORizontal:MODe:RECOrdlength")
    def points(self) -> int:
        """`HORizontal:MODe:RECOrdlength?`."""
        return self._set.time.points

    @command("HORizontal:SCAle", Number("S", 200e-12, 1000.0, clips=True))
    @command("HORizontal:MODe:SCAle", Number("S", 200e-12, 1000.0, clips=True))
    def set_time_scale(self, seconds: float) -> None:
        """`HORizontal:SCAle`: of a division. The record length follows, and in automatic mode the rate."""
        self._set.time.set_duration(seconds * TIME_DIVISIONS)
        self._changed()

    @query("HORizontal:SCAle")
    @query("HORizontal:MODe:SCAle")
    def time_scale(self) -> float:
        """`HORizontal:SCAle?`."""
        return self._set.time.duration_s / TIME_DIVISIONS

    @command("HORizontal:POSition", Number((), 0.0, 100.0, clips=True))
    def set_trigger_position(self, percent: float) -> None:
        """`HORizontal:POSition`: of the trigger in the record, without a delay."""
        self._set.time.position = percent
        self._changed()

    @query("HORizontal:POSition")
    def trigger_position(self) -> float:
        """`HORizontal:POSition?`: with a delay, it is the middle."""
        return 50.0 if self._set.time.delayed else self._set.time.position

    delayed = time_setting("HORizontal:DELay:MODe", Boolean(), "delayed")
    """The middle of the record lies `DELay:TIMe` after the trigger."""
    delay = time_setting("HORizontal:DELay:TIMe", Number("S", -1000.0, 1000.0, clips=True), "delay_s")

    def _expect_manual(self) -> None:
        if not self._set.time.manual:
            raise ScpiError(-221)

    # ---- trigger --------------------------------------------------------------------------------

    @command("TRIGger", Choice("FORCe"))
    def force(self, what: str) -> None:
        """`TRIGger FORCe`."""
        self._bench.force()

    @query("TRIGger:STATE")
    def trigger_state(self) -> Word:
        """`TRIGger:STATE?`."""
        self._look()
        return Word("READy" if self._running else "SAVe")

    trigger_type = constant("TRIGger:A:TYPe", Word("EDGE"), Choice("EDGE"))
    trigger_mode = scope_setting("TRIGger:A:MODe", Choice("AUTO", "NORMal"), "trigger_mode")

    @command("TRIGger:A:EDGE:SOUrce", Choice(*CHANNELS, AUXILIARY))
    def set_source(self, source: str) -> None:
        """`TRIGger:A:EDGE:SOUrce`."""
        if source == AUXILIARY and not self._has_auxiliary:
            raise ScpiError(-224)
        self._set.source = source
        self._changed()

    @query("TRIGger:A:EDGE:SOUrce")
    def source(self) -> Word:
        """`TRIGger:A:EDGE:SOUrce?`."""
        return Word(self._set.source)

    slope = scope_setting("TRIGger:A:EDGE:SLOpe", Choice("RISe", "FALL"), "slope")
    trigger_coupling = constant("TRIGger:A:EDGE:COUPling", Word("DC"), Choice("DC"))
    level = input_setting("TRIGger:A:LEVel:" + CHANNEL, _range("lowest_level_v", "highest_level_v"), "level_v")

    @command("TRIGger:AUXLevel", Number("V", -AUXILIARY_RANGE_V, AUXILIARY_RANGE_V, clips=True))
    def set_auxiliary_level(self, volts: float) -> None:
        """`TRIGger:AUXLevel`."""
        if not self._has_auxiliary:
            raise ScpiError(-241, "Hardware missing")
        self._set.auxiliary_level_v = volts
        self._changed()

    @query("TRIGger:AUXLevel")
    def auxiliary_level(self) -> float:
        """`TRIGger:AUXLevel?`."""
        return self._set.auxiliary_level_v

    # ---- waveforms ------------------------------------------------------------------------------

    data_source = transfer_setting("DATa:SOUrce", Choice(*CHANNELS), "source")

    @query("DATa:SOUrce:AVAILable")
    def available(self) -> str:
        """`DATa:SOUrce:AVAILable?`: what has been acquired."""
        self._look()
        return ",".join(f"CH{number}" for number in self._record.codes) if self._record else "NONE"

    @command("DATa:ENCdg", Choice("ASCIi", *_BINARY))
    def set_data_encoding(self, encoding: str) -> None:
        """`DATa:ENCdg`."""
        self._transfer.ascii = encoding == "ASCIi"
        if encoding in _BINARY:
            self._transfer.byte_order = _BINARY[encoding]

    @query("DATa:ENCdg")
    def data_encoding(self) -> Word:
        """`DATa:ENCdg?`."""
        if self._transfer.ascii:
            return Word("ASCIi")
        return Word("RIBinary" if self._transfer.byte_order == "MSB" else "SRIbinary")

    @command("WFMOutpre:ENCdg", Choice("ASCii", "BINary"))
    def set_encoding(self, encoding: str) -> None:
        """`WFMOutpre:ENCdg`."""
        self._transfer.ascii = encoding == "ASCii"

    @query("WFMOutpre:ENCdg")
    def encoding(self) -> Word:
        """`WFMOutpre:ENCdg?`."""
        return Word("ASCii" if self._transfer.ascii else "BINary")

    representation = constant("WFMOutpre:BN_Fmt", Word("RI"), Choice("RI"))
    byte_order = transfer_setting("WFMOutpre:BYT_Or", Choice("LSB", "MSB"), "byte_order")
    width = transfer_setting("DATa:WIDth", Integer((), 1, 2), "width")
    byte_count = transfer_setting("WFMOutpre:BYT_Nr", Integer((), 1, 2), "width")
    """Bytes of a point."""

    @query("WFMOutpre:BIT_Nr")
    def bit_count(self) -> int:
        """`WFMOutpre:BIT_Nr?`."""
        return 8 * self._transfer.width

    start = transfer_setting("DATa:STARt", Integer((), 1), "start")
    """The first point that is sent."""
    stop = transfer_setting("DATa:STOP", Integer((), 1), "stop")
    """The last point that is sent."""

    @query("WFMOutpre:NR_Pt")
    def sent_points(self) -> int:
        """`WFMOutpre:NR_Pt?`."""
        first, end = self._sent()
        return end - first

    @query("WFMOutpre:PT_Off")
    def trigger_point(self) -> int:
        """`WFMOutpre:PT_Off?`: the point after the trigger, from the first that is sent."""
        return self._taken()[0].trigger_point - self._sent()[0]

    @query("WFMOutpre:XINcr")
    def time_step(self) -> float:
        """`WFMOutpre:XINcr?`."""
        return 1 / self._taken()[0].rate_hz

    @query("WFMOutpre:XZEro")
    def trigger_time(self) -> float:
        """`WFMOutpre:XZEro?`: of the point after the trigger."""
        record, _ = self._taken()
        return record.first_s + record.trigger_point / record.rate_hz

    time_unit = constant("WFMOutpre:XUNit", '"s"')

    @query("WFMOutpre:YMUlt")
    def volt_step(self) -> float:
        """`WFMOutpre:YMUlt?`: volts of a code."""
        record, number = self._taken()
        return record.scales[number][0] / DIVISION_CODES[self._transfer.width]

    @query("WFMOutpre:YOFf")
    def code_offset(self) -> float:
        """`WFMOutpre:YOFf?`."""
        self._taken()
        return 0.0

    @query("WFMOutpre:YZEro")
    def volt_offset(self) -> float:
        """`WFMOutpre:YZEro?`: volts of the code 0."""
        record, number = self._taken()
        return record.scales[number][1]

    volt_unit = constant("WFMOutpre:YUNit", '"V"')

    @query("CURVe")
    def curve(self) -> bytes:
        """`CURVe?`."""
        record, number = self._taken()
        first, end = self._sent()
        codes = record.codes[number][first:end]
        if self._transfer.width == 1:
            codes = codes >> 8
        if self._transfer.ascii:
            return ",".join(map(str, codes.tolist())).encode()
        order = ">" if self._transfer.byte_order == "MSB" else "<"
        return definite_block(codes.astype(f"{order}i{self._transfer.width}").data)

    def _taken(self) -> tuple[Record, int]:
        """The record, and the channel whose points are sent. Raises `ScpiError` if there are none."""
        self._look()
        number = int(self._transfer.source[-1])
        if self._record is None or number not in self._record.codes:
            raise ExecutionError(2244, "Waveform requested is not active")
        return self._record, number

    def _sent(self) -> tuple[int, int]:
        """The first point that is sent, and the one behind the last."""
        record, number = self._taken()
        points = len(record.codes[number])
        first, last = sorted((self._transfer.start, self._transfer.stop))
        return min(first, points) - 1, min(last, points)
