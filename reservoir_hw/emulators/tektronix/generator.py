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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from reservoir_hw.emulators.scpi.messages import (
    Argument,
    Block,
    Integer,
    Keyword,
    Number,
    ScpiError,
    Token,
    definite_block,
)
from reservoir_hw.emulators.scpi.tree import channel_of, command, constant, limit, query, reading, setting

HIGHEST, MIDDLE = 16382, 8191
SHORTEST, LONGEST, DEFAULT_POINTS = 2, 131_072, 1000
EDIT = "EMEM"
USER = ("USER1", "USER2", "USER3", "USER4")

Counts = NDArray[np.uint16]


class WaveformMemory:
    """The edit memory, which is never empty, and four user memories. All channels share them.

    A waveform is (n,) uint16, 2 to 131,072 counts of 0 to 16382. 8191 is the middle.
    """

    def __init__(self) -> None:
        self._waveforms: dict[str, Counts] = {}
        self.reset()

    def __getitem__(self, name: str) -> Counts:
        """Raises `ScpiError` -220 for a memory that is empty."""
        try:
            return self._waveforms[name]
        except KeyError:
            raise ScpiError(-220, f"Parameter error; {name} is empty") from None

    @property
    def catalog(self) -> str:
        """The names of the memories that hold something, the edit memory last."""
        return ",".join(f'"{name}"' for name in (*USER, EDIT) if name in self._waveforms)

    def reset(self, points: int = DEFAULT_POINTS) -> None:
        """The edit memory holds so many points in the middle."""
        self._waveforms[EDIT] = np.full(points, MIDDLE, np.uint16)

    def load(self, data: memoryview) -> None:
        """Bytes become the contents of the edit memory, the most significant byte of each count first."""
        if data.nbytes % 2:
            raise ScpiError(-161)
        if data.nbytes > 2 * LONGEST:
            raise ScpiError(-223)
        counts = np.frombuffer(data, ">u2").astype(np.uint16)
        if len(counts) < SHORTEST:
            raise ScpiError(-220, f"Parameter error; a waveform has {SHORTEST} points or more")
        if counts.max() > HIGHEST:
            raise ScpiError(-222)
        self._waveforms[EDIT] = counts

    def resize(self, points: int) -> None:
        """The edit memory is cut, or goes on in the middle."""
        counts = self._waveforms[EDIT]
        self.reset(points)
        self._waveforms[EDIT][: len(counts)] = counts[:points]

    def set_point(self, number: int, count: int) -> None:
        """Points of the edit memory count from 1. Raises `ScpiError` -222 beyond its end."""
        self._waveforms[EDIT][self._place(number)] = count

    def point(self, number: int) -> int:
        """See `set_point`."""
        return int(self._waveforms[EDIT][self._place(number)])

    def copy(self, target: str, source: str) -> None:
        """One of the two is the edit memory."""
        if (target == EDIT) == (source == EDIT):
            raise ScpiError(-224)
        self._waveforms[target] = self[source].copy()

    def delete(self, name: str) -> None:
        """Of a user memory. Raises `ScpiError` -220 if it is empty."""
        self[name]
        del self._waveforms[name]

    def _place(self, number: int) -> int:
        if number > len(self._waveforms[EDIT]):
            raise ScpiError(-222)
        return number - 1


HIGHEST_HZ = {"SIN": 150e6, "SQU": 75e6, "RAMP": 1.5e6}
HIGHEST_ARBITRARY_HZ = 75e6
LOWEST_HZ = {"SIN": 1e-6, "RAMP": 1e-6}
LOWEST_OTHER_HZ = 1e-3
ARBITRARY = (*USER, EDIT)
# Waveforms of up to so many points are played at the higher rate.
SHORT_POINTS = 16_384
HIGHEST_RATE_HZ, HIGHEST_LONG_RATE_HZ = 1e9, 250e6


@dataclass(kw_only=True)
class Channel(GeneratorChannel):
    """Settings as after `*RST`."""

    smallest_open_vpp = 40e-3
    memory: WaveformMemory
    frequency_hz: float = 1e6
    amplitude_vpp: float = 1.0
    phase_rad: float = 0.0
    cycles: float = 5

    @property
    def highest_vpp(self) -> float:
        """What the offset leaves for the amplitude."""
        return 2 * (self.highest_v - abs(self.offset_v))

    @property
    def highest_hz(self) -> float:
        """Of the function."""
        return HIGHEST_HZ.get(self.function, HIGHEST_ARBITRARY_HZ)

    @property
    def lowest_hz(self) -> float:
        """Of the function."""
        return LOWEST_HZ.get(self.function, LOWEST_OTHER_HZ)

    @property
    def _interpolation(self) -> Interpolation:
        return "linear" if self.function in ("SIN", "RAMP") else "hold"

    def _cycle(self) -> tuple[NDArray[np.float64], float]:
        if self.function in ARBITRARY:
            shape, rate_hz = self._arbitrary()
        else:
            shape, rate_hz = SHAPES[self.function], self.frequency_hz * CYCLE_SAMPLES
        shape = np.roll(shape, -round(self.phase_rad / (2 * math.pi) * len(shape)))
        amplitude_vpp = -self.amplitude_vpp if self.polarity == "INV" else self.amplitude_vpp
        return self.offset_v + shape * (amplitude_vpp / 2), rate_hz

    def _arbitrary(self) -> tuple[NDArray[np.float64], float]:
        """The shape (n,) within ±1. Points for which the instrument is too slow are left out, without an error."""
        counts = self.memory[self.function]
        points = len(counts)
        highest_hz = HIGHEST_RATE_HZ if points <= SHORT_POINTS else HIGHEST_LONG_RATE_HZ
        # The frequency has been rounded.
        played = min(points, int(highest_hz / self.frequency_hz * (1 + 1e-8)))
        kept = counts[np.arange(played) * points // played]
        return (kept.astype(np.float64) - MIDDLE) / MIDDLE, played * self.frequency_hz


DATA, TRIGGER = "(DATA|TRACe)", "TRIGger[:SEQuence]"
LEVELS = SOURCE + "VOLTage[:LEVel][:IMMediate]"
# Of offsets and levels.
OFFSET_STEP_V = 1e-3


@dataclass(frozen=True)
class Rounded(Number):
    """As `Number`, to multiples of a step, or to so many digits if that is coarser."""

    step: float = OFFSET_STEP_V
    digits: int = 12

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> float:
        """The rounded value."""
        value = super().read(token, device, suffixes)
        if not value:
            return 0.0
        coarser = max(self.step, 10.0 ** (math.floor(math.log10(abs(value))) + 1 - self.digits))
        return float(f"{round(value / coarser) * coarser:.15g}")


class Memory(Keyword):
    """As `Keyword`, and `USER` means `USER1`."""

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> str:
        """The name of a memory, or another word."""
        word = super().read(token, device, suffixes)
        return "USER1" if word == "USER" else word


FREQUENCY = Rounded("HZ", limit("lowest_hz"), limit("highest_hz"), step=1e-6)
AMPLITUDE = Rounded(("V", "VPP"), limit("lowest_vpp"), limit("highest_vpp"), step=1e-4, digits=4)
OFFSET = Rounded("V", limit("highest_offset_v", -1), limit("highest_offset_v"))
LEVEL = Rounded("V", limit("highest_v", -1), limit("highest_v"))
FUNCTION = Memory("SINusoid", "SQUare", "RAMP", "DC", "USER", *USER, "EMEMory")
EDIT_MEMORY, USER_MEMORY = Memory("EMEMory"), Memory("USER", *USER)
ANY_MEMORY = Memory("EMEMory", "USER", *USER)
POINTS, PLACE = Integer((), SHORTEST, LONGEST), Integer((), 1, LONGEST)


def editing(
    header: str, change: Callable[..., None], *arguments: Argument, required: int | None = None
) -> Callable[..., None]:
    """A command that changes the edit memory, and what plays it."""

    def carry_out(generator: Afg3152C, memory: str, *values: Any) -> None:
        change(generator.memory, *values)
        generator.apply_memory(memory)

    return command(header, EDIT_MEMORY, *arguments, required=required)(carry_out)


class Afg3152C(FunctionGenerator[Channel]):
    """The generator, connected to a bench."""

    identity = "TEKTRONIX,AFG3152C,C000001,SCPI:99.0 FV:3.2.3"

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__(bench)
        self.memory = WaveformMemory()
        self.channels = {}
        self.reset()

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """User memories keep their waveforms."""
        self._source, self._timer_s = "TIM", 1e-3
        self.memory.reset()
        for number in (1, 2):
            self.channels[number] = Channel(memory=self.memory)
            self.apply(number)

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
            self.apply(number)

    def apply_memory(self, name: str) -> None:
        """A memory has changed: so has what plays it."""
        for number, channel in self.channels.items():
            if channel.function == name:
                self.apply(number)

    # ---- shape and frequency --------------------------------------------------------------------

    @command(SOURCE + "FUNCtion[:SHAPe]", FUNCTION)
    def set_function(self, number: int, function: str) -> None:
        """`FUNCtion`. The frequency becomes one that the function has."""
        if function in ARBITRARY:
            self.memory[function]
        channel = self.channels[number]
        channel.function = function
        channel.frequency_hz = min(max(channel.frequency_hz, channel.lowest_hz), channel.highest_hz)
        self.apply(number)

    function = reading(SOURCE + "FUNCtion[:SHAPe]", "function", of=channel_of)
    frequency = channel_setting(SOURCE + "FREQuency[:CW|:FIXed]", FREQUENCY, "frequency_hz")
    """Also of an arbitrary waveform: how often it is repeated. To 1 µHz or 12 digits."""
    frequency_mode = constant(SOURCE + "FREQuency:MODE", "FIX", Keyword("CW", "FIXed"))
    phase = channel_setting(SOURCE + "PHASe[:ADJust]", Number("RAD", -math.pi, math.pi), "phase_rad")
    """Where a cycle begins."""

    # ---- levels ---------------------------------------------------------------------------------

    amplitude = channel_setting(LEVELS + "[:AMPLitude]", AMPLITUDE, "amplitude_vpp")
    """Peak to peak, to 0.1 mV or four digits."""
    offset = channel_setting(LEVELS + ":OFFSet", OFFSET, "offset_v")
    """To 1 mV."""
    high_level = reading(LEVELS + ":HIGH", "high_v", of=channel_of)
    low_level = reading(LEVELS + ":LOW", "low_v", of=channel_of)

    set_high_level = command(LEVELS + ":HIGH", LEVEL)(lambda self, number, volts: self._set_levels(number, high=volts))
    set_low_level = command(LEVELS + ":LOW", LEVEL)(lambda self, number, volts: self._set_levels(number, low=volts))
    """To 1 mV."""

    def _set_levels(self, number: int, *, low: float | None = None, high: float | None = None) -> None:
        channel = self.channels[number]
        low, high = channel.low_v if low is None else low, channel.high_v if high is None else high
        if high - low < channel.lowest_vpp:
            raise ScpiError(-222)
        channel.amplitude_vpp, channel.offset_v = high - low, (high + low) / 2
        self.apply(number)

    amplitude_unit = constant(SOURCE + "VOLTage:UNIT", "VPP", Keyword("VPP"))

    # ---- outputs --------------------------------------------------------------------------------

    load = channel_setting(OUTPUT + ":IMPedance", Number("OHM", 1.0, 10e3, infinity=True), "load")

    # ---- memory ---------------------------------------------------------------------------------

    load_data = editing(DATA + "[:DATA]", WaveformMemory.load, Block())
    """Counts of 0 to 16382, two bytes each, the most significant one first."""
    data = query(DATA + "[:DATA]", EDIT_MEMORY)(lambda self, name: definite_block(self.memory[name].astype(">u2").data))

    define = editing(DATA + ":DEFine", WaveformMemory.reset, POINTS, required=1)
    """So many points in the middle."""
    set_points = editing(DATA + ":POINts", WaveformMemory.resize, POINTS)
    points = query(DATA + ":POINts", EDIT_MEMORY)(lambda self, memory: len(self.memory[memory]))

    set_point = editing(DATA + "[:DATA]:VALue", WaveformMemory.set_point, PLACE, Integer((), 0, HIGHEST))
    point = query(DATA + "[:DATA]:VALue", EDIT_MEMORY, PLACE)(lambda self, memory, place: self.memory.point(place))

    @command(DATA + ":COPY", ANY_MEMORY, ANY_MEMORY)
    def copy(self, target: str, source: str) -> None:
        """`DATA:COPY`: from the edit memory to a user memory, or back."""
        self.memory.copy(target, source)
        self.apply_memory(target)

    @command(DATA + ":DELete[:NAME]", USER_MEMORY)
    def delete(self, name: str) -> None:
        """`DATA:DELete`: not while a channel plays it."""
        if any(channel.function == name for channel in self.channels.values()):
            raise ScpiError(-221)
        self.memory.delete(name)

    catalog = query(DATA + ":CATalog")(lambda self: self.memory.catalog)

    # ---- bursts and triggers --------------------------------------------------------------------

    cycles = channel_setting(SOURCE + "BURSt:NCYCles", Integer((), 1, 1_000_000, infinity=True), "cycles")
    delay = constant(SOURCE + "BURSt:TDELay", 0.0, Number("S", 0.0, 0.0))
    source = setting(TRIGGER + ":SOURce", Keyword("TIMer", "EXTernal"), "_source", changed=_apply_all)
    """Nothing is connected to the external input."""
    timer = setting(TRIGGER + ":TIMer", Number("S", 1e-6, 500.0), "_timer_s", changed=_apply_all)
    """For the source TIM."""

    trigger_now = command(TRIGGER + "[:IMMediate]")(lambda self: self.trigger())
