"""Keysight 33512B: a generator of arbitrary waveforms with two channels (33500 Series Operating and Service Guide).

What it plays goes to a `VirtualBench`. Sweeps, modulation, gated bursts, pulses, noise, sequences, files and amplitudes
in volts rms or dBm are missing. Bursts of the external trigger never begin: nothing is connected to it. Where the guide
says that a setting is adjusted, it is adjusted, and the error queue says so.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.function_generator import (
    OUTPUT,
    SOURCE,
    FunctionGenerator,
    GeneratorChannel,
    channel_setting,
)
from reservoir_hw.emulators.physics.signals import CYCLE_SAMPLES, SHAPES, Interpolation
from reservoir_hw.emulators.scpi.messages import Integer, Keyword, Number, Numbers, ScpiError, String
from reservoir_hw.emulators.scpi.tree import Declared, Pair, channel_of, command, limit, pair, query, reading, setting

FULL_SCALE = 32767
# Of a sine: what the emulated instrument takes for any shape.
_VPP_OF = {"VPP": 1.0, "VRMS": 2 * math.sqrt(2)}
SHORTEST, LONGEST_NAME = 8, 12
BUILT_IN = r"INT:\BUILTIN\EXP_RISE.ARB"

Counts = NDArray[np.int16]


class WaveformMemory:
    """Samples of the converter, (n,) int16 within ±32767, by name. Names are compared without regard to case."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.clear()

    def __getitem__(self, name: str) -> Counts:
        """Raises `ScpiError` +785 if there is no such waveform."""
        try:
            return self._waveforms[name.upper()]
        except KeyError:
            raise ScpiError(785, "Specified arb waveform does not exist") from None

    @property
    def catalog(self) -> str:
        """The names in the order in which they were loaded, that of the one that is always there first."""
        return ",".join(f'"{name}"' for name in self._waveforms)

    @property
    def free(self) -> int:
        """Samples."""
        return self._samples - sum(len(counts) for name, counts in self._waveforms.items() if name != BUILT_IN)

    def clear(self) -> None:
        """Only the one that is always there is left."""
        rise = np.rint(FULL_SCALE * (1 - np.exp(-np.arange(200) / 40)))
        self._waveforms: dict[str, Counts] = {BUILT_IN: rise.astype(np.int16)}

    def load(self, name: str, counts: NDArray[Any]) -> None:
        """Round and keep. Raises `ScpiError` for a name that is taken or too long, and too few or too many samples."""
        if len(name) > LONGEST_NAME:
            raise ScpiError(783, "Arb waveform name too long")
        if name.upper() in self._waveforms:
            raise ScpiError(786, "Specified arb waveform already exists")
        if len(counts) < SHORTEST:
            raise ScpiError(-220, f"Parameter error; arb waveform has fewer than {SHORTEST} points")
        if len(counts) > self.free:
            raise ScpiError(781, "Not enough memory to store new arb waveform")
        self._waveforms[name.upper()] = np.rint(counts).astype(np.int16)


HIGHEST_HZ = {"SIN": 20e6, "SQU": 20e6, "RAMP": 200e3, "TRI": 200e3}
HIGHEST_RATE_HZ, HIGHEST_UNFILTERED_RATE_HZ = 250e6, 62.5e6


@dataclass(kw_only=True)
class Channel(GeneratorChannel):
    """Settings as after `*RST`."""

    smallest_open_vpp = 2e-3
    memory: WaveformMemory
    frequency_hz: float = 1e3
    amplitude_vpp: float = 0.1
    unit: str = "VPP"
    arbitrary: str = BUILT_IN
    rate_hz: float = 40e3
    filter: str = "STEP"
    cycles: float = 1
    burst_phase_deg: float = 0.0
    burst_period_s: float = 10e-3
    source: str = "IMM"
    timer_s: float = 1.0

    @property
    def highest_hz(self) -> float:
        """Of the function."""
        return self.highest_rate_hz / self.points if self.function == "ARB" else HIGHEST_HZ.get(self.function, 20e6)

    @property
    def highest_rate_hz(self) -> float:
        """Samples a second. Without a filter it is less."""
        return HIGHEST_UNFILTERED_RATE_HZ if self.filter == "OFF" else HIGHEST_RATE_HZ

    @property
    def arbitrary_hz(self) -> float:
        """How often the arbitrary waveform that is selected is played."""
        return self.rate_hz / self.points

    @property
    def shown_hz(self) -> float:
        """What `FREQuency` says; of an arbitrary waveform, it follows from the sample rate."""
        return self.arbitrary_hz if self.function == "ARB" else self.frequency_hz

    @shown_hz.setter
    def shown_hz(self, value: float) -> None:
        if self.function == "ARB":
            self.rate_hz = value * self.points
        else:
            self.frequency_hz = value

    @property
    def shown_amplitude(self) -> float:
        """In the unit that was chosen."""
        return self.amplitude_vpp / _VPP_OF[self.unit]

    @shown_amplitude.setter
    def shown_amplitude(self, value: float) -> None:
        self.amplitude_vpp = value * _VPP_OF[self.unit]

    @property
    def points(self) -> int:
        """Samples of the arbitrary waveform that is selected."""
        return len(self.memory[self.arbitrary])

    @property
    def repeat_s(self) -> float | None:
        """How often a burst begins by itself; None: somebody has to trigger it."""
        return {"IMM": self.burst_period_s, "TIM": self.timer_s}.get(self.source)

    @property
    def _interpolation(self) -> Interpolation:
        held = self.filter == "OFF" if self.function == "ARB" else self.function == "SQU"
        return "hold" if held else "linear"

    def _cycle(self) -> tuple[NDArray[np.float64], float]:
        if self.function == "ARB":
            shape, rate_hz = self.memory[self.arbitrary] / FULL_SCALE, self.rate_hz
        else:
            shape, rate_hz = SHAPES[self.function], self.frequency_hz * CYCLE_SAMPLES
        if self.burst:
            shape = np.roll(shape, -round(self.burst_phase_deg / 360 * len(shape)))
        sign = -1 if self.polarity == "INV" else 1
        return self.offset_v + sign * shape * (self.amplitude_vpp / 2), rate_hz


TRIGGER = "TRIGger{channel:1-2}"
# The second track of a waveform is an option (IQ player), which is not installed.
ARBITRARY = SOURCE + "DATA:ARBitrary{1-1}"
MEMORY_SAMPLES = 1_048_576
SMALLEST_STEP_V = 1e-3


FREQUENCY = Number("HZ", 1e-6, limit("highest_hz"), default=1e3, clips=True)
AMPLITUDE = Number(("V", "VPP"), limit("lowest_vpp"), limit("highest_v", 2), clips=True)
OFFSET = Number("V", limit("highest_offset_v", -1), limit("highest_offset_v"), default=0.0, clips=True)
LEVEL = Number("V", limit("highest_v", -1), limit("highest_v"), clips=True)
LOAD = Number("OHM", 1.0, 10e3, default=50.0, infinity=True, clips=True)
RATE = Number("SA/S", 1e-6, limit("highest_rate_hz"), default=40e3, clips=True)
CYCLES = Integer((), 1, 100_000_000, default=1, infinity=True, clips=True)
INTERVAL = Number("S", 1e-6, 8000.0, clips=True)
NAME = String(bare=True)
TRIGGER_SOURCE = Keyword("IMMediate", "EXTernal", "TIMer", "BUS")
FILTER = Keyword("NORMal", "STEP", "OFF")
FUNCTION = Keyword("SINusoid", "SQUare", "TRIangle", "RAMP", "ARBitrary", "DC")


def adjustable(
    header: str, number: Number, attribute: str, changed: Callable[..., None] = FunctionGenerator.apply
) -> Pair:
    """A setting of a channel whose query takes the words for limits, too, and then answers the limit."""

    def tell(generator: Any, channel: int, limit: float | None = None) -> float:
        return getattr(generator.channels[channel], attribute) if limit is None else limit

    changing, _ = setting(header, number, attribute, channel_of, changed).scpi_headers
    words = replace(number, words_only=True)
    return Pair((changing, Declared(header, (words,), 0, is_query=True, method=tell)))


class Keysight33512B(FunctionGenerator[Channel]):
    """The generator, connected to a bench.

    Args:
        bench: What its outputs are connected to.
        memory_samples: Per channel.
    """

    identity = "Keysight Technologies,33512B,MY00000001,5.03-3.15-2.00-58-00"
    error_format = '{0.code:+d},"{0.text}"'

    def __init__(self, bench: VirtualBench, memory_samples: int = MEMORY_SAMPLES) -> None:
        super().__init__(bench)
        self.memories = {number: WaveformMemory(memory_samples) for number in (1, 2)}
        self.channels = {}
        self._nothing = threading.Event()
        self.reset()

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Waveforms stay in memory."""
        self._byte_order = "NORM"
        for number, memory in self.memories.items():
            self.channels[number] = Channel(memory=memory)
            self.apply(number)

    def trigger(self) -> None:
        """The software trigger, for channels whose source is BUS."""
        self._trigger(number for number, channel in self.channels.items() if channel.source == "BUS")

    def operation_complete(self, timeout_s: float) -> bool:
        """A burst is over when the bench has played it. Only one without end is pending."""
        if self._endless:
            self._nothing.wait(timeout_s)
        return not self._endless

    def answer(self, value: Any) -> bytes:
        """Infinity as SCPI-99 has it (volume 1, 7.2.1.4)."""
        return b"+9.9E+37" if value == math.inf else super().answer(value)

    # ---- the bench ------------------------------------------------------------------------------

    def _repeat_s(self, number: int) -> float | None:
        return self.channels[number].repeat_s

    def _adjusted(self, what: str) -> None:
        self.report(ScpiError(-221, f"Settings conflict; {what}"))

    # ---- shape and frequency --------------------------------------------------------------------

    def _function_chosen(self, number: int) -> None:
        channel = self.channels[number]
        if channel.function in HIGHEST_HZ and channel.frequency_hz > channel.highest_hz:
            channel.frequency_hz = channel.highest_hz
            self._adjusted("frequency has been adjusted for new function")
        self.apply(number)

    function = setting(SOURCE + "FUNCtion", FUNCTION, "function", of=channel_of, changed=_function_chosen)
    frequency = adjustable(SOURCE + "FREQuency", FREQUENCY, "shown_hz")
    """Of an arbitrary waveform, it sets the sample rate."""

    # ---- levels ---------------------------------------------------------------------------------

    def _amplitude_chosen(self, number: int) -> None:
        """The offset gives way."""
        channel = self.channels[number]
        if abs(channel.offset_v) > channel.highest_offset_v:
            channel.offset_v = math.copysign(channel.highest_offset_v, channel.offset_v)
            self._adjusted("offset changed due to amplitude")
        self.apply(number)

    amplitude = adjustable(SOURCE + "VOLTage", AMPLITUDE, "shown_amplitude", _amplitude_chosen)
    amplitude_unit = setting(SOURCE + "VOLTage:UNIT", Keyword("VPP", "VRMS"), "unit", of=channel_of)
    """Of what `VOLTage` takes and says. The signal stays the same."""
    offset = adjustable(SOURCE + "VOLTage:OFFSet", OFFSET, "offset_v")
    high_level = reading(SOURCE + "VOLTage:HIGH", "high_v", of=channel_of)
    low_level = reading(SOURCE + "VOLTage:LOW", "low_v", of=channel_of)

    @command(SOURCE + "VOLTage:HIGH", LEVEL)
    def set_high_level(self, number: int, value: float) -> None:
        """`VOLTage:HIGH`. The low level gives way."""
        low = self.channels[number].low_v
        if value <= low:
            low = value - SMALLEST_STEP_V
            self._adjusted("low level changed due to high level")
        self._set_levels(number, low, value)

    @command(SOURCE + "VOLTage:LOW", LEVEL)
    def set_low_level(self, number: int, value: float) -> None:
        """`VOLTage:LOW`. The high level gives way."""
        high = self.channels[number].high_v
        if value >= high:
            high = value + SMALLEST_STEP_V
            self._adjusted("high level changed due to low level")
        self._set_levels(number, value, high)

    def _set_levels(self, number: int, low: float, high: float) -> None:
        channel = self.channels[number]
        channel.amplitude_vpp, channel.offset_v = high - low, (high + low) / 2
        self.apply(number)

    # ---- outputs --------------------------------------------------------------------------------

    load = adjustable(OUTPUT + ":LOAD", LOAD, "load")

    # ---- arbitrary waveforms --------------------------------------------------------------------

    byte_order = setting("FORMat:BORDer", Keyword("NORMal", "SWAPped"), "_byte_order")
    """NORM has the most significant byte first."""

    @command(SOURCE + "DATA:VOLatile:CLEar")
    def clear_waveforms(self, number: int) -> None:
        """`DATA:VOLatile:CLEar`. The built-in waveform is selected."""
        self.memories[number].clear()
        self.channels[number].arbitrary = BUILT_IN
        self.apply(number)

    catalog = query(SOURCE + "DATA:VOLatile:CATalog")(lambda self, number: self.memories[number].catalog)
    free_memory = query(SOURCE + "DATA:VOLatile:FREE")(lambda self, number: f"{self.memories[number].free:+d}")
    """Samples."""

    @command(ARBITRARY, NAME, Numbers(low=-1.0, high=1.0, or_block=True))
    def load_levels(self, number: int, name: str, data: np.ndarray | memoryview) -> None:
        """`DATA:ARBitrary`: values within ±1, as text or float32."""
        values = self._from_block(data, "f4") if isinstance(data, memoryview) else data
        if not (np.abs(values) <= 1).all():
            raise ScpiError(-222)
        self.memories[number].load(name, values * FULL_SCALE)

    @command(ARBITRARY + ":DAC", NAME, Numbers(low=-FULL_SCALE, high=FULL_SCALE, or_block=True))
    def load_counts(self, number: int, name: str, data: np.ndarray | memoryview) -> None:
        """`DATA:ARBitrary:DAC`: values within ±32767, as text or int16."""
        values = self._from_block(data, "i2") if isinstance(data, memoryview) else data
        if (values < -FULL_SCALE).any():
            raise ScpiError(-222)
        self.memories[number].load(name, values)

    def _from_block(self, data: memoryview, kind: str) -> np.ndarray:
        dtype = np.dtype(kind).newbyteorder(">" if self._byte_order == "NORM" else "<")
        if data.nbytes % 2:
            raise ScpiError(800, "Block length must be even")
        if data.nbytes % dtype.itemsize:
            raise ScpiError(-161)
        return np.frombuffer(data, dtype)

    @command(SOURCE + "FUNCtion:ARBitrary", NAME)
    def select_waveform(self, number: int, name: str) -> None:
        """`FUNCtion:ARBitrary`."""
        self.memories[number][name]
        self.channels[number].arbitrary = name.upper()
        self.apply(number)

    selected = query(SOURCE + "FUNCtion:ARBitrary")(lambda self, number: f'"{self.channels[number].arbitrary}"')
    points = reading(SOURCE + "FUNCtion:ARBitrary:POINts", "points", of=channel_of)
    rate = adjustable(SOURCE + "FUNCtion:ARBitrary:SRATe", RATE, "rate_hz")

    @command(SOURCE + "FUNCtion:ARBitrary:FREQuency", Number("HZ", low=0.0))
    def set_arbitrary_frequency(self, number: int, value: float) -> None:
        """`FUNCtion:ARBitrary:FREQuency`: of the whole waveform."""
        text = repr(value * self.channels[number].points)
        self.channels[number].rate_hz = RATE.read(text.encode(), self, [number])
        self.apply(number)

    arbitrary_frequency = reading(SOURCE + "FUNCtion:ARBitrary:FREQuency", "arbitrary_hz", of=channel_of)
    arbitrary_period = pair(
        SOURCE + "FUNCtion:ARBitrary:PERiod",
        Number("S", low=1e-12),
        lambda self, number, seconds: self.set_arbitrary_frequency(number, 1 / seconds),
        lambda self, number: 1 / self.channels[number].arbitrary_hz,
    )

    def _filter_chosen(self, number: int) -> None:
        channel = self.channels[number]
        if channel.rate_hz > channel.highest_rate_hz:
            channel.rate_hz = channel.highest_rate_hz
            self._adjusted("sample rate reduced, as the filter is off")
        self.apply(number)

    filter = setting(SOURCE + "FUNCtion:ARBitrary:FILTer", FILTER, "filter", of=channel_of, changed=_filter_chosen)

    # ---- bursts and triggers --------------------------------------------------------------------

    @command(SOURCE + "BURSt:NCYCles", CYCLES)
    def set_cycles(self, number: int, value: float) -> None:
        """`BURSt:NCYCles`."""
        channel = self.channels[number]
        channel.cycles = value
        if math.isinf(value) and channel.repeat_s:
            channel.source = "BUS"
            self._adjusted("infinite burst changed trigger source to BUS")
        self.apply(number)

    cycles = query(SOURCE + "BURSt:NCYCles")(lambda self, number: float(self.channels[number].cycles))

    burst_phase = channel_setting(SOURCE + "BURSt:PHASe", Number("DEG", -360.0, 360.0), "burst_phase_deg")
    """With which sample of an arbitrary waveform a burst begins, and where the output waits."""
    burst_period = channel_setting(SOURCE + "BURSt:INTernal:PERiod", INTERVAL, "burst_period_s")
    """For the source IMM."""

    def _source_chosen(self, number: int) -> None:
        channel = self.channels[number]
        if math.isinf(channel.cycles) and channel.repeat_s:
            channel.cycles = 1
            self._adjusted("turned off infinite burst to allow immediate trigger source")
        self.apply(number)

    source = setting(TRIGGER + ":SOURce", TRIGGER_SOURCE, "source", of=channel_of, changed=_source_chosen)
    timer = channel_setting(TRIGGER + ":TIMer", INTERVAL, "timer_s")
    """For the source TIM."""

    trigger_now = command(TRIGGER + "[:IMMediate]")(lambda self, number: self._trigger([number]))
    """Whatever the source is."""
