"""The volatile memory of a generator's channel, which holds arbitrary waveforms by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.scpi.errors import ScpiError

FULL_SCALE = 32767
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
