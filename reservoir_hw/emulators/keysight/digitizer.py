"""An InfiniiVision oscilloscope (InfiniiVision 3000T X-Series Programmer's Guide), as far as records of its inputs go.

What the guide leaves open, or what is simpler here:

- The sample rate is 5 GSa/s divided by the smallest of 1, 2, 5, 10, 20, 50 … with which the time range fits into the
  memory of 1,000,000 points. It does not depend on how many channels are on.
- The range of a channel is 256 steps of the 8-bit converter. Steps 0 and 1 mean clipped low, 255 clipped high.
- Fewer points than were recorded are every second, third … point. The measurement record (`NORMal`) has at most 62,500.
- Not emulated, and so errors: AC coupling, averages and peak detection, triggers other than edges, other time bases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import Acquisition, VirtualBench
from reservoir_hw.emulators.physics.signals import to_codes
from reservoir_hw.emulators.scope import Scope, Volts, channel_setting, scope_setting, settings_of, settled_setting
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.messages import (
    Boolean,
    Integer,
    Keyword,
    ListOf,
    Number,
    PerDivision,
    ScpiError,
    definite_block,
)
from reservoir_hw.emulators.scpi.tree import channel_of, command, constant, limit, query, reading, setting

HIGHEST_RATE_HZ = 5e9
MEMORY_POINTS = 1_000_000
MEASUREMENT_POINTS = 62_500
TIME_DIVISIONS, VOLT_DIVISIONS = 10, 8
RUNNING, WAITING_FOR_TRIGGER = 1 << 3, 1 << 5
BANDWIDTH_LIMIT_HZ = 20e6
EXTERNAL_RANGE_V = 8.0
# The left edge of the screen, as a part of the time range before the reference.
_REFERENCES = {"LEFT": 0.1, "CENT": 0.5, "RIGH": 0.9}
_BITS = {"NORM": 8, "HRES": 12}
_TYPES = {"NORM": 0, "HRES": 3}
_FORMATS = {"BYTE": 0, "WORD": 1, "ASC": 4}
_CHANNELS = tuple(f"CHANnel{number}" for number in range(1, 5))
CHANNEL = "CHANnel{channel:1-4}"
RANGE = Number("V", limit("lowest_range_v"), limit("highest_range_v"))
SCALE = PerDivision(
    "V",
    limit("lowest_range_v", 1 / VOLT_DIVISIONS),
    limit("highest_range_v", 1 / VOLT_DIVISIONS),
    divisions=VOLT_DIVISIONS,
)


@dataclass
class Channel:
    """The settings of an input. Volts are those at the tip of its probe."""

    on: bool = False
    range_v: float = 40.0
    offset_v: float = 0.0
    probe: float = 10.0
    impedance: str = "ONEM"
    limited: bool = False
    level_v: float = 0.0

    @property
    def lowest_range_v(self) -> float:
        """From the bottom of the screen to its top."""
        return 8e-3 * self.probe

    @property
    def highest_range_v(self) -> float:
        """Of 50 ohm, 1 V per division is the most."""
        return self.probe * (40.0 if self.impedance == "ONEM" else 8.0)

    @property
    def highest_offset_v(self) -> float:
        """The more, the coarser the range is."""
        return self.probe * (2.0 if self.range_v <= 1.6 * self.probe else 50.0)

    def settle(self) -> None:
        """Range and offset become the nearest ones that there are."""
        self.range_v = min(self.range_v, self.highest_range_v)
        self.offset_v = float(np.clip(self.offset_v, -self.highest_offset_v, self.highest_offset_v))

    def bounds(self) -> tuple[float, float]:
        """Trigger levels lie within three quarters of the range from the middle of the screen."""
        return self.offset_v - 0.75 * self.range_v, self.offset_v + 0.75 * self.range_v


@dataclass(frozen=True)
class Record:
    """What was acquired: codes (points,) by channel, and how to read them."""

    kind: str
    rate_hz: float
    first_s: float
    codes: dict[int, NDArray[np.int32]]
    scales: dict[int, tuple[float, float]]
    """Range and offset by channel."""


@dataclass
class _Settings:
    time_range_s: float = 1e-3
    position_s: float = 0.0
    reference: str = "CENT"
    sweep: str = "AUTO"
    source: str = "CHAN1"
    slope: str = "POS"
    external_level_v: float = 0.0
    kind: str = "NORM"
    count: int = 8
    waveform_source: str = "CHAN1"
    format: str = "BYTE"
    byte_order: str = "MSBF"
    unsigned: bool = True
    points: float = 1000
    points_mode: str = "NORM"


# Of what is sent.
transfer_setting = partial(setting, of=settings_of)


class InfiniiVision(Scope[Record], ScpiDevice):
    """The oscilloscope on a bench, whose inputs 1 to 4 are its channels."""

    identity = "KEYSIGHT TECHNOLOGIES,MSO-X 3054T,MY00000002,07.50.2021102830"
    error_format = '{0.code:+d},"{0.text}"'
    _set: _Settings

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__(bench)
        self.reset()

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """The default setup: channel 1 is on, and the instrument runs and triggers itself."""
        with self._state:
            self._set, self._record = _Settings(), None
            self.channels = {number: Channel(on=number == 1) for number in range(1, 5)}
            self._armed_event = self._triggered_event = self._digitizing = False
            self._run(continuously=True)

    # ---- acquisition ----------------------------------------------------------------------------

    @property
    def _rate_hz(self) -> float:
        least = max(1.0, HIGHEST_RATE_HZ * self._set.time_range_s / MEMORY_POINTS) * (1 - 1e-9)
        power = 10.0 ** math.floor(math.log10(least))
        return HIGHEST_RATE_HZ / next(step * power for step in (1, 2, 5, 10) if step * power >= least)

    @property
    def _points(self) -> int:
        return round(self._rate_hz * self._set.time_range_s)

    def _run(self, *, continuously: bool) -> None:
        with self._state:
            self._running, self._continuously = True, continuously
            if not continuously:
                self._record = None
            self._arm()

    def _arm(self) -> None:
        super()._arm()
        self._armed_event = True

    @property
    def _acquisition(self) -> Acquisition:
        settings = self._set
        source, level_v = settings.source, settings.external_level_v
        if source != "EXT":
            channel = self.channels[int(source[-1])]
            level_v = channel.level_v / channel.probe
        return Acquisition(
            rate_hz=self._rate_hz,
            samples=self._points,
            first_s=settings.position_s - _REFERENCES[settings.reference] * settings.time_range_s,
            source="external" if source == "EXT" else int(source[-1]),
            level_v=level_v,
            slope="rising" if settings.slope == "POS" else "falling",
            channels=[number for number, channel in self.channels.items() if channel.on],
        )

    @property
    def _single(self) -> bool:
        return self._digitizing

    def _halt(self) -> None:
        with self._state:
            self._running = self._continuously = self._digitizing = False
            self._bench.disarm()

    def _taken(self, volts: Volts, acquisition: Acquisition) -> Record:
        self._running, self._digitizing, self._triggered_event = self._continuously, False, True
        channels, rate_hz = self.channels, acquisition.rate_hz
        codes = {}
        for number, seen in volts.items():
            channel = channels[number]
            limited = _low_pass(seen, rate_hz) if channel.limited else seen
            codes[number] = to_codes(limited * channel.probe, channel.range_v, channel.offset_v, _BITS[self._set.kind])
        scales = {number: (channels[number].range_v, channels[number].offset_v) for number in codes}
        return Record(self._set.kind, rate_hz, acquisition.first_s, codes, scales)

    run = command("RUN")(lambda self: self._run(continuously=True))
    """Acquires again and again."""

    @command("STOP")
    def stop(self) -> None:
        """`:STOP`."""
        self.look()
        self._halt()

    single = command("SINGle")(lambda self: self._run(continuously=False))
    """Acquires once. Nobody waits for it."""

    @command("DIGitize", ListOf(Keyword(*_CHANNELS)), required=0)
    def digitize(self, sources: list[str] | None = None) -> None:
        """`:DIGitize` acquires once, and what follows waits until the record is complete."""
        if sources:
            for number, channel in self.channels.items():
                channel.on = f"CHAN{number}" in sources
        with self._state:
            self._digitizing = True
            self._run(continuously=False)
        try:
            self.common_wait()
        finally:
            if self._digitizing:
                self._halt()

    force = command("TRIGger:FORCe")(lambda self: self._bench.force())

    @query("AER")
    def arm_event(self) -> int:
        """`:AER?`: whether it was armed since the last question."""
        event, self._armed_event = self._armed_event, False
        return int(event)

    @query("TER")
    def trigger_event(self) -> int:
        """`:TER?`: whether it was triggered since the last question."""
        self.look()
        event, self._triggered_event = self._triggered_event, False
        return int(event)

    @query("OPERegister:CONDition")
    def operation_condition(self) -> int:
        """`:OPERegister:CONDition?`."""
        self.look()
        waiting = self._running and self._bench.armed
        return (RUNNING if self._running else 0) | (WAITING_FOR_TRIGGER if waiting else 0)

    type = scope_setting("ACQuire:TYPE", Keyword("NORMal", "HRESolution"), "kind")
    count = transfer_setting("ACQuire:COUNt", Integer(low=2, high=65536), "count")
    """Of averages."""
    rate = reading("ACQuire:SRATe", "_rate_hz")

    points = query("ACQuire:POINts")(lambda self: f"{self._points:+d}")

    # ---- channels -------------------------------------------------------------------------------

    display = channel_setting(CHANNEL + ":DISPlay", Boolean(), "on")
    """Only channels that are on are recorded."""
    range = settled_setting(CHANNEL + ":RANGe", RANGE, "range_v")
    """From the bottom of the screen to its top."""
    scale = settled_setting(CHANNEL + ":SCALe", SCALE, "range_v")
    offset = settled_setting(CHANNEL + ":OFFSet", Number("V"), "offset_v")
    """The middle of the screen. Without an error it becomes the nearest that there is."""

    @command(CHANNEL + ":COUPling", Keyword("DC", "AC"))
    def set_coupling(self, channel: int, coupling: str) -> None:
        """`:CHANnel<n>:COUPling`."""
        if coupling == "AC":
            raise ScpiError(-241, "Hardware missing")

    coupling = constant(CHANNEL + ":COUPling", "DC")

    impedance = settled_setting(CHANNEL + ":IMPedance", Keyword("ONEMeg", "FIFTy"), "impedance")
    """What loads an output is the bench's affair; the ranges are others."""

    @command(CHANNEL + ":PROBe", Number(low=0.1, high=10e3))
    def set_probe(self, channel: int, attenuation: float) -> None:
        """`:CHANnel<n>:PROBe`: range, offset and trigger level stay what they are at the input."""
        settings = self.channels[channel]
        factor = attenuation / settings.probe
        settings.probe = attenuation
        settings.range_v *= factor
        settings.offset_v *= factor
        settings.level_v *= factor
        self.changed()

    probe = reading(CHANNEL + ":PROBe", "probe", of=channel_of)
    bandwidth_limit = channel_setting(CHANNEL + ":BWLimit", Boolean(), "limited")
    """A low pass of 20 MHz."""

    # ---- time base ------------------------------------------------------------------------------

    time_mode = constant("TIMebase:MODE", "MAIN", Keyword("MAIN"))
    time_range = scope_setting("TIMebase:RANGe", Number("S", low=20e-9, high=500.0), "time_range_s")
    """From the left of the screen to its right."""
    time_scale = scope_setting("TIMebase:SCALe", PerDivision("S", low=2e-9, high=50.0), "time_range_s")
    position = scope_setting("TIMebase:POSition", Number("S", low=-500.0, high=500.0), "position_s")
    """The time of the reference since the trigger."""
    reference = scope_setting("TIMebase:REFerence", Keyword("LEFT", "CENTer", "RIGHt"), "reference")
    """One division from the left, the middle, one division from the right."""

    # ---- trigger --------------------------------------------------------------------------------

    trigger_mode = constant("TRIGger:MODE", "EDGE", Keyword("EDGE"))
    sweep = scope_setting("TRIGger:SWEep", Keyword("AUTO", "NORMal"), "sweep")
    source = scope_setting("TRIGger[:EDGE]:SOURce", Keyword(*_CHANNELS, "EXTernal"), "source")

    @command("TRIGger[:EDGE]:LEVel", Number("V"), Keyword(*_CHANNELS, "EXTernal"), required=1)
    def set_level(self, volts: float, source: str | None = None) -> None:
        """`:TRIGger[:EDGE]:LEVel`, of the source that is set, or of another."""
        source = source or self._set.source
        channel = None if source == "EXT" else self.channels[int(source[-1])]
        low, high = channel.bounds() if channel else (-EXTERNAL_RANGE_V, EXTERNAL_RANGE_V)
        if not low <= volts <= high:
            raise ScpiError(-222)
        if channel:
            channel.level_v = volts
        else:
            self._set.external_level_v = volts
        self.changed()

    @query("TRIGger[:EDGE]:LEVel", Keyword(*_CHANNELS, "EXTernal"), required=0)
    def level(self, source: str | None = None) -> float:
        """`:TRIGger[:EDGE]:LEVel?`."""
        source = source or self._set.source
        return self._set.external_level_v if source == "EXT" else self.channels[int(source[-1])].level_v

    slope = scope_setting("TRIGger[:EDGE]:SLOPe", Keyword("POSitive", "NEGative"), "slope")

    # ---- waveforms ------------------------------------------------------------------------------

    waveform_source = transfer_setting("WAVeform:SOURce", Keyword(*_CHANNELS), "waveform_source")
    format = transfer_setting("WAVeform:FORMat", Keyword("BYTE", "WORD", "ASCii"), "format")
    byte_order = transfer_setting("WAVeform:BYTeorder", Keyword("LSBFirst", "MSBFirst"), "byte_order")
    unsigned = transfer_setting("WAVeform:UNSigned", Boolean(), "unsigned")

    @command("WAVeform:POINts", Integer(low=100, high=8e6))
    def set_waveform_points(self, points: float) -> None:
        """`:WAVeform:POINts`: as many at most. `MAX` means all, and sets the mode to MAXimum, too."""
        self._set.points = points
        if points == 8e6:
            self._set.points_mode = "MAX"

    waveform_points = query("WAVeform:POINts")(lambda self: f"{self._sent()[1]:+d}")
    """As many as `:WAVeform:DATA?` gives, 0 if it has nothing to give."""

    points_mode = transfer_setting("WAVeform:POINts:MODE", Keyword("NORMal", "MAXimum", "RAW"), "points_mode")
    """The measurement record, or the raw one, which there is when it has stopped."""

    @query("WAVeform:PREamble")
    def preamble(self) -> str:
        """`:WAVeform:PREamble?`: how to read the data; without a record there are 0 points, 0 s and 0 V apart."""
        settings = self._set
        every, points = self._sent()
        middle, y_step = self._steps()
        record, number = self._record, self._source
        x_step, first_s, step_v, offset_v, kind = 0.0, 0.0, 0.0, 0.0, settings.kind
        if record and points:
            (range_v, offset_v), kind = record.scales[number], record.kind
            x_step, first_s, step_v = every / record.rate_hz, record.first_s, range_v / y_step
        return (
            ",".join(f"{n:+d}" for n in (_FORMATS[settings.format], _TYPES[kind], points, 1))
            + f",{x_step:+.15E},{first_s:+.15E},+0,{step_v:+.9E},{offset_v:+.9E},{middle:+d}"
        )

    @query("WAVeform:DATA")
    def data(self) -> bytes:
        """`:WAVeform:DATA?`."""
        every, points = self._sent()
        record, number = self._record, self._source
        if record is None or not points:
            raise ScpiError(-230)
        spare = _BITS[record.kind] - 8
        codes = record.codes[number][::every]
        clipped_low, clipped_high = codes >> spare <= 1, codes >> spare == 255
        middle, steps = self._steps()
        values = codes << 16 - 8 - spare if steps == 1 << 16 else codes >> spare
        values[clipped_low], values[clipped_high] = 1, steps - 1
        if self._set.format == "ASC":
            range_v, offset_v = record.scales[number]
            volts = (values - middle) * (range_v / steps) + offset_v
            return definite_block(",".join(f"{v: .5E}" for v in volts).encode(), digits=8)
        values -= steps // 2 - middle
        order = "<" if self._set.byte_order == "LSBF" else ">"
        sent = values.astype(f"{order}{'u' if self._set.unsigned else 'i'}{1 if steps == 256 else 2}")
        return definite_block(sent.data, digits=8)

    def _steps(self) -> tuple[int, int]:
        """The value in the middle of the screen, and how many values there are."""
        steps = 256 if self._set.format == "BYTE" else 1 << 16
        return steps // 2 if self._set.unsigned or self._set.format == "ASC" else 0, steps

    @property
    def _source(self) -> int:
        return int(self._set.waveform_source[-1])

    def _sent(self) -> tuple[int, int]:
        """Every how many points are sent, and how many points that makes."""
        self.look()
        settings = self._set
        if self._record is None or self._source not in self._record.codes:
            return 1, 0
        count = len(self._record.codes[self._source])
        raw = settings.points_mode != "NORM" and not self._running
        every = math.ceil(count / min(settings.points, math.inf if raw else MEASUREMENT_POINTS))
        return every, math.ceil(count / every)


def _low_pass(volts: NDArray[np.float64], rate_hz: float) -> NDArray[np.float64]:
    """One pole at the bandwidth limit, at rest before the record."""
    decay = 2 * math.pi * BANDWIDTH_LIMIT_HZ / rate_hz
    answer = np.exp(-decay * np.arange(math.ceil(12 / decay)))
    before = np.full(len(answer) - 1, volts[0])
    return np.convolve(np.concatenate((before, volts)), answer / answer.sum(), mode="valid")
