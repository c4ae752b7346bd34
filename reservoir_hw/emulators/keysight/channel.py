"""The settings of one channel of a generator, and what its output does with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import SOURCE_OHM, OutputSettings, Waveform
from reservoir_hw.emulators.keysight.waveform_memory import BUILT_IN, FULL_SCALE, WaveformMemory
from reservoir_hw.emulators.physics.shapes import CYCLE_SAMPLES, SHAPES
from reservoir_hw.emulators.physics.signals import Interpolation

OPEN_CIRCUIT_V = 10.0
SMALLEST_OPEN_VPP = 2e-3
HIGHEST_HZ = {"SIN": 20e6, "SQU": 20e6, "RAMP": 200e3, "TRI": 200e3}
HIGHEST_RATE_HZ, HIGHEST_UNFILTERED_RATE_HZ = 250e6, 62.5e6


@dataclass
class Channel:
    """Settings as after `*RST`. Volts are those at the load that the instrument was told of."""

    memory: WaveformMemory
    function: str = "SIN"
    frequency_hz: float = 1e3
    amplitude_vpp: float = 0.1
    offset_v: float = 0.0
    on: bool = False
    load_ohm: float = 50.0
    arbitrary: str = BUILT_IN
    rate_hz: float = 40e3
    filter: str = "STEP"
    burst: bool = False
    burst_mode: str = "TRIG"
    cycles: float = 1
    burst_period_s: float = 10e-3
    source: str = "IMM"
    timer_s: float = 1.0

    @property
    def load_share(self) -> float:
        """Of the volts inside the generator, what is left at the load."""
        return 1.0 if math.isinf(self.load_ohm) else self.load_ohm / (SOURCE_OHM + self.load_ohm)

    @property
    def highest_v(self) -> float:
        """What the output reaches at this load, up and down."""
        return OPEN_CIRCUIT_V * self.load_share

    @property
    def lowest_vpp(self) -> float:
        """The smallest amplitude at this load."""
        return SMALLEST_OPEN_VPP * self.load_share

    @property
    def highest_offset_v(self) -> float:
        """What the amplitude leaves for the offset."""
        return self.highest_v - (0.0 if self.function == "DC" else self.amplitude_vpp / 2)

    @property
    def highest_hz(self) -> float:
        """Of the function."""
        return self.highest_rate_hz / self.points if self.function == "ARB" else HIGHEST_HZ.get(self.function, 20e6)

    @property
    def highest_rate_hz(self) -> float:
        """Samples a second. Without a filter it is less."""
        return HIGHEST_UNFILTERED_RATE_HZ if self.filter == "OFF" else HIGHEST_RATE_HZ

    @property
    def points(self) -> int:
        """Samples of the arbitrary waveform that is selected."""
        return len(self.memory[self.arbitrary])

    @property
    def bursts(self) -> bool:
        """Whether it plays bursts, each after a trigger. Nothing is connected to the input that gates a burst."""
        return self.burst and self.burst_mode == "TRIG" and self.function != "DC"

    @property
    def triggers_itself(self) -> bool:
        """Whether nobody has to trigger its bursts."""
        return self.source in ("IMM", "TIM")

    @property
    def plays_on_its_own(self) -> bool:
        """Whether it plays without a trigger."""
        if self.burst:
            return self.on and self.bursts and self.triggers_itself
        return self.on and self.function != "DC"

    def output(self) -> OutputSettings:
        """For the bench. Nothing is computed for an output that is off."""
        load_ohm = None if math.isinf(self.load_ohm) else self.load_ohm
        if not self.on:
            return OutputSettings(load_ohm=load_ohm)
        if self.function == "DC":
            return OutputSettings(True, load_ohm, self.offset_v)
        volts, rate_hz = self._cycle()
        # Between bursts, the output stands where a burst begins.
        return OutputSettings(True, load_ohm, float(volts[0]), self._waveform(volts, rate_hz))

    def _cycle(self) -> tuple[NDArray[np.float64], float]:
        """The volts (n,) of one cycle, and their rate."""
        if self.function == "ARB":
            shape, rate_hz = self.memory[self.arbitrary] / FULL_SCALE, self.rate_hz
        else:
            shape, rate_hz = SHAPES[self.function], self.frequency_hz * CYCLE_SAMPLES
        return self.offset_v + shape * (self.amplitude_vpp / 2), rate_hz

    def _waveform(self, volts: NDArray[np.float64], rate_hz: float) -> Waveform | None:
        held = self.filter == "OFF" if self.function == "ARB" else self.function == "SQU"
        interpolation: Interpolation = "hold" if held else "linear"
        if not self.burst:
            return Waveform(volts, rate_hz, None, interpolation)
        if not self.bursts:
            return None
        if not self.triggers_itself:
            return Waveform(volts, rate_hz, None if math.isinf(self.cycles) else int(self.cycles), interpolation)
        # One burst, and the rest until the next.
        period_s = self.timer_s if self.source == "TIM" else self.burst_period_s
        played = np.tile(volts, int(self.cycles))
        rest = max(0, round(period_s * rate_hz) - len(played))
        return Waveform(np.pad(played, (0, rest), constant_values=volts[0]), rate_hz, None, interpolation)
