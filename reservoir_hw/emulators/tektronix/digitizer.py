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

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from reservoir_hw.emulators.bench import Acquisition, VirtualBench
from reservoir_hw.emulators.scope import (
    Scope,
    Volts,
    channel_setting,
    looked,
    scope_setting,
    settings_of,
    settled_setting,
)
from reservoir_hw.emulators.scpi.messages import (
    Boolean,
    Integer,
    Limit,
    Number,
    PerDivision,
    ScpiError,
    Token,
    definite_block,
)
from reservoir_hw.emulators.scpi.tree import command, constant, limit, query, reading, setting
from reservoir_hw.emulators.tektronix.language import (
    DIVISION_CODES,
    HIGHEST_RATE_HZ,
    LONGEST_RECORD,
    LOWEST_RATE_HZ,
    SHORTEST_RECORD,
    TIME_DIVISIONS,
    Choice,
    Either,
    ExecutionError,
    Input,
    Oscilloscope,
    Record,
    RunOrStop,
    TimeBase,
    Word,
    converted,
)

BANDWIDTH_HZ = 2e9
AUXILIARY_RANGE_V = 8.0
CHANNELS = tuple(f"CH{number}" for number in range(1, 5))
CHANNEL = "CH{channel:1-4}"
AUXILIARY = "AUXiliary"
_BINARY = {"RIBinary": "MSB", "SRIbinary": "LSB"}
LOWEST_SCALE_V = 500e-6
TIME_SCALE = PerDivision("S", 200e-12, 1000.0, clips=True, divisions=TIME_DIVISIONS)


def _volts(highest: str, lowest: Limit) -> Number:
    return Number("V", lowest, limit(highest), clips=True)


class Termination(Number):
    """One of two values."""

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> float:
        """In ohm."""
        if (ohm := super().read(token, device, suffixes)) not in (self.low, self.high):
            raise ScpiError(-224)
        return ohm


@dataclass
class _Settings:
    time: TimeBase = field(default_factory=TimeBase)
    sweep: str = "AUTO"
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


def _time(scope: Any) -> TimeBase:
    return scope._set.time


# After a change of the first, what is being acquired begins again. The others change only what is sent.
time_setting = partial(setting, of=_time, changed=Scope.changed)
transfer_setting = partial(setting, of=lambda scope: scope._transfer)


class Mso54(Scope[Record], Oscilloscope):
    """The oscilloscope on a bench, whose inputs 1 to 4 are its channels.

    Args:
        bench: What it measures.
        auxiliary_input: It has an input for triggers, as a MSO58LP has.
    """

    identity = "TEKTRONIX,MSO54,C000002,CF:91.1CT FV:2.0.3.950"
    _set: _Settings

    def __init__(self, bench: VirtualBench, *, auxiliary_input: bool = False) -> None:
        super().__init__(bench)
        self._has_auxiliary = auxiliary_input
        self._transfer = _Transfer()
        self.reset()

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """The default setup: channel 1 is on, and the instrument runs and triggers itself."""
        with self._state:
            self._set, self._record = _Settings(), None
            self.channels = {number: Input(on=number == 1) for number in range(1, 5)}
            self._run()

    # ---- acquisition ----------------------------------------------------------------------------

    @property
    def _single(self) -> bool:
        return self._running and self._set.stop_after == "SEQuence"

    def _run(self) -> None:
        with self._state:
            self._running, self._acquired = True, 0
            self._arm()

    @property
    def _acquisition(self) -> Acquisition:
        settings = self._set
        external = settings.source == AUXILIARY
        number = 0 if external else int(settings.source[-1])
        return Acquisition(
            rate_hz=settings.time.rate_hz,
            samples=settings.time.points,
            first_s=settings.time.first_s,
            source="external" if external else number,
            level_v=settings.auxiliary_level_v if external else self.channels[number].level_v,
            slope="rising" if settings.slope == "RISe" else "falling",
            channels=[number for number, channel in self.channels.items() if channel.on],
        )

    def _taken(self, volts: Volts, acquisition: Acquisition) -> Record:
        self._acquired += 1
        self._running = self._set.stop_after == "RUNSTop"
        high_resolution = self._set.mode == "HIRes"
        return converted(volts, self.channels, acquisition.rate_hz, acquisition.first_s, high_resolution)

    @command("ACQuire:STATE", RunOrStop())
    def set_state(self, run: bool) -> None:
        """`ACQuire:STATE`."""
        if run:
            self._run()
            return
        self.look()
        with self._state:
            self._running = False
            self._bench.disarm()

    state = reading("ACQuire:STATE", "_running", of=looked)
    stop_after = setting("ACQuire:STOPAfter", Choice("RUNSTop", "SEQuence"), "stop_after", of=settings_of)
    mode = scope_setting("ACQuire:MODe", Choice("SAMple", "HIRes"), "mode")
    acquired = reading("ACQuire:NUMACq", "_acquired", of=looked)
    """How many acquisitions there were since it was started."""
    highest_rate = constant("ACQuire:MAXSamplerate", HIGHEST_RATE_HZ)
    busy = reading("BUSY", "_single", of=looked)
    """Whether a single acquisition goes on."""

    # ---- channels -------------------------------------------------------------------------------

    view = channel_setting("DISplay:WAVEView{view:1-1}:" + CHANNEL + ":STATE", Boolean(), "on")
    display = channel_setting("DISplay:GLObal:" + CHANNEL + ":STATE", Boolean(), "on")
    selected = channel_setting("SELect:" + CHANNEL, Boolean(), "on")
    """Only channels that are on are recorded."""
    scale = settled_setting(CHANNEL + ":SCAle", _volts("highest_scale_v", LOWEST_SCALE_V), "scale_v")
    """Of a division."""
    offset = settled_setting(CHANNEL + ":OFFSet", _volts("highest_offset_v", limit("highest_offset_v", -1)), "offset_v")
    """What stands at the position."""
    position = settled_setting(CHANNEL + ":POSition", Number((), -5.0, 5.0, clips=True), "position")
    """Divisions above the middle of the screen."""
    termination = settled_setting(CHANNEL + ":TERmination", Termination("OHM", 50.0, 1e6), "termination_ohm")
    """What loads an output is the bench's affair; the ranges are others."""
    coupling = constant(CHANNEL + ":COUPling", Word("DC"), Choice("DC"))
    bandwidth = constant(CHANNEL + ":BANdwidth", BANDWIDTH_HZ, Choice("FULl"))

    @query(CHANNEL + ":CLIPping")
    def clipping(self, channel: int) -> bool:
        """`CH<x>:CLIPping?`: whether the last record reached the ends of the converter."""
        self.look()
        return bool(self._record and self._record.clipped.get(channel))

    probe_type = constant(CHANNEL + ":PROBETYPE", Word("ANALOG"))
    probe_name = constant(CHANNEL + ":PRObe:ID:TYPe", '"No Probe Detected"')
    """None is connected."""
    probe_serial = constant(CHANNEL + ":PRObe:ID:SERnumber", '"N/A"')

    # ---- time base ------------------------------------------------------------------------------

    def _mode_chosen(self) -> None:
        if not self._set.time.manual:
            # The same one, at the rate that follows from it.
            self._set.time.duration_s = self._set.time.duration_s
            self.changed()

    time_mode = setting("HORizontal:MODe", Either("AUTO", "MANual"), "manual", of=_time, changed=_mode_chosen)
    follower = setting(
        "HORizontal:MODe:MANual:CONFIGure", Choice("HORIZontalscale", "RECORDLength"), "follower", of=_time
    )
    """What follows when the sample rate changes."""

    @command("HORizontal[:MODe]:SAMPLERate", Number((), LOWEST_RATE_HZ, HIGHEST_RATE_HZ, clips=True))
    def set_rate(self, rate_hz: float) -> None:
        """`HORizontal:MODe:SAMPLERate`, in manual mode."""
        self._expect_manual()
        self._set.time.set_rate(rate_hz)
        self.changed()

    rate = reading("HORizontal:SAMPLERate", "rate_hz", of=_time)
    mode_rate = reading("HORizontal:MODe:SAMPLERate", "rate_hz", of=_time)

    @command("HORizontal[:MODe]:RECOrdlength", Integer((), SHORTEST_RECORD, LONGEST_RECORD, clips=True))
    def set_points(self, points: int) -> None:
        """`HORizontal:MODe:RECOrdlength`, in manual mode. The scale follows."""
        self._expect_manual()
        self._set.time.points = points
        self.changed()

    points = reading("HORizontal:RECOrdlength", "points", of=_time)
    mode_points = reading("HORizontal:MODe:RECOrdlength", "points", of=_time)
    time_scale = time_setting("HORizontal:SCAle", TIME_SCALE, "duration_s")
    mode_time_scale = time_setting("HORizontal:MODe:SCAle", TIME_SCALE, "duration_s")
    """The record length follows, and in automatic mode the rate."""

    trigger_position = time_setting("HORizontal:POSition", Number((), 0.0, 100.0, clips=True), "shown_position")
    """Of the trigger in the record, without a delay."""
    delayed = time_setting("HORizontal:DELay:MODe", Boolean(), "delayed")
    """The middle of the record lies `DELay:TIMe` after the trigger."""
    delay = time_setting("HORizontal:DELay:TIMe", Number("S", -1000.0, 1000.0, clips=True), "delay_s")

    def _expect_manual(self) -> None:
        if not self._set.time.manual:
            raise ScpiError(-221)

    # ---- trigger --------------------------------------------------------------------------------

    force = command("TRIGger", Choice("FORCe"))(lambda self, what: self._bench.force())

    trigger_state = query("TRIGger:STATE")(lambda self: Word("READy" if looked(self)._running else "SAVe"))
    trigger_type = constant("TRIGger:A:TYPe", Word("EDGE"), Choice("EDGE"))
    trigger_mode = scope_setting("TRIGger:A:MODe", Choice("AUTO", "NORMal"), "sweep")

    @command("TRIGger:A:EDGE:SOUrce", Choice(*CHANNELS, AUXILIARY))
    def set_source(self, source: str) -> None:
        """`TRIGger:A:EDGE:SOUrce`."""
        if source == AUXILIARY and not self._has_auxiliary:
            raise ScpiError(-224)
        self._set.source = source
        self.changed()

    source = query("TRIGger:A:EDGE:SOUrce")(lambda self: Word(self._set.source))

    slope = scope_setting("TRIGger:A:EDGE:SLOpe", Choice("RISe", "FALL"), "slope")
    trigger_coupling = constant("TRIGger:A:EDGE:COUPling", Word("DC"), Choice("DC"))
    level = channel_setting("TRIGger:A:LEVel:" + CHANNEL, _volts("highest_level_v", limit("lowest_level_v")), "level_v")

    @command("TRIGger:AUXLevel", Number("V", -AUXILIARY_RANGE_V, AUXILIARY_RANGE_V, clips=True))
    def set_auxiliary_level(self, volts: float) -> None:
        """`TRIGger:AUXLevel`."""
        if not self._has_auxiliary:
            raise ScpiError(-241, "Hardware missing")
        self._set.auxiliary_level_v = volts
        self.changed()

    auxiliary_level = reading("TRIGger:AUXLevel", "auxiliary_level_v", of=settings_of)

    # ---- waveforms ------------------------------------------------------------------------------

    data_source = transfer_setting("DATa:SOUrce", Choice(*CHANNELS), "source")

    @query("DATa:SOUrce:AVAILable")
    def available(self) -> str:
        """`DATa:SOUrce:AVAILable?`: what has been acquired."""
        self.look()
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

    encoding = transfer_setting("WFMOutpre:ENCdg", Either("BINary", "ASCii"), "ascii")
    representation = constant("WFMOutpre:BN_Fmt", Word("RI"), Choice("RI"))
    byte_order = transfer_setting("WFMOutpre:BYT_Or", Choice("LSB", "MSB"), "byte_order")
    width = transfer_setting("DATa:WIDth", Integer((), 1, 2), "width")
    byte_count = transfer_setting("WFMOutpre:BYT_Nr", Integer((), 1, 2), "width")
    """Bytes of a point."""

    bit_count = query("WFMOutpre:BIT_Nr")(lambda self: 8 * self._transfer.width)

    start = transfer_setting("DATa:STARt", Integer((), 1), "start")
    """The first point that is sent."""
    stop = transfer_setting("DATa:STOP", Integer((), 1), "stop")
    """The last point that is sent."""

    sent_points = query("WFMOutpre:NR_Pt")(lambda self: len(self._sent()))
    trigger_point = query("WFMOutpre:PT_Off")(lambda self: self._active()[0].trigger_point - self._sent().start)
    """The point after the trigger, from the first that is sent."""

    time_step = query("WFMOutpre:XINcr")(lambda self: 1 / self._active()[0].rate_hz)

    trigger_time = query("WFMOutpre:XZEro")(lambda self: self._active()[0].trigger_point_s)
    """Of the point after the trigger."""
    time_unit = constant("WFMOutpre:XUNit", '"s"')

    volt_step = query("WFMOutpre:YMUlt")(lambda self: self._scale()[0] / DIVISION_CODES[self._transfer.width])
    """Volts of a code."""
    volt_offset = query("WFMOutpre:YZEro")(lambda self: self._scale()[1])
    """Volts of the code 0."""

    @query("WFMOutpre:YOFf")
    def code_offset(self) -> float:
        """`WFMOutpre:YOFf?`."""
        self._active()
        return 0.0

    volt_unit = constant("WFMOutpre:YUNit", '"V"')

    @query("CURVe")
    def curve(self) -> bytes:
        """`CURVe?`."""
        record, number = self._active()
        sent = self._sent()
        codes = record.codes[number][sent.start : sent.stop]
        if self._transfer.width == 1:
            codes = codes >> 8
        if self._transfer.ascii:
            return ",".join(map(str, codes.tolist())).encode()
        order = ">" if self._transfer.byte_order == "MSB" else "<"
        return definite_block(codes.astype(f"{order}i{self._transfer.width}").data)

    def _active(self) -> tuple[Record, int]:
        """The record, and the channel whose points are sent. Raises `ScpiError` if there are none."""
        self.look()
        number = int(self._transfer.source[-1])
        if self._record is None or number not in self._record.codes:
            raise ExecutionError(2244, "Waveform requested is not active")
        return self._record, number

    def _scale(self) -> tuple[float, float]:
        """Volts of a division and of the middle, of the channel whose points are sent."""
        record, number = self._active()
        return record.scales[number]

    def _sent(self) -> range:
        """The points that are sent."""
        record, number = self._active()
        points = len(record.codes[number])
        first, last = sorted((self._transfer.start, self._transfer.stop))
        return range(min(first, points) - 1, min(last, points))
