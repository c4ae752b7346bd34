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
from typing import Any

from reservoir_hw.emulators.bench import Acquisition, VirtualBench
from reservoir_hw.emulators.scpi.arguments import Boolean, Integer, Number, definite_block
from reservoir_hw.emulators.scpi.errors import ScpiError
from reservoir_hw.emulators.scpi.tree import command, query
from reservoir_hw.emulators.tektronix.inputs import Input
from reservoir_hw.emulators.tektronix.oscilloscope import Choice, ExecutionError, Oscilloscope, RunOrStop, Word
from reservoir_hw.emulators.tektronix.record import DIVISION_CODES, Record, converted
from reservoir_hw.emulators.tektronix.time_base import (
    HIGHEST_RATE_HZ,
    LONGEST_RECORD,
    LOWEST_RATE_HZ,
    SHORTEST_RECORD,
    TIME_DIVISIONS,
    TimeBase,
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

    @command("ACQuire:STOPAfter", Choice("RUNSTop", "SEQuence"))
    def set_stop_after(self, what: str) -> None:
        """`ACQuire:STOPAfter`."""
        self._set.stop_after = what

    @query("ACQuire:STOPAfter")
    def stop_after(self) -> Word:
        """`ACQuire:STOPAfter?`."""
        return Word(self._set.stop_after)

    @command("ACQuire:MODe", Choice("SAMple", "HIRes"))
    def set_mode(self, mode: str) -> None:
        """`ACQuire:MODe`."""
        self._set.mode = mode
        self._changed()

    @query("ACQuire:MODe")
    def mode(self) -> Word:
        """`ACQuire:MODe?`."""
        return Word(self._set.mode)

    @query("ACQuire:NUMACq")
    def acquired(self) -> int:
        """`ACQuire:NUMACq?`: how many acquisitions there were since it was started."""
        self._look()
        return self._acquired

    @query("ACQuire:MAXSamplerate")
    def highest_rate(self) -> float:
        """`ACQuire:MAXSamplerate?`."""
        return HIGHEST_RATE_HZ

    @query("BUSY")
    def busy(self) -> bool:
        """`BUSY?`: whether a single acquisition goes on."""
        self._look()
        return self._single()

    # ---- channels -------------------------------------------------------------------------------

    @command("DISplay:WAVEView{view:1-1}:" + CHANNEL + ":STATE", Boolean())
    def set_view(self, _view: int, channel: int, on: bool) -> None:
        """`DISplay:WAVEView:CH<x>:STATE`: only channels that are on are recorded."""
        self.set_display(channel, on)

    @query("DISplay:WAVEView{view:1-1}:" + CHANNEL + ":STATE")
    def view(self, _view: int, channel: int) -> bool:
        """`DISplay:WAVEView:CH<x>:STATE?`."""
        return self.channel(channel).on

    @command("DISplay:GLObal:" + CHANNEL + ":STATE", Boolean())
    @command("SELect:" + CHANNEL, Boolean())
    def set_display(self, channel: int, on: bool) -> None:
        """`DISplay:GLObal:CH<x>:STATE`."""
        self.channel(channel).on = on
        self._changed()

    @query("DISplay:GLObal:" + CHANNEL + ":STATE")
    @query("SELect:" + CHANNEL)
    def display(self, channel: int) -> bool:
        """`DISplay:GLObal:CH<x>:STATE?`."""
        return self.channel(channel).on

    @command(CHANNEL + ":SCAle", _range("lowest_scale_v", "highest_scale_v"))
    def set_scale(self, channel: int, volts: float) -> None:
        """`CH<x>:SCAle`: of a division."""
        self.channel(channel).scale_v = volts
        self._settle(channel)

    @query(CHANNEL + ":SCAle")
    def scale(self, channel: int) -> float:
        """`CH<x>:SCAle?`."""
        return self.channel(channel).scale_v

    @command(CHANNEL + ":OFFSet", _range("lowest_offset_v", "highest_offset_v"))
    def set_offset(self, channel: int, volts: float) -> None:
        """`CH<x>:OFFSet`: what stands at the position."""
        self.channel(channel).offset_v = volts
        self._settle(channel)

    @query(CHANNEL + ":OFFSet")
    def offset(self, channel: int) -> float:
        """`CH<x>:OFFSet?`."""
        return self.channel(channel).offset_v

    @command(CHANNEL + ":POSition", Number((), -5.0, 5.0, clips=True))
    def set_position(self, channel: int, divisions: float) -> None:
        """`CH<x>:POSition`: above the middle of the screen."""
        self.channel(channel).position = divisions
        self._settle(channel)

    @query(CHANNEL + ":POSition")
    def position(self, channel: int) -> float:
        """`CH<x>:POSition?`."""
        return self.channel(channel).position

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

    @command(CHANNEL + ":COUPling", Choice("DC"))
    def set_coupling(self, channel: int, coupling: str) -> None:
        """`CH<x>:COUPling`."""

    @query(CHANNEL + ":COUPling")
    def coupling(self, channel: int) -> Word:
        """`CH<x>:COUPling?`."""
        return Word("DC")

    @command(CHANNEL + ":BANdwidth", Choice("FULl"))
    def set_bandwidth(self, channel: int, bandwidth: str) -> None:
        """`CH<x>:BANdwidth`."""

    @query(CHANNEL + ":BANdwidth")
    def bandwidth(self, channel: int) -> float:
        """`CH<x>:BANdwidth?`."""
        return BANDWIDTH_HZ

    @query(CHANNEL + ":CLIPping")
    def clipping(self, channel: int) -> bool:
        """`CH<x>:CLIPping?`: whether the last record reached the ends of the converter."""
        self._look()
        return bool(self._record and self._record.clipped.get(channel))

    @query(CHANNEL + ":PROBETYPE")
    def probe_type(self, channel: int) -> Word:
        """`CH<x>:PROBETYPE?`."""
        return Word("ANALOG")

    @query(CHANNEL + ":PRObe:ID:TYPe")
    def probe_name(self, channel: int) -> str:
        """`CH<x>:PRObe:ID:TYPe?`: none is connected."""
        return '"No Probe Detected"'

    @query(CHANNEL + ":PRObe:ID:SERnumber")
    def probe_serial(self, channel: int) -> str:
        """`CH<x>:PRObe:ID:SERnumber?`."""
        return '"N/A"'

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

    @command("HORizontal:MODe:MANual:CONFIGure", Choice("HORIZontalscale", "RECORDLength"))
    def set_follower(self, what: str) -> None:
        """`HORizontal:MODe:MANual:CONFIGure`: what follows when the sample rate changes."""
        self._set.time.keeps_points = what == "HORIZontalscale"

    @query("HORizontal:MODe:MANual:CONFIGure")
    def follower(self) -> Word:
        """`HORizontal:MODe:MANual:CONFIGure?`."""
        return Word("HORIZontalscale" if self._set.time.keeps_points else "RECORDLength")

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

    @command("HORizontal:DELay:MODe", Boolean())
    def set_delayed(self, on: bool) -> None:
        """`HORizontal:DELay:MODe`: the middle of the record lies `DELay:TIMe` after the trigger."""
        self._set.time.delayed = on
        self._changed()

    @query("HORizontal:DELay:MODe")
    def delayed(self) -> bool:
        """`HORizontal:DELay:MODe?`."""
        return self._set.time.delayed

    @command("HORizontal:DELay:TIMe", Number("S", -1000.0, 1000.0, clips=True))
    def set_delay(self, seconds: float) -> None:
        """`HORizontal:DELay:TIMe`."""
        self._set.time.delay_s = seconds
        self._changed()

    @query("HORizontal:DELay:TIMe")
    def delay(self) -> float:
        """`HORizontal:DELay:TIMe?`."""
        return self._set.time.delay_s

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

    @command("TRIGger:A:TYPe", Choice("EDGE"))
    def set_trigger_type(self, kind: str) -> None:
        """`TRIGger:A:TYPe`."""

    @query("TRIGger:A:TYPe")
    def trigger_type(self) -> Word:
        """`TRIGger:A:TYPe?`."""
        return Word("EDGE")

    @command("TRIGger:A:MODe", Choice("AUTO", "NORMal"))
    def set_trigger_mode(self, mode: str) -> None:
        """`TRIGger:A:MODe`."""
        self._set.trigger_mode = mode
        self._changed()

    @query("TRIGger:A:MODe")
    def trigger_mode(self) -> Word:
        """`TRIGger:A:MODe?`."""
        return Word(self._set.trigger_mode)

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

    @command("TRIGger:A:EDGE:SLOpe", Choice("RISe", "FALL"))
    def set_slope(self, slope: str) -> None:
        """`TRIGger:A:EDGE:SLOpe`."""
        self._set.slope = slope
        self._changed()

    @query("TRIGger:A:EDGE:SLOpe")
    def slope(self) -> Word:
        """`TRIGger:A:EDGE:SLOpe?`."""
        return Word(self._set.slope)

    @command("TRIGger:A:EDGE:COUPling", Choice("DC"))
    def set_trigger_coupling(self, coupling: str) -> None:
        """`TRIGger:A:EDGE:COUPling`."""

    @query("TRIGger:A:EDGE:COUPling")
    def trigger_coupling(self) -> Word:
        """`TRIGger:A:EDGE:COUPling?`."""
        return Word("DC")

    @command("TRIGger:A:LEVel:" + CHANNEL, _range("lowest_level_v", "highest_level_v"))
    def set_level(self, channel: int, volts: float) -> None:
        """`TRIGger:A:LEVel:CH<x>`."""
        self.channel(channel).level_v = volts
        self._changed()

    @query("TRIGger:A:LEVel:" + CHANNEL)
    def level(self, channel: int) -> float:
        """`TRIGger:A:LEVel:CH<x>?`."""
        return self.channel(channel).level_v

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

    @command("DATa:SOUrce", Choice(*CHANNELS))
    def set_data_source(self, source: str) -> None:
        """`DATa:SOUrce`."""
        self._transfer.source = source

    @query("DATa:SOUrce")
    def data_source(self) -> Word:
        """`DATa:SOUrce?`."""
        return Word(self._transfer.source)

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

    @command("WFMOutpre:BN_Fmt", Choice("RI"))
    def set_representation(self, representation: str) -> None:
        """`WFMOutpre:BN_Fmt`."""

    @query("WFMOutpre:BN_Fmt")
    def representation(self) -> Word:
        """`WFMOutpre:BN_Fmt?`."""
        return Word("RI")

    @command("WFMOutpre:BYT_Or", Choice("LSB", "MSB"))
    def set_byte_order(self, order: str) -> None:
        """`WFMOutpre:BYT_Or`."""
        self._transfer.byte_order = order

    @query("WFMOutpre:BYT_Or")
    def byte_order(self) -> Word:
        """`WFMOutpre:BYT_Or?`."""
        return Word(self._transfer.byte_order)

    @command("DATa:WIDth", Integer((), 1, 2))
    @command("WFMOutpre:BYT_Nr", Integer((), 1, 2))
    def set_width(self, width: int) -> None:
        """`DATa:WIDth`: bytes of a point."""
        self._transfer.width = width

    @query("DATa:WIDth")
    @query("WFMOutpre:BYT_Nr")
    def width(self) -> int:
        """`DATa:WIDth?`."""
        return self._transfer.width

    @query("WFMOutpre:BIT_Nr")
    def bit_count(self) -> int:
        """`WFMOutpre:BIT_Nr?`."""
        return 8 * self._transfer.width

    @command("DATa:STARt", Integer((), 1))
    def set_start(self, point: int) -> None:
        """`DATa:STARt`: the first point that is sent."""
        self._transfer.start = point

    @query("DATa:STARt")
    def start(self) -> int:
        """`DATa:STARt?`."""
        return self._transfer.start

    @command("DATa:STOP", Integer((), 1))
    def set_stop(self, point: int) -> None:
        """`DATa:STOP`: the last point that is sent."""
        self._transfer.stop = point

    @query("DATa:STOP")
    def stop(self) -> int:
        """`DATa:STOP?`."""
        return self._transfer.stop

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

    @query("WFMOutpre:XUNit")
    def time_unit(self) -> str:
        """`WFMOutpre:XUNit?`."""
        return '"s"'

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

    @query("WFMOutpre:YUNit")
    def volt_unit(self) -> str:
        """`WFMOutpre:YUNit?`."""
        return '"V"'

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
