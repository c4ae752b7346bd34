"""A Tektronix MSO54 (4/5/6 Series MSO Programmer Manual), as far as records of its analog inputs go.

What the manual leaves open, or what is simpler here:

- Sample rates are 6.25 GSa/s divided by 1, 2, 5, 10, 20 …; the nearest one is taken. In automatic mode it is the
  highest with which the record has at most 1,000,000 points.
- The converter spans 10.24 divisions. It has 8 bits at 6.25 GSa/s and 12 below. The mode HIRes has up to
  16, but nothing is averaged.
- A value beyond a limit becomes the limit, and is an event, too (222).
- A new acquisition leaves the record before it in place until its own is complete.
- `WFMOutpre:XZEro?` does not know where between two samples the bench's trigger came.
- Not emulated, and so errors: AC coupling, limits of the bandwidth, modes other than SAMple and HIRes, triggers other
  than edges, digital channels, reference and math waveforms, encodings other than ASCII and signed integers, `DESE`.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import Acquisition, VirtualBench
from reservoir_hw.emulators.physics.converter import to_codes
from reservoir_hw.emulators.scpi.arguments import Boolean, Integer, Number, definite_block
from reservoir_hw.emulators.scpi.errors import ScpiError
from reservoir_hw.emulators.scpi.tree import command, query
from reservoir_hw.emulators.tektronix.oscilloscope import Choice, ExecutionError, Oscilloscope, RunOrStop, Word

HIGHEST_RATE_HZ, LOWEST_RATE_HZ = 6.25e9, 6.25
SHORTEST_RECORD, LONGEST_RECORD, AUTOMATIC_POINTS = 1000, 62_500_000, 1_000_000
TIME_DIVISIONS = 10
# Codes in a division, of 8 bits and of 16.
CODES_8, CODES_16 = 25, 6400
CONVERTER_DIVISIONS = 10.24
# In mode AUTO, so long after arming the instrument triggers itself.
AUTO_TRIGGER_S = 0.05
BANDWIDTH_HZ = 2e9
AUXILIARY_RANGE_V = 8.0
CHANNELS = tuple(f"CH{number}" for number in range(1, 5))
CHANNEL = "CH{channel:1-4}"
AUXILIARY = "AUXiliary"
_STEPS = (1, 2, 5)
# Rates up to which the converter has more bits, in the mode HIRes.
_HIRES_BITS = ((125e6, 16), (312.5e6, 15), (625e6, 14), (1.25e9, 13))
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
class Channel:
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


@dataclass(frozen=True)
class Record:
    """What was acquired: codes of 16 bits, (points,) by channel, and how to read them."""

    rate_hz: float
    first_s: float
    codes: dict[int, NDArray[np.int16]]
    scales: dict[int, tuple[float, float]]
    """Volts of a division and of the middle, by channel."""
    clipped: dict[int, bool]


@dataclass
class _Settings:
    channels: dict[int, Channel] = field(default_factory=lambda: {n: Channel(on=n == 1) for n in range(1, 5)})
    manual: bool = False
    keeps_record: bool = True
    rate_hz: float = HIGHEST_RATE_HZ
    points: int = 25_000
    position: float = 50.0
    delayed: bool = True
    delay_s: float = 0.0
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

    def channel(self, number: int) -> Channel:
        """The settings of a channel."""
        return self._set.channels[number]

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
        duration_s = settings.points / settings.rate_hz
        if settings.delayed:
            first_s = settings.delay_s - duration_s / 2
        else:
            first_s = -settings.position / 100 * duration_s
        external = settings.source == AUXILIARY
        number = 0 if external else int(settings.source[-1])
        self._acquisition = Acquisition(
            rate_hz=settings.rate_hz,
            samples=settings.points,
            first_s=first_s,
            source="external" if external else number,
            level_v=settings.auxiliary_level_v if external else settings.channels[number].level_v,
            slope="rising" if settings.slope == "RISe" else "falling",
            channels=[number for number, channel in settings.channels.items() if channel.on],
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
            self._record = self._converted(volts)
            self._acquired += 1
            self._running = self._set.stop_after == "RUNSTop"
            self._changed()

    def _converted(self, volts: dict[int, NDArray[np.float64]]) -> Record:
        rate_hz, bits = self._acquisition.rate_hz, self._bits()
        codes, scales, clipped = {}, {}, {}
        for number, seen in volts.items():
            channel = self.channel(number)
            taken = to_codes(seen, CONVERTER_DIVISIONS * channel.scale_v, channel.middle_v, bits)
            clipped[number] = bool(taken.min() == 0 or taken.max() == 2**bits - 1)
            codes[number] = ((taken - 2 ** (bits - 1)) << 16 - bits).astype(np.int16)
            scales[number] = channel.scale_v, channel.middle_v
        return Record(rate_hz, self._acquisition.first_s, codes, scales, clipped)

    def _bits(self) -> int:
        rate_hz = self._acquisition.rate_hz
        if rate_hz > HIGHEST_RATE_HZ / 2:
            return 8
        high = _HIRES_BITS if self._set.mode == "HIRes" else ()
        return next((bits for highest_hz, bits in high if rate_hz <= highest_hz), 12)

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
        scale = self.time_scale()
        self._set.manual = mode == "MANual"
        if mode == "AUTO":
            self.set_time_scale(scale)

    @query("HORizontal:MODe")
    def time_mode(self) -> Word:
        """`HORizontal:MODe?`."""
        return Word("MANual" if self._set.manual else "AUTO")

    @command("HORizontal:MODe:MANual:CONFIGure", Choice("HORIZontalscale", "RECORDLength"))
    def set_follower(self, what: str) -> None:
        """`HORizontal:MODe:MANual:CONFIGure`: what follows when the sample rate changes."""
        self._set.keeps_record = what == "HORIZontalscale"

    @query("HORizontal:MODe:MANual:CONFIGure")
    def follower(self) -> Word:
        """`HORizontal:MODe:MANual:CONFIGure?`."""
        return Word("HORIZontalscale" if self._set.keeps_record else "RECORDLength")

    @command("HORizontal:SAMPLERate", Number((), LOWEST_RATE_HZ, HIGHEST_RATE_HZ, clips=True))
    @command("HORizontal:MODe:SAMPLERate", Number((), LOWEST_RATE_HZ, HIGHEST_RATE_HZ, clips=True))
    def set_rate(self, rate_hz: float) -> None:
        """`HORizontal:MODe:SAMPLERate`, in manual mode."""
        self._expect_manual()
        settings = self._set
        duration_s, settings.rate_hz = settings.points / settings.rate_hz, _nearest_rate(rate_hz)
        if not settings.keeps_record:
            settings.points = _within_memory(duration_s * settings.rate_hz)
        self._changed()

    @query("HORizontal:SAMPLERate")
    @query("HORizontal:MODe:SAMPLERate")
    def rate(self) -> float:
        """`HORizontal:MODe:SAMPLERate?`."""
        return self._set.rate_hz

    @command("HORizontal:RECOrdlength", Integer((), SHORTEST_RECORD, LONGEST_RECORD, clips=True))
    @command("HORizontal:MODe:RECOrdlength", Integer((), SHORTEST_RECORD, LONGEST_RECORD, clips=True))
    def set_points(self, points: int) -> None:
        """`HORizontal:MODe:RECOrdlength`, in manual mode. The scale follows."""
        self._expect_manual()
        self._set.points = points
        self._changed()

    @query("HORizontal:RECOrdlength")
    @query("HORizontal:MODe:RECOrdlength")
    def points(self) -> int:
        """`HORizontal:MODe:RECOrdlength?`."""
        return self._set.points

    @command("HORizontal:SCAle", Number("S", 200e-12, 1000.0, clips=True))
    @command("HORizontal:MODe:SCAle", Number("S", 200e-12, 1000.0, clips=True))
    def set_time_scale(self, seconds: float) -> None:
        """`HORizontal:SCAle`: of a division. The record length follows, and in automatic mode the rate."""
        settings, duration_s = self._set, seconds * TIME_DIVISIONS
        if not settings.manual:
            settings.rate_hz = _highest_rate(AUTOMATIC_POINTS / duration_s)
        settings.points = _within_memory(duration_s * settings.rate_hz)
        self._changed()

    @query("HORizontal:SCAle")
    @query("HORizontal:MODe:SCAle")
    def time_scale(self) -> float:
        """`HORizontal:SCAle?`."""
        return self._set.points / self._set.rate_hz / TIME_DIVISIONS

    @command("HORizontal:POSition", Number((), 0.0, 100.0, clips=True))
    def set_trigger_position(self, percent: float) -> None:
        """`HORizontal:POSition`: of the trigger in the record, without a delay."""
        self._set.position = percent
        self._changed()

    @query("HORizontal:POSition")
    def trigger_position(self) -> float:
        """`HORizontal:POSition?`: with a delay, it is the middle."""
        return 50.0 if self._set.delayed else self._set.position

    @command("HORizontal:DELay:MODe", Boolean())
    def set_delayed(self, on: bool) -> None:
        """`HORizontal:DELay:MODe`: the middle of the record lies `DELay:TIMe` after the trigger."""
        self._set.delayed = on
        self._changed()

    @query("HORizontal:DELay:MODe")
    def delayed(self) -> bool:
        """`HORizontal:DELay:MODe?`."""
        return self._set.delayed

    @command("HORizontal:DELay:TIMe", Number("S", -1000.0, 1000.0, clips=True))
    def set_delay(self, seconds: float) -> None:
        """`HORizontal:DELay:TIMe`."""
        self._set.delay_s = seconds
        self._changed()

    @query("HORizontal:DELay:TIMe")
    def delay(self) -> float:
        """`HORizontal:DELay:TIMe?`."""
        return self._set.delay_s

    def _expect_manual(self) -> None:
        if not self._set.manual:
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
        return self._trigger_point() - self._sent()[0]

    @query("WFMOutpre:XINcr")
    def time_step(self) -> float:
        """`WFMOutpre:XINcr?`."""
        return 1 / self._taken()[0].rate_hz

    @query("WFMOutpre:XZEro")
    def trigger_time(self) -> float:
        """`WFMOutpre:XZEro?`: of the point after the trigger."""
        record, _ = self._taken()
        return record.first_s + self._trigger_point() / record.rate_hz

    @query("WFMOutpre:XUNit")
    def time_unit(self) -> str:
        """`WFMOutpre:XUNit?`."""
        return '"s"'

    @query("WFMOutpre:YMUlt")
    def volt_step(self) -> float:
        """`WFMOutpre:YMUlt?`: volts of a code."""
        record, number = self._taken()
        return record.scales[number][0] / (CODES_8 if self._transfer.width == 1 else CODES_16)

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

    def _trigger_point(self) -> int:
        record, _ = self._taken()
        return math.ceil(-record.first_s * record.rate_hz - 1e-6)


def _nearest_rate(rate_hz: float) -> float:
    """By the ratio."""
    rates = [HIGHEST_RATE_HZ / (step * 10**power) for power in range(10) for step in _STEPS]
    return min(rates, key=lambda rate: abs(math.log(rate / rate_hz)))


def _highest_rate(limit_hz: float) -> float:
    """The highest that does not exceed a limit."""
    rates = [HIGHEST_RATE_HZ / (step * 10**power) for power in range(10) for step in _STEPS]
    return next((rate for rate in rates if rate <= limit_hz * (1 + 1e-9)), rates[-1])


def _within_memory(points: float) -> int:
    return min(max(round(points), SHORTEST_RECORD), LONGEST_RECORD)
