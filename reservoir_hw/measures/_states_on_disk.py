"""States on disk, read in the chunks in which they lie there: each is unpacked about once in a pass over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError

BLOCK = 4096
"""Steps that are read at once where nothing else decides."""


class StatesOnDisk:
    """Some sequences, and the first steps, of states (sequences, time, nodes) that lie on disk in chunks.

    A chunk is unpacked as a whole, with all sequences that share it. So what is read is a tile of whole chunks, and
    the last tile is kept: whoever goes through the steps in `windows`, and through the sequences in each, reads every
    chunk once. A tile has a few thousand rows, or is one chunk.

    Parameters
    ----------
    states
        A Zarr array, or what has its `shape`, `dtype` and `chunks` and can be sliced like it.
    sequences
        Numbers of the sequences, rising; by default all.
    steps
        By default all.
    """

    ndim = 3

    def __init__(self, states: Any, sequences: Sequence[int] | np.ndarray | None = None, steps: int | None = None):
        self._states = states
        self._sequences = np.arange(states.shape[0]) if sequences is None else np.asarray(sequences)
        self.shape = (len(self._sequences), states.shape[1] if steps is None else steps, states.shape[2])
        self.dtype = states.dtype
        self.sharing, chunk_steps = states.chunks[:2]
        self.tile_steps = chunk_steps * max(1, BLOCK // (chunk_steps * self.sharing))
        self._kept: tuple[int, int] | None = None
        self._tile = np.empty(0)

    def __getitem__(self, at: tuple[int, slice]) -> np.ndarray:
        """Steps of one sequence, (time, nodes). Raises `ConfigurationError` if the file is damaged."""
        sequence, steps = at
        start, stop, _ = steps.indices(self.shape[1])
        parts = []
        for window in windows(self, start, stop):
            first = window.start - window.start % self.tile_steps
            tile = self._read(sequence // self.sharing, first)
            parts.append(tile[sequence % self.sharing, window.start - first : window.stop - first])
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else np.empty((0, self.shape[2]))

    def _read(self, group: int, first: int) -> np.ndarray:
        if self._kept != (group, first):
            rows = self._sequences[group * self.sharing : (group + 1) * self.sharing]
            stop = min(first + self.tile_steps, self.shape[1])
            self._kept, self._tile = None, np.empty(0)
            try:
                self._tile = self._states[rows[0] : rows[-1] + 1, first:stop][rows - rows[0]]
            except (ValueError, RuntimeError, OSError) as error:
                raise ConfigurationError(
                    f"states of the sequences {rows[0]} to {rows[-1]}, steps {first} to {stop - 1}, cannot be read "
                    f"({error}). Is the file damaged?"
                ) from error
            self._kept = group, first
        return self._tile


def opened(states: Any) -> Any:
    """`states` to read from: arrays as they are, what lies in chunks as `StatesOnDisk`."""
    return StatesOnDisk(states) if hasattr(states, "chunks") else states


def windows(states: Any, start: int, stop: int) -> Iterator[slice]:
    """The steps from `start` to `stop` in pieces, in which sequences are best read in turn."""
    size = getattr(states, "tile_steps", BLOCK)
    while start < stop:
        end = min(stop, start - start % size + size)
        yield slice(start, end)
        start = end


def sharing(states: Any) -> int:
    """How many consecutive sequences are best read together."""
    return getattr(states, "sharing", 1)
