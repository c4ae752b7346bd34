"""Where in its sequences a stream of chunks is: which steps are washed out, and which fold the others are in."""

from __future__ import annotations

from typing import NamedTuple

from reservoir_hw.core.errors import ShapeError
from reservoir_hw.readout.linear.training_chunks import Columns


class Segment(NamedTuple):
    """Steps start..stop of one sequence of a chunk, all in one fold."""

    lane: int
    start: int
    stop: int
    fold: int


class SequencePosition:
    """The position of a stream of chunks in its sequences.

    Blocks of `block_steps` steps (counted after the washout) go to the folds in turn: block k of sequence b
    of a batch is number first + k · batch + b. A new sequence starts a new block.
    """

    def __init__(self, washout: int, folds: int = 1, block_steps: int = 1) -> None:
        self._washout = washout
        self._folds = folds
        self._block_steps = block_steps
        self._batch: int | None = None
        self._step = 0
        self._first_block = 0

    def washed_out(self, columns: Columns, *, new_sequence: bool) -> int:
        """The number of leading steps not to learn. Raises ShapeError if the chunk cannot continue the last one."""
        step = self._step
        if new_sequence or self._batch is None:
            step = 0
        elif columns.batch != self._batch:
            raise ShapeError(
                f"this chunk has {columns.batch} sequences, the one it continues has {self._batch}; "
                "if new sequences start here, say new_sequence=True"
            )
        return min(max(self._washout - step, 0), columns.steps)

    def advance(self, columns: Columns, drop: int, *, new_sequence: bool) -> list[Segment]:
        """Move on by a chunk of which the first `drop` steps are washed out; returns the rows to learn from."""
        if new_sequence:
            self._end_sequences()
        self._batch = columns.batch
        kept_before = max(self._step - self._washout, 0)
        self._step += columns.steps
        if self._folds == 1:
            return [Segment(lane, drop, columns.steps, 0) for lane in range(columns.batch)]
        segments: list[Segment] = []
        start = drop
        while start < columns.steps:
            block, before = divmod(kept_before + start - drop, self._block_steps)
            stop = min(columns.steps, start + self._block_steps - before)
            number = self._first_block + block * columns.batch
            segments += [Segment(lane, start, stop, (number + lane) % self._folds) for lane in range(columns.batch)]
            start = stop
        return segments

    def _end_sequences(self) -> None:
        if self._batch is not None:
            kept = max(self._step - self._washout, 0)
            self._first_block += -(-kept // self._block_steps) * self._batch
        self._step = 0
