"""The settings of one channel of a generator, and what its output does with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import SOURCE_OHM, OutputSettings, Waveform
from reservoir_hw.emulators.physics.shapes import CYCLE_SAMPLES, SHAPES
from reservoir_hw.emulators.physics.signals import Interpolation
from reservoir_hw.emulators.tektronix.memory import EDIT, MIDDLE, USER, WaveformMemory

OPEN_CIRCUIT_V = 10.0
SMALLEST_OPEN_VPP = 40e-3
HIGHEST_HZ = {"SIN": 150e6, "SQU": 75e6, "RAMP": 1.5e6}
HIGHEST_ARBITRARY_HZ = 75e6
LOWEST_HZ = {"SIN": 1e-6, "RAMP": 1e-6}
LOWEST_OTHER_HZ = 1e-3
ARBITRARY = (*USER, EDIT)
# Waveforms of up to so many points are played at the higher rate.
SHORT_POINTS = 16_384
HIGHEST_RATE_HZ, HIGHEST_LONG_RATE_HZ = 1e9, 250e6


@dataclass
class Channel:
    """Settings as after `*RST`. Volts are those at the load that the instrument was told of."""

    memory: WaveformMemory
    function: str = "SIN"
    frequency_hz: float = 1e6
    amplitude_vpp: float = 1.0
    offset_v: float = 0.0
    on: bool = False
    load_ohm: float = 50.0
    inverted: bool = False
    phase_rad: float = 0.0
    burst: bool = False
    burst_mode: str = "TRIG"
    cycles: float = 5

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
    def highest_vpp(self) -> float:
        """What the offset leaves for the amplitude."""
        return 2 * (self.highest_v - abs(self.offset_v))

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
    def highest_hz(self) -> float:
        """Of the function."""
        return HIGHEST_HZ.get(self.function, HIGHEST_ARBITRARY_HZ)

    @property
    def lowest_hz(self) -> float:
        """Of the function."""
        return LOWEST_HZ.get(self.function, LOWEST_OTHER_HZ)

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

    def _cycle(self) -> tuple[NDArray[np.float64], float]:
        """The volts (n,) of one cycle, and their rate."""
        if self.function in ARBITRARY:
            shape, rate_hz = self._arbitrary()
        else:
            shape, rate_hz = SHAPES[self.function], self.frequency_hz * CYCLE_SAMPLES
        shape = np.roll(shape, -round(self.phase_rad / (2 * math.pi) * len(shape)))
        amplitude_vpp = -self.amplitude_vpp if self.inverted else self.amplitude_vpp
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

    def _waveform(self, volts: NDArray[np.float64], rate_hz: float, repeat_s: float | None) -> Waveform | None:
        interpolation: Interpolation = "linear" if self.function in ("SIN", "RAMP") else "hold"
        if not self.burst:
            return Waveform(volts, rate_hz, None, interpolation)
        if not self.bursts:
            return None
        if math.isinf(self.cycles) or repeat_s is None:
            return Waveform(volts, rate_hz, None if math.isinf(self.cycles) else int(self.cycles), interpolation)
        # One burst, and the rest until the next.
        played = np.tile(volts, int(self.cycles))
        rest = max(0, round(repeat_s * rate_hz) - len(played))
        return Waveform(np.pad(played, (0, rest), constant_values=volts[0]), rate_hz, None, interpolation)
