"""The settings of one channel of a generator, and what its output does with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.function_generator import GeneratorChannel
from reservoir_hw.emulators.physics.signals import CYCLE_SAMPLES, SHAPES, Interpolation
from reservoir_hw.emulators.scpi.messages import ScpiError

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
    def names(self) -> list[str]:
        """Of the memories that hold something, the edit memory last."""
        return [name for name in (*USER, EDIT) if name in self._waveforms]

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
