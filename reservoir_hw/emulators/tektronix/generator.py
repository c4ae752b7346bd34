"""Tektronix AFG3152C: a generator of functions and waveforms with two channels (AFG3000 Series Programmer Manual).

What it plays goes to a `VirtualBench`. There is no command for a sample rate: a waveform of N points that is repeated
with the frequency f has the rate N · f. What the manual leaves open, or what is simpler here:

- A value beyond a limit is -222, and nothing changes.
- The manual's own numbers of errors (waveforms, memories) are replaced by those of SCPI.
- `*TRG` and `TRIGger` are -211 if no channel plays bursts.
- User memories are empty at first.
- Not emulated, and so errors: sweeps, modulation, pulses, noise and the other functions, gated bursts that begin, a
  delay of bursts, amplitudes in volts rms or dBm, limits of levels, concurrent channels, files. The amplitude is not
  reduced above 100 MHz.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.function_generator import FunctionGenerator, channel_setting, limit, negative
from reservoir_hw.emulators.scpi.arguments import Block, Boolean, Integer, Keyword, Number, definite_block
from reservoir_hw.emulators.scpi.messages import ScpiError
from reservoir_hw.emulators.scpi.tree import command, constant, query, setting
from reservoir_hw.emulators.tektronix.channel import (
    ARBITRARY,
    DEFAULT_POINTS,
    HIGHEST,
    LONGEST,
    SHORTEST,
    USER,
    Channel,
    WaveformMemory,
)

Method = TypeVar("Method", bound=Callable[..., Any])

SOURCE, OUTPUT, TRIGGER = "[SOURce{channel:1-2}:]", "OUTPut{channel:1-2}", "TRIGger[:SEQuence]"
LEVELS = SOURCE + "VOLTage[:LEVel][:IMMediate]"
OFFSET_STEP_V = LEVEL_STEP_V = 1e-3


def _rounded(value: float, step: float, digits: int) -> float:
    """To multiples of a step, or to so many digits if that is coarser."""
    if not value:
        return 0.0
    coarser = max(step, 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits))
    return float(f"{round(value / coarser) * coarser:.15g}")


FREQUENCY = Number("HZ", limit("lowest_hz"), limit("highest_hz"))
AMPLITUDE = Number(("V", "VPP"), limit("lowest_vpp"), limit("highest_vpp"))
OFFSET = Number("V", negative("highest_offset_v"), limit("highest_offset_v"))
LEVEL = Number("V", negative("highest_v"), limit("highest_v"))
FUNCTION = Keyword("SINusoid", "SQUare", "RAMP", "DC", "USER", *USER, "EMEMory")
EDIT_MEMORY, USER_MEMORY = Keyword("EMEMory"), Keyword("USER", *USER)
ANY_MEMORY = Keyword("EMEMory", "USER", *USER)
POINTS = Integer((), SHORTEST, LONGEST)


def _numbered(memory: str) -> str:
    """`USER` means `USER1`."""
    return "USER1" if memory == "USER" else memory


def _data_command(rest: str, *arguments: Any, required: int | None = None) -> Callable[[Method], Method]:
    """The subsystem has two names."""

    def declare(method: Method) -> Method:
        for root in ("DATA", "TRACe"):
            command(root + rest, *arguments, required=required)(method)
        return method

    return declare


def _data_query(rest: str, *arguments: Any) -> Callable[[Method], Method]:
    def declare(method: Method) -> Method:
        for root in ("DATA", "TRACe"):
            query(root + rest, *arguments)(method)
        return method

    return declare


class Afg3152C(FunctionGenerator[Channel]):
    """The generator, connected to a bench."""

    identity = "TEKTRONIX,AFG3152C,C000001,SCPI:99.0 FV:3.2.3"

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__(bench)
        self.memory = WaveformMemory()
        self.channels = {number: Channel(memory=self.memory) for number in (1, 2)}
        self._source, self._timer_s = "TIM", 1e-3

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """User memories keep their waveforms."""
        self._source, self._timer_s = "TIM", 1e-3
        self.memory.reset()
        for number in self.channels:
            self.channels[number] = Channel(memory=self.memory)
            self._apply(number)

    def trigger(self) -> None:
        """Of both channels, whatever the source is."""
        self._trigger(self.channels)

    def answer(self, value: Any) -> bytes:
        """Infinity as the manual has it."""
        return b"9.9E+37" if value == math.inf else super().answer(value)

    # ---- the bench ------------------------------------------------------------------------------

    def _repeat_s(self, number: int) -> float | None:
        return self._timer_s if self._source == "TIM" else None

    def _apply_all(self) -> None:
        for number in self.channels:
            self._apply(number)

    def _apply_memory(self, name: str) -> None:
        """A memory has changed: so has what plays it."""
        for number, channel in self.channels.items():
            if channel.function == name:
                self._apply(number)

    # ---- shape and frequency --------------------------------------------------------------------

    @command(SOURCE + "FUNCtion[:SHAPe]", FUNCTION)
    def set_function(self, number: int, function: str) -> None:
        """`FUNCtion`. The frequency becomes one that the function has."""
        function = _numbered(function)
        if function in ARBITRARY:
            self.memory[function]
        channel = self.channels[number]
        channel.function = function
        channel.frequency_hz = min(max(channel.frequency_hz, channel.lowest_hz), channel.highest_hz)
        self._apply(number)

    @query(SOURCE + "FUNCtion[:SHAPe]")
    def function(self, number: int) -> str:
        """`FUNCtion?`."""
        return self.channels[number].function

    @command(SOURCE + "FREQuency[:CW]", FREQUENCY)
    @command(SOURCE + "FREQuency:FIXed", FREQUENCY)
    def set_frequency(self, number: int, value: float) -> None:
        """`FREQuency`, also of an arbitrary waveform: how often it is repeated. To 1 µHz or 12 digits."""
        self.channels[number].frequency_hz = _rounded(value, 1e-6, 12)
        self._apply(number)

    @query(SOURCE + "FREQuency[:CW]")
    @query(SOURCE + "FREQuency:FIXed")
    def frequency(self, number: int) -> float:
        """`FREQuency?`."""
        return self.channels[number].frequency_hz

    frequency_mode = constant(SOURCE + "FREQuency:MODE", "FIX", Keyword("CW", "FIXed"))
    phase = channel_setting(SOURCE + "PHASe[:ADJust]", Number("RAD", -math.pi, math.pi), "phase_rad")
    """Where a cycle begins."""

    # ---- levels ---------------------------------------------------------------------------------

    @command(LEVELS + "[:AMPLitude]", AMPLITUDE)
    def set_amplitude(self, number: int, value: float) -> None:
        """`VOLTage`: peak to peak, to 0.1 mV or four digits."""
        self.channels[number].amplitude_vpp = _rounded(value, 1e-4, 4)
        self._apply(number)

    @query(LEVELS + "[:AMPLitude]")
    def amplitude(self, number: int) -> float:
        """`VOLTage?`."""
        return self.channels[number].amplitude_vpp

    @command(LEVELS + ":OFFSet", OFFSET)
    def set_offset(self, number: int, value: float) -> None:
        """`VOLTage:OFFSet`, to 1 mV."""
        self.channels[number].offset_v = _rounded(value, OFFSET_STEP_V, 12)
        self._apply(number)

    @query(LEVELS + ":OFFSet")
    def offset(self, number: int) -> float:
        """`VOLTage:OFFSet?`."""
        return self.channels[number].offset_v

    @command(LEVELS + ":HIGH", LEVEL)
    def set_high_level(self, number: int, value: float) -> None:
        """`VOLTage:HIGH`, to 1 mV."""
        self._set_levels(number, self.channels[number].low_v, _rounded(value, LEVEL_STEP_V, 12))

    @query(LEVELS + ":HIGH")
    def high_level(self, number: int) -> float:
        """`VOLTage:HIGH?`."""
        return self.channels[number].high_v

    @command(LEVELS + ":LOW", LEVEL)
    def set_low_level(self, number: int, value: float) -> None:
        """`VOLTage:LOW`, to 1 mV."""
        self._set_levels(number, _rounded(value, LEVEL_STEP_V, 12), self.channels[number].high_v)

    @query(LEVELS + ":LOW")
    def low_level(self, number: int) -> float:
        """`VOLTage:LOW?`."""
        return self.channels[number].low_v

    def _set_levels(self, number: int, low: float, high: float) -> None:
        channel = self.channels[number]
        if high - low < channel.lowest_vpp:
            raise ScpiError(-222)
        channel.amplitude_vpp, channel.offset_v = high - low, (high + low) / 2
        self._apply(number)

    amplitude_unit = constant(SOURCE + "VOLTage:UNIT", "VPP", Keyword("VPP"))

    # ---- outputs --------------------------------------------------------------------------------

    output = channel_setting(OUTPUT + "[:STATe]", Boolean(), "on")

    @command(OUTPUT + ":IMPedance", Number("OHM", 1.0, 10e3, infinity=True))
    def set_load(self, number: int, ohm: float) -> None:
        """`OUTPut:IMPedance`. What the generator makes stays the same; the volts that it states do not."""
        self.channels[number].set_load(ohm)
        self._apply(number)

    @query(OUTPUT + ":IMPedance")
    def load(self, number: int) -> float:
        """`OUTPut:IMPedance?`."""
        return self.channels[number].load_ohm

    polarity = channel_setting(OUTPUT + ":POLarity", Keyword("NORMal", "INVerted"), "polarity")
    """Around the offset."""

    # ---- memory ---------------------------------------------------------------------------------

    @_data_command("[:DATA]", EDIT_MEMORY, Block())
    def load_data(self, memory: str, data: memoryview) -> None:
        """`DATA`: counts of 0 to 16382, two bytes each, the most significant one first."""
        self.memory.load(data)
        self._apply_memory(memory)

    @_data_query("[:DATA]", EDIT_MEMORY)
    def data(self, memory: str) -> bytes:
        """`DATA?`."""
        return definite_block(self.memory[memory].astype(">u2").data)

    @_data_command(":DEFine", EDIT_MEMORY, POINTS, required=1)
    def define(self, memory: str, points: int = DEFAULT_POINTS) -> None:
        """`DATA:DEFine`: so many points in the middle."""
        self.memory.reset(points)
        self._apply_memory(memory)

    @_data_command(":POINts", EDIT_MEMORY, POINTS)
    def set_points(self, memory: str, points: int) -> None:
        """`DATA:POINts`."""
        self.memory.resize(points)
        self._apply_memory(memory)

    @_data_query(":POINts", EDIT_MEMORY)
    def points(self, memory: str) -> int:
        """`DATA:POINts?`."""
        return len(self.memory[memory])

    @_data_command("[:DATA]:VALue", EDIT_MEMORY, Integer((), 1, LONGEST), Integer((), 0, HIGHEST))
    def set_point(self, memory: str, number: int, count: int) -> None:
        """`DATA:VALue`."""
        self.memory.set_point(number, count)
        self._apply_memory(memory)

    @_data_query("[:DATA]:VALue", EDIT_MEMORY, Integer((), 1, LONGEST))
    def point(self, memory: str, number: int) -> int:
        """`DATA:VALue?`."""
        return self.memory.point(number)

    @_data_command(":COPY", ANY_MEMORY, ANY_MEMORY)
    def copy(self, target: str, source: str) -> None:
        """`DATA:COPY`: from the edit memory to a user memory, or back."""
        target, source = _numbered(target), _numbered(source)
        self.memory.copy(target, source)
        self._apply_memory(target)

    @_data_command(":DELete[:NAME]", USER_MEMORY)
    def delete(self, name: str) -> None:
        """`DATA:DELete`: not while a channel plays it."""
        name = _numbered(name)
        if any(channel.function == name for channel in self.channels.values()):
            raise ScpiError(-221)
        self.memory.delete(name)

    @_data_query(":CATalog")
    def catalog(self) -> str:
        """`DATA:CATalog?`."""
        return ",".join(f'"{name}"' for name in self.memory.names)

    # ---- bursts and triggers --------------------------------------------------------------------

    burst = channel_setting(SOURCE + "BURSt[:STATe]", Boolean(), "burst")
    burst_mode = channel_setting(SOURCE + "BURSt:MODE", Keyword("TRIGgered", "GATed"), "burst_mode")
    """Nothing is connected to the input that gates."""
    cycles = channel_setting(SOURCE + "BURSt:NCYCles", Integer((), 1, 1_000_000, infinity=True), "cycles")
    delay = constant(SOURCE + "BURSt:TDELay", 0.0, Number("S", 0.0, 0.0))
    source = setting(TRIGGER + ":SOURce", Keyword("TIMer", "EXTernal"), "_source", changed=_apply_all)
    """Nothing is connected to the external input."""
    timer = setting(TRIGGER + ":TIMer", Number("S", 1e-6, 500.0), "_timer_s", changed=_apply_all)
    """For the source TIM."""

    @command(TRIGGER + "[:IMMediate]")
    def trigger_now(self) -> None:
        """`TRIGger`."""
        self.trigger()

    @command("ABORt")
    def abort(self) -> None:
        """`ABORt` ends bursts without end. Channels wait for their next trigger."""
        self._stop(list(self._endless))
