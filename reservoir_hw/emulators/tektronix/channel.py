"""The settings of one channel of a generator, and what its output does with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.function_generator import GeneratorChannel
from reservoir_hw.emulators.physics.shapes import CYCLE_SAMPLES, SHAPES
from reservoir_hw.emulators.physics.signals import Interpolation
from reservoir_hw.emulators.tektronix.memory import EDIT, MIDDLE, USER, WaveformMemory

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
    polarity: str = "NORM"
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
