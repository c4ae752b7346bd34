"""Recordings in blocks of bounded memory: states, and the inputs that caused them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import all_finite, as_numpy
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.measures._arrays import precision
from reservoir_hw.measures._states_on_disk import BLOCK, opened, sharing, windows


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
