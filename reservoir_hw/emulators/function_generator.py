"""What emulated function generators have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import SOURCE_OHM, OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.physics.signals import Interpolation
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.messages import Boolean, Keyword, ScpiError
from reservoir_hw.emulators.scpi.tree import channel_of, command, setting

OPEN_CIRCUIT_V = 10.0


@dataclass(kw_only=True)
class GeneratorChannel:
    """Settings as after `*RST`. Volts are those at the load that the instrument was told of."""

    smallest_open_vpp: ClassVar[float]
    function: str = "SIN"
    frequency_hz: float
    amplitude_vpp: float
    offset_v: float = 0.0
    on: bool = False
    load_ohm: float = 50.0
    polarity: str = "NORM"
    burst: bool = False
    burst_mode: str = "TRIG"
    cycles: float

    @property
    def load_share(self) -> float:
        """Of the volts inside the generator, what is left at the load."""
        return 1.0 if math.isinf(self.load_ohm) else self.load_ohm / (SOURCE_OHM + self.load_ohm)

    @property
    def load(self) -> float:
        """`load_ohm`. What the generator makes stays the same when it is set; the volts that it states do not."""
        return self.load_ohm

    @load.setter
    def load(self, ohm: float) -> None:
        before = self.load_share
        self.load_ohm = ohm
        self.amplitude_vpp *= self.load_share / before
        self.offset_v *= self.load_share / before

    @property
    def highest_v(self) -> float:
        """What the output reaches at this load, up and down."""
        return OPEN_CIRCUIT_V * self.load_share

    @property
    def lowest_vpp(self) -> float:
        """The smallest amplitude at this load."""
        return self.smallest_open_vpp * self.load_share

    @property
    def highest_offset_v(self) -> float:
        """What the amplitude leaves for the offset."""
        return self.highest_v - (0.0 if self.function == "DC" else self.amplitude_vpp / 2)

    @property
    def high_v(self) -> float:
        """The high level."""
        return self.offset_v + self.amplitude_vpp / 2

    @property
    def low_v(self) -> float:
        """The low level."""
        return self.offset_v - self.amplitude_vpp / 2

    @property
    def bursts(self) -> bool:
        """Whether it plays bursts, each after a trigger. Nothing is connected to the input that gates a burst."""
        return self.burst and self.burst_mode == "TRIG" and self.function != "DC"

    def output(self, repeat_s: float | None) -> OutputSettings:
        """For the bench. With `repeat_s` a burst begins by itself so often. Nothing is computed for an output off."""
        load_ohm = None if math.isinf(self.load_ohm) else self.load_ohm
        if not self.on:
            return OutputSettings(load_ohm=load_ohm)
        if self.function == "DC":
            return OutputSettings(True, load_ohm, self.offset_v)
        volts, rate_hz = self._cycle()
        # Between bursts, the output stands where a burst begins.
        return OutputSettings(True, load_ohm, float(volts[0]), self._waveform(volts, rate_hz, repeat_s))

    @property
    @abstractmethod
    def _interpolation(self) -> Interpolation: ...

    @abstractmethod
    def _cycle(self) -> tuple[NDArray[np.float64], float]:
        """The volts (n,) of one cycle, and their rate."""

    def _waveform(self, volts: NDArray[np.float64], rate_hz: float, repeat_s: float | None) -> Waveform | None:
        if not self.burst:
            return Waveform(volts, rate_hz, None, self._interpolation)
        if not self.bursts:
            return None
        if math.isinf(self.cycles) or repeat_s is None:
            return Waveform(volts, rate_hz, None if math.isinf(self.cycles) else int(self.cycles), self._interpolation)
        # One burst, and the rest until the next.
        played = np.tile(volts, int(self.cycles))
        rest = max(0, round(repeat_s * rate_hz) - len(played))
        return Waveform(np.pad(played, (0, rest), constant_values=volts[0]), rate_hz, None, self._interpolation)


AnyChannel = TypeVar("AnyChannel", bound=GeneratorChannel)
# A changed channel is brought to its output.
channel_setting = partial(setting, of=channel_of, changed=lambda generator, number: generator.apply(number))


# The headers of all of them begin so.
SOURCE, OUTPUT = "[SOURce{channel:1-2}:]", "OUTPut{channel:1-2}"


class FunctionGenerator(ScpiDevice, Generic[AnyChannel]):
    """Channels on a bench, with the commands that do not depend on the brand."""

    channels: dict[int, AnyChannel]

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__()
        self.bench = bench
        self._endless: set[int] = set()

    @abstractmethod
    def _repeat_s(self, number: int) -> float | None:
        """How often a burst of this channel begins by itself; None: somebody has to trigger it."""

    def apply(self, number: int) -> None:
        """Bring a changed channel to its output. What it played is over."""
        channel, repeat_s = self.channels[number], self._repeat_s(number)
        self.bench.set_output(number, channel.output(repeat_s))
        self._stop([number])
        begins = channel.bursts and repeat_s is not None if channel.burst else channel.function != "DC"
        if channel.on and begins:
            self.bench.start([number])

    def _trigger(self, numbers: Iterable[int]) -> None:
        """Raises `ScpiError` -211 if none of these channels waits for it."""
        ready = [number for number in numbers if self.channels[number].bursts and number not in self._endless]
        if not ready:
            raise ScpiError(-211)
        self.bench.start(ready)
        self._endless.update(number for number in ready if math.isinf(self.channels[number].cycles))

    def _stop(self, numbers: Iterable[int]) -> None:
        stopped = list(numbers)
        self.bench.stop(stopped)
        self._endless.difference_update(stopped)

    output = channel_setting(OUTPUT + "[:STATe]", Boolean(), "on")
    polarity = channel_setting(OUTPUT + ":POLarity", Keyword("NORMal", "INVerted"), "polarity")
    """Of the waveform, around its offset."""
    burst = channel_setting(SOURCE + "BURSt[:STATe]", Boolean(), "burst")
    burst_mode = channel_setting(SOURCE + "BURSt:MODE", Keyword("TRIGgered", "GATed"), "burst_mode")
    """Nothing is connected to the input that gates."""

    abort = command("ABORt")(lambda self: self._stop(list(self._endless)))
    """Ends bursts without end. Channels wait for their next trigger."""
