"""The settings of one channel of a generator, and what its output does with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.function_generator import GeneratorChannel
from reservoir_hw.emulators.physics.signals import CYCLE_SAMPLES, SHAPES, Interpolation
from reservoir_hw.emulators.scpi.messages import ScpiError

FULL_SCALE = 32767
# Of a sine: what the emulated instrument takes for any shape.
_VPP_OF = {"VPP": 1.0, "VRMS": 2 * math.sqrt(2)}
SHORTEST, LONGEST_NAME = 8, 12
BUILT_IN = r"INT:\BUILTIN\EXP_RISE.ARB"

Counts = NDArray[np.int16]


def _exponential_rise() -> Counts:
    return np.rint(FULL_SCALE * (1 - np.exp(-np.arange(200) / 40))).astype(np.int16)


class WaveformMemory:
    """Samples of the converter, (n,) int16 within ±32767, by name. Names are compared without regard to case."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._waveforms: dict[str, Counts] = {}
        self.clear()

    def __getitem__(self, name: str) -> Counts:
        """Raises `ScpiError` +785 if there is no such waveform."""
        try:
            return self._waveforms[name.upper()]
        except KeyError:
            raise ScpiError(785, "Specified arb waveform does not exist") from None

    @property
    def names(self) -> list[str]:
        """In the order in which they were loaded, the one that is always there first."""
        return list(self._waveforms)

    @property
    def free(self) -> int:
        """Samples."""
        return self._samples - sum(len(counts) for name, counts in self._waveforms.items() if name != BUILT_IN)

    def clear(self) -> None:
        """Only the one that is always there is left."""
        self._waveforms = {BUILT_IN: _exponential_rise()}

    def load(self, name: str, counts: Counts) -> None:
        """Raises `ScpiError` for a name that is taken or too long, and for too few or too many samples."""
        if len(name) > LONGEST_NAME:
            raise ScpiError(783, "Arb waveform name too long")
        if name.upper() in self._waveforms:
            raise ScpiError(786, "Specified arb waveform already exists")
        if len(counts) < SHORTEST:
            raise ScpiError(-220, f"Parameter error; arb waveform has fewer than {SHORTEST} points")
        if len(counts) > self.free:
            raise ScpiError(781, "Not enough memory to store new arb waveform")
        self._waveforms[name.upper()] = counts


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
    def shown_hz(self) -> float:
        """What `FREQuency` says; of an arbitrary waveform, it follows from the sample rate."""
        return self.rate_hz / self.points if self.function == "ARB" else self.frequency_hz

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
