"""Recordings in blocks of bounded memory: states, and the inputs that caused them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import all_finite, as_numpy
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.measures._measured import precision

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


@dataclass(frozen=True, eq=False)
class Block:
    """Some consecutive steps of sequence `sequence`, from step `first`; `rows` is where they stand among all rows."""

    sequence: int
    first: int
    rows: slice
    states: np.ndarray


class Rows:
    """States (sequences, time, nodes), or (time, nodes) of one sequence, less the first `skipped` steps of each.

    Only slices are read, so they may lie on disk. Raises `ShapeError` for other shapes, `ConfigurationError` where
    nothing is left.
    """

    def __init__(self, states: Any, skipped: int) -> None:
        if np.ndim(states) == 2:
            states = np.asarray(as_numpy(states))[None]
        shape = tuple(np.shape(states))
        if len(shape) != 3 or 0 in shape:
            raise ShapeError(f"states must be (sequences, time, nodes) or (time, nodes), not {shape}")
        if not 0 <= skipped < shape[1]:
            raise ConfigurationError(
                f"the recording has {shape[1]} steps, but washout and delays take the first {skipped} of them; give "
                "smaller ones, or a longer recording"
            )
        self.states = opened(states)
        self.skipped = skipped
        self.sequences, self.steps, self.nodes = shape
        self.rows = self.sequences * (self.steps - skipped)

    @property
    def precision(self) -> float:
        """Relative precision of the states as they were recorded."""
        return float(precision(self.states.dtype))

    def blocks(self) -> Iterator[Block]:
        """All rows, a few thousand at a time at most, in float64.

        Sequences that share their chunks on disk take turns, so the rows do not come in their order; those of one
        sequence do. Raises `InputRangeError` for states that are not finite.
        """
        together = sharing(self.states)
        for first_sequence in range(0, self.sequences, together):
            sequences = range(first_sequence, min(first_sequence + together, self.sequences))
            for window in windows(self.states, self.skipped, self.steps):
                for sequence in sequences:
                    for first in range(window.start, window.stop, BLOCK):
                        yield self._block(sequence, first, min(first + BLOCK, window.stop))

    def _block(self, sequence: int, first: int, stop: int) -> Block:
        states = np.asarray(as_numpy(self.states[sequence, first:stop]), dtype=np.float64)
        if not all_finite(states):
            raise InputRangeError(
                f"states of sequence {sequence} are not finite between the steps {first} and {stop - 1}; leave out "
                "the nodes or steps that were not recorded"
            )
        row = sequence * (self.steps - self.skipped) + first - self.skipped
        return Block(sequence, first, slice(row, row + len(states)), states)

    def mean(self) -> np.ndarray:
        """Mean of each node (nodes,)."""
        return np.sum([block.states.sum(axis=0) for block in self.blocks()], axis=0) / self.rows


class Recording(Rows):
    """States with the inputs (sequences, time, channels) that caused them; the inputs are kept whole.

    Raises also `ShapeError` where the shapes do not fit together, and `InputRangeError` for inputs that are not finite
    or never change.
    """

    def __init__(self, inputs: Any, states: Any, skipped: int) -> None:
        super().__init__(states, skipped)
        inputs = np.asarray(as_numpy(inputs), dtype=np.float64)
        if inputs.ndim == 2:
            inputs = inputs[None]
        if inputs.ndim != 3 or inputs.shape[:2] != (self.sequences, self.steps) or inputs.shape[2] == 0:
            raise ShapeError(
                "inputs must be (sequences, time, channels), or (time, channels), of the same sequences and steps as "
                f"the states: {inputs.shape} does not fit to {tuple(np.shape(self.states))}"
            )
        if not all_finite(inputs):
            raise InputRangeError("the inputs are not finite everywhere; cut the recording where they are")
        still = np.flatnonzero(np.ptp(inputs, axis=(0, 1)) == 0)
        if len(still):
            raise InputRangeError(f"input channel {still[0]} never changes: nothing can be remembered of it")
        self.inputs = inputs

    @property
    def channels(self) -> int:
        """Number of input channels."""
        return self.inputs.shape[2]
