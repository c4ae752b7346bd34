"""Keysight 33512B: a generator of arbitrary waveforms with two channels (33500 Series Operating and Service Guide).

What it plays goes to a `VirtualBench`. Sweeps, modulation, gated bursts, pulses, noise, sequences, files and amplitudes
in volts rms or dBm are missing. Bursts of the external trigger never begin: nothing is connected to it. Where the guide
says that a setting is adjusted, it is adjusted, and the error queue says so.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np

from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.function_generator import FunctionGenerator, channel_of, channel_setting, limit, negative
from reservoir_hw.emulators.keysight.channel import BUILT_IN, FULL_SCALE, HIGHEST_HZ, Channel, Counts, WaveformMemory
from reservoir_hw.emulators.scpi.arguments import Boolean, Integer, Keyword, Number, Numbers, String
from reservoir_hw.emulators.scpi.messages import ScpiError
from reservoir_hw.emulators.scpi.tree import command, query, setting

SOURCE, OUTPUT, TRIGGER = "[SOURce{channel:1-2}:]", "OUTPut{channel:1-2}", "TRIGger{channel:1-2}"
# The second track of a waveform is an option (IQ player), which is not installed.
ARBITRARY = SOURCE + "DATA:ARBitrary{track:1-1}"
MEMORY_SAMPLES = 1_048_576
SMALLEST_STEP_V = 1e-3


FREQUENCY = Number("HZ", 1e-6, limit("highest_hz"), default=1e3, clips=True)
AMPLITUDE = Number(
    ("V", "VPP"), limit("lowest_vpp"), lambda generator, n: 2 * generator.channels[n].highest_v, clips=True
)
OFFSET = Number("V", negative("highest_offset_v"), limit("highest_offset_v"), default=0.0, clips=True)
LEVEL = Number("V", negative("highest_v"), limit("highest_v"), clips=True)
# Of a sine: what the emulated instrument takes for any shape.
_VPP_OF_VRMS = 2 * math.sqrt(2)
LOAD = Number("OHM", 1.0, 10e3, default=50.0, infinity=True, clips=True)
RATE = Number("SA/S", 1e-6, limit("highest_rate_hz"), default=40e3, clips=True)
CYCLES = Integer((), 1, 100_000_000, default=1, infinity=True, clips=True)
INTERVAL = Number("S", 1e-6, 8000.0, clips=True)
NAME = String(bare=True)
FUNCTION = Keyword("SINusoid", "SQUare", "TRIangle", "RAMP", "ARBitrary", "DC")


def _limits(number: Number) -> Number:
    return replace(number, words_only=True)


class Keysight33512B(FunctionGenerator[Channel]):
    """The generator, connected to a bench.

    Args:
        bench: What its outputs are connected to.
        memory_samples: Per channel.
    """

    identity = "Keysight Technologies,33512B,MY00000001,5.03-3.15-2.00-58-00"

    def __init__(self, bench: VirtualBench, memory_samples: int = MEMORY_SAMPLES) -> None:
        super().__init__(bench)
        self.memories = {number: WaveformMemory(memory_samples) for number in (1, 2)}
        self.channels = {number: Channel(memory=memory) for number, memory in self.memories.items()}
        self._byte_order = "NORM"
        self._nothing = threading.Event()

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Waveforms stay in memory."""
        self._byte_order = "NORM"
        for number, memory in self.memories.items():
            self.channels[number] = Channel(memory=memory)
            self._apply(number)

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

    def format_error(self, error: ScpiError) -> str:
        """With a sign: `+0,"No error"`."""
        return f'{error.code:+d},"{error.text}"'

    # ---- the bench ------------------------------------------------------------------------------

    def _repeat_s(self, number: int) -> float | None:
        return self.channels[number].repeat_s

    def _adjusted(self, what: str) -> None:
        self.report(ScpiError(-221, f"Settings conflict; {what}"))

    # ---- shape and frequency --------------------------------------------------------------------

    @command(SOURCE + "FUNCtion", FUNCTION)
    def set_function(self, number: int, function: str) -> None:
        """`FUNCtion`."""
        channel = self.channels[number]
        channel.function = function
        if function in HIGHEST_HZ and channel.frequency_hz > channel.highest_hz:
            channel.frequency_hz = channel.highest_hz
            self._adjusted("frequency has been adjusted for new function")
        self._apply(number)

    @query(SOURCE + "FUNCtion")
    def function(self, number: int) -> str:
        """`FUNCtion?`."""
        return self.channels[number].function

    @command(SOURCE + "FREQuency", FREQUENCY)
    def set_frequency(self, number: int, value: float) -> None:
        """`FREQuency`; of an arbitrary waveform, it sets the sample rate."""
        channel = self.channels[number]
        if channel.function == "ARB":
            channel.rate_hz = value * channel.points
        else:
            channel.frequency_hz = value
        self._apply(number)

    @query(SOURCE + "FREQuency", _limits(FREQUENCY), required=0)
    def frequency(self, number: int, limit: float | None = None) -> float:
        """`FREQuency?`."""
        channel = self.channels[number]
        value = channel.rate_hz / channel.points if channel.function == "ARB" else channel.frequency_hz
        return value if limit is None else limit

    # ---- levels ---------------------------------------------------------------------------------

    @command(SOURCE + "VOLTage", AMPLITUDE)
    def set_amplitude(self, number: int, value: float) -> None:
        """`VOLTage`: peak to peak. The offset gives way."""
        channel = self.channels[number]
        channel.amplitude_vpp = value * (_VPP_OF_VRMS if channel.unit == "VRMS" else 1)
        if abs(channel.offset_v) > channel.highest_offset_v:
            channel.offset_v = math.copysign(channel.highest_offset_v, channel.offset_v)
            self._adjusted("offset changed due to amplitude")
        self._apply(number)

    @query(SOURCE + "VOLTage", _limits(AMPLITUDE), required=0)
    def amplitude(self, number: int, limit: float | None = None) -> float:
        """`VOLTage?`."""
        channel = self.channels[number]
        shown = channel.amplitude_vpp / (_VPP_OF_VRMS if channel.unit == "VRMS" else 1)
        return shown if limit is None else limit

    amplitude_unit = setting(SOURCE + "VOLTage:UNIT", Keyword("VPP", "VRMS"), "unit", of=channel_of)
    """Of what `VOLTage` takes and says. The signal stays the same."""

    @command(SOURCE + "VOLTage:OFFSet", OFFSET)
    def set_offset(self, number: int, value: float) -> None:
        """`VOLTage:OFFSet`."""
        self.channels[number].offset_v = value
        self._apply(number)

    @query(SOURCE + "VOLTage:OFFSet", _limits(OFFSET), required=0)
    def offset(self, number: int, limit: float | None = None) -> float:
        """`VOLTage:OFFSet?`."""
        return self.channels[number].offset_v if limit is None else limit

    @command(SOURCE + "VOLTage:HIGH", LEVEL)
    def set_high_level(self, number: int, value: float) -> None:
        """`VOLTage:HIGH`. The low level gives way."""
        low = self.low_level(number)
        if value <= low:
            low = value - SMALLEST_STEP_V
            self._adjusted("low level changed due to high level")
        self._set_levels(number, low, value)

    @query(SOURCE + "VOLTage:HIGH")
    def high_level(self, number: int) -> float:
        """`VOLTage:HIGH?`."""
        return self.channels[number].high_v

    @command(SOURCE + "VOLTage:LOW", LEVEL)
    def set_low_level(self, number: int, value: float) -> None:
        """`VOLTage:LOW`. The high level gives way."""
        high = self.high_level(number)
        if value >= high:
            high = value + SMALLEST_STEP_V
            self._adjusted("high level changed due to low level")
        self._set_levels(number, value, high)

    @query(SOURCE + "VOLTage:LOW")
    def low_level(self, number: int) -> float:
        """`VOLTage:LOW?`."""
        return self.channels[number].low_v

    def _set_levels(self, number: int, low: float, high: float) -> None:
        channel = self.channels[number]
        channel.amplitude_vpp, channel.offset_v = high - low, (high + low) / 2
        self._apply(number)

    # ---- outputs --------------------------------------------------------------------------------

    output = channel_setting(OUTPUT + "[:STATe]", Boolean(), "on")
    polarity = channel_setting(OUTPUT + ":POLarity", Keyword("NORMal", "INVerted"), "polarity")
    """Of the waveform, around its offset."""

    @command(OUTPUT + ":LOAD", LOAD)
    def set_load(self, number: int, ohm: float) -> None:
        """`OUTPut:LOAD`. What the generator makes stays the same; the volts that it states do not."""
        self.channels[number].set_load(ohm)
        self._apply(number)

    @query(OUTPUT + ":LOAD", _limits(LOAD), required=0)
    def load(self, number: int, limit: float | None = None) -> float:
        """`OUTPut:LOAD?`."""
        return self.channels[number].load_ohm if limit is None else limit

    # ---- arbitrary waveforms --------------------------------------------------------------------

    byte_order = setting("FORMat:BORDer", Keyword("NORMal", "SWAPped"), "_byte_order")
    """NORM has the most significant byte first."""

    @command(SOURCE + "DATA:VOLatile:CLEar")
    def clear_waveforms(self, number: int) -> None:
        """`DATA:VOLatile:CLEar`. The built-in waveform is selected."""
        self.memories[number].clear()
        self.channels[number].arbitrary = BUILT_IN
        self._apply(number)

    @query(SOURCE + "DATA:VOLatile:CATalog")
    def waveforms(self, number: int) -> str:
        """`DATA:VOLatile:CATalog?`."""
        return ",".join(f'"{name}"' for name in self.memories[number].names)

    @query(SOURCE + "DATA:VOLatile:FREE")
    def free_memory(self, number: int) -> str:
        """`DATA:VOLatile:FREE?`: samples."""
        return f"{self.memories[number].free:+d}"

    @command(ARBITRARY, NAME, Numbers(low=-1.0, high=1.0, or_block=True))
    def load_levels(self, number: int, _track: int, name: str, data: np.ndarray | memoryview) -> None:
        """`DATA:ARBitrary`: values within ±1, as text or float32."""
        values = self._from_block(data, "f4") if isinstance(data, memoryview) else data
        if not (np.abs(values) <= 1).all():
            raise ScpiError(-222)
        self._load(number, name, values * FULL_SCALE)

    @command(ARBITRARY + ":DAC", NAME, Numbers(low=-FULL_SCALE, high=FULL_SCALE, or_block=True))
    def load_counts(self, number: int, _track: int, name: str, data: np.ndarray | memoryview) -> None:
        """`DATA:ARBitrary:DAC`: values within ±32767, as text or int16."""
        values = self._from_block(data, "i2") if isinstance(data, memoryview) else data
        if (values < -FULL_SCALE).any():
            raise ScpiError(-222)
        self._load(number, name, values)

    def _from_block(self, data: memoryview, kind: str) -> np.ndarray:
        dtype = np.dtype(kind).newbyteorder(">" if self._byte_order == "NORM" else "<")
        if data.nbytes % 2:
            raise ScpiError(800, "Block length must be even")
        if data.nbytes % dtype.itemsize:
            raise ScpiError(-161)
        return np.frombuffer(data, dtype)

    def _load(self, number: int, name: str, values: np.ndarray) -> None:
        counts: Counts = np.rint(values).astype(np.int16)
        self.memories[number].load(name, counts)

    @command(SOURCE + "FUNCtion:ARBitrary", NAME)
    def select_waveform(self, number: int, name: str) -> None:
        """`FUNCtion:ARBitrary`."""
        self.memories[number][name]
        self.channels[number].arbitrary = name.upper()
        self._apply(number)

    @query(SOURCE + "FUNCtion:ARBitrary")
    def selected_waveform(self, number: int) -> str:
        """`FUNCtion:ARBitrary?`."""
        return f'"{self.channels[number].arbitrary}"'

    @query(SOURCE + "FUNCtion:ARBitrary:POINts")
    def points(self, number: int) -> int:
        """`FUNCtion:ARBitrary:POINts?`."""
        return self.channels[number].points

    @command(SOURCE + "FUNCtion:ARBitrary:SRATe", RATE)
    def set_rate(self, number: int, value: float) -> None:
        """`FUNCtion:ARBitrary:SRATe`."""
        self.channels[number].rate_hz = value
        self._apply(number)

    @query(SOURCE + "FUNCtion:ARBitrary:SRATe", _limits(RATE), required=0)
    def rate(self, number: int, limit: float | None = None) -> float:
        """`FUNCtion:ARBitrary:SRATe?`."""
        return self.channels[number].rate_hz if limit is None else limit

    @command(SOURCE + "FUNCtion:ARBitrary:FREQuency", Number("HZ", low=0.0))
    def set_arbitrary_frequency(self, number: int, value: float) -> None:
        """`FUNCtion:ARBitrary:FREQuency`: of the whole waveform."""
        self._set_rate_of_waveform(number, value)

    @query(SOURCE + "FUNCtion:ARBitrary:FREQuency")
    def arbitrary_frequency(self, number: int) -> float:
        """`FUNCtion:ARBitrary:FREQuency?`."""
        return self.channels[number].rate_hz / self.channels[number].points

    @command(SOURCE + "FUNCtion:ARBitrary:PERiod", Number("S", low=1e-12))
    def set_arbitrary_period(self, number: int, value: float) -> None:
        """`FUNCtion:ARBitrary:PERiod`: of the whole waveform."""
        self._set_rate_of_waveform(number, 1 / value)

    @query(SOURCE + "FUNCtion:ARBitrary:PERiod")
    def arbitrary_period(self, number: int) -> float:
        """`FUNCtion:ARBitrary:PERiod?`."""
        return 1 / self.arbitrary_frequency(number)

    def _set_rate_of_waveform(self, number: int, frequency_hz: float) -> None:
        text = repr(frequency_hz * self.channels[number].points)
        self.set_rate(number, RATE.read(text.encode(), self, [number]))

    @command(SOURCE + "FUNCtion:ARBitrary:FILTer", Keyword("NORMal", "STEP", "OFF"))
    def set_filter(self, number: int, kind: str) -> None:
        """`FUNCtion:ARBitrary:FILTer`."""
        channel = self.channels[number]
        channel.filter = kind
        if channel.rate_hz > channel.highest_rate_hz:
            channel.rate_hz = channel.highest_rate_hz
            self._adjusted("sample rate reduced, as the filter is off")
        self._apply(number)

    @query(SOURCE + "FUNCtion:ARBitrary:FILTer")
    def filter(self, number: int) -> str:
        """`FUNCtion:ARBitrary:FILTer?`."""
        return self.channels[number].filter

    # ---- bursts and triggers --------------------------------------------------------------------

    burst = channel_setting(SOURCE + "BURSt[:STATe]", Boolean(), "burst")
    burst_mode = channel_setting(SOURCE + "BURSt:MODE", Keyword("TRIGgered", "GATed"), "burst_mode")
    """Nothing is connected to the input that gates."""

    @command(SOURCE + "BURSt:NCYCles", CYCLES)
    def set_cycles(self, number: int, value: float) -> None:
        """`BURSt:NCYCles`."""
        channel = self.channels[number]
        channel.cycles = value
        if math.isinf(value) and channel.repeat_s:
            channel.source = "BUS"
            self._adjusted("infinite burst changed trigger source to BUS")
        self._apply(number)

    @query(SOURCE + "BURSt:NCYCles")
    def cycles(self, number: int) -> float:
        """`BURSt:NCYCles?`."""
        return float(self.channels[number].cycles)

    burst_phase = channel_setting(SOURCE + "BURSt:PHASe", Number("DEG", -360.0, 360.0), "burst_phase_deg")
    """With which sample of an arbitrary waveform a burst begins, and where the output waits."""
    burst_period = channel_setting(SOURCE + "BURSt:INTernal:PERiod", INTERVAL, "burst_period_s")
    """For the source IMM."""

    @command(TRIGGER + ":SOURce", Keyword("IMMediate", "EXTernal", "TIMer", "BUS"))
    def set_source(self, number: int, source: str) -> None:
        """`TRIGger:SOURce`."""
        channel = self.channels[number]
        channel.source = source
        if math.isinf(channel.cycles) and channel.repeat_s:
            channel.cycles = 1
            self._adjusted("turned off infinite burst to allow immediate trigger source")
        self._apply(number)

    @query(TRIGGER + ":SOURce")
    def source(self, number: int) -> str:
        """`TRIGger:SOURce?`."""
        return self.channels[number].source

    timer = channel_setting(TRIGGER + ":TIMer", INTERVAL, "timer_s")
    """For the source TIM."""

    @command(TRIGGER + "[:IMMediate]")
    def trigger_now(self, number: int) -> None:
        """`TRIGger`: whatever the source is."""
        self._trigger([number])

    @command("ABORt")
    def abort(self) -> None:
        """`ABORt` ends bursts without end. Channels wait for their next trigger."""
        self._stop(list(self._endless))
