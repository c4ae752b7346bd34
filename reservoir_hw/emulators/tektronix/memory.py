"""The memory of a generator: waveforms as counts of the converter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.scpi.errors import ScpiError

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
