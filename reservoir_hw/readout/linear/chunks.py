"""Chunks of sequences: checked as a whole before any of it is used, then cut into rows to learn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported, ShapeError

# Squares of larger numbers, summed, would leave the range of float64.
LARGEST = 1e150


class Chunk(NamedTuple):
    """Some consecutive steps of one sequence, or of a batch of sequences that are driven together.

    `states` is (batch, time, nodes) or (time, nodes); `targets` and `inputs` have the same leading axes.
    `new_sequence` says that the sequences start here; otherwise the chunk continues the previous one.
    """

    states: npt.ArrayLike
    targets: npt.ArrayLike
    inputs: npt.ArrayLike | None = None
    new_sequence: bool = False


ChunkSource: TypeAlias = Callable[[], Iterable[Chunk | tuple[Any, ...]]] | Iterable[Chunk | tuple[Any, ...]]


@dataclass(frozen=True)
class Widths:
    """Numbers of columns, fixed by the first chunk. `inputs` is 0 without an input connection."""

    nodes: int
    inputs: int
    outputs: int

    @property
    def features(self) -> int:
        """Columns that weights are found for: nodes, then inputs."""
        return self.nodes + self.inputs


@dataclass(frozen=True)
class Columns:
    """A checked chunk: every array is (batch, time, ·); `inputs` is None without an input connection."""

    states: npt.NDArray
    targets: npt.NDArray
    inputs: npt.NDArray | None

    @property
    def batch(self) -> int:
        """Sequences side by side."""
        return self.states.shape[0]

    @property
    def steps(self) -> int:
        """Length in time."""
        return self.states.shape[1]

    @property
    def widths(self) -> Widths:
        """Numbers of columns."""
        inputs = 0 if self.inputs is None else self.inputs.shape[2]
        return Widths(self.states.shape[2], inputs, self.targets.shape[2])

    def rows(self, lane: int, start: int, stop: int) -> list[npt.NDArray]:
        """States, inputs (if any) and targets of some steps of one sequence, each (steps, ·)."""
        arrays = (self.states, self.inputs, self.targets)
        return [array[lane, start:stop] for array in arrays if array is not None]


class Segment(NamedTuple):
    """Steps start..stop of one sequence of a chunk, all in one fold."""

    lane: int
    start: int
    stop: int
    fold: int


class Position:
    """Where in its sequences a stream of chunks is: decides about washout, folds and continuity.

    Blocks of `block_steps` steps (counted after the washout) go to the folds in turn: block k of sequence b
    of a batch is number first + k · batch + b. A new sequence starts a new block.
    """

    def __init__(self, washout: int, folds: int, block_steps: int) -> None:
        self._washout = washout
        self._folds = folds
        self._block_steps = block_steps
        self._batch: int | None = None
        self._step = 0
        self._first_block = 0

    def start(self) -> None:
        """The next chunk starts new sequences."""
        if self._batch is not None:
            kept = max(self._step - self._washout, 0)
            self._first_block += -(-kept // self._block_steps) * self._batch
        self._batch = None
        self._step = 0

    def check(self, columns: Columns, *, new_sequence: bool) -> int:
        """The number of leading steps to drop. Raises ShapeError if the chunk cannot continue the last one."""
        step = self._step
        if new_sequence or self._batch is None:
            step = 0
        elif columns.batch != self._batch:
            raise ShapeError(
                f"this chunk has {columns.batch} sequences, the one it continues has {self._batch}; "
                "if new sequences start here, say new_sequence=True"
            )
        return min(max(self._washout - step, 0), columns.steps)

    def segments(self, columns: Columns, *, new_sequence: bool) -> list[Segment]:
        """The rows to learn from; moves on by this chunk, which has passed `check`."""
        drop = self.check(columns, new_sequence=new_sequence)
        if new_sequence:
            self.start()
        self._batch = columns.batch
        kept_before = max(self._step - self._washout, 0)
        self._step += columns.steps
        if self._folds == 1:
            return [Segment(lane, drop, columns.steps, 0) for lane in range(columns.batch)]
        segments: list[Segment] = []
        start = drop
        while start < columns.steps:
            block, inside = divmod(kept_before + start - drop, self._block_steps)
            stop = min(columns.steps, start + self._block_steps - inside)
            number = self._first_block + block * columns.batch
            segments += [Segment(lane, start, stop, (number + lane) % self._folds) for lane in range(columns.batch)]
            start = stop
        return segments


def checked(chunk: Chunk, *, input_connection: bool, widths: Widths | None) -> Columns:
    """The chunk as arrays (batch, time, ·) that fit together and fit what came before.

    Raises ShapeError or ConfigurationError. Values are not looked at: see `check_finite`.
    """
    states = numeric(chunk.states, "states")
    if states.ndim not in (2, 3):
        raise ShapeError(
            f"states must be (batch, time, nodes) or (time, nodes), got {_shape(states)}"
            + ("; a single node is states[:, None]" if states.ndim == 1 else "")
        )
    targets = _alongside(states, numeric(chunk.targets, "targets"), "targets")
    inputs = None
    if input_connection:
        if chunk.inputs is None:
            raise ConfigurationError(
                "input_connection=True needs the inputs of every chunk: pass inputs=(batch, time, inputs)"
            )
        inputs = _alongside(states, numeric(chunk.inputs, "inputs"), "inputs")
    elif chunk.inputs is not None:
        raise ConfigurationError(
            "inputs were given, but this readout does not use them: set input_connection=True or leave them out"
        )
    if states.ndim == 2:
        states, targets = states[None], targets[None]
        inputs = None if inputs is None else inputs[None]
    columns = Columns(states, targets, inputs)
    _check_widths(columns.widths, widths)
    return columns


def check_finite(columns: Columns, start: int) -> None:
    """Raise InputRangeError for NaN, inf or absurdly large values at step `start` or later.

    Steps of the washout are not looked at: targets are often undefined there.
    """
    named = {"states": columns.states, "inputs": columns.inputs, "targets": columns.targets}
    with np.errstate(all="ignore"):
        for name, array in named.items():
            if array is not None and array.dtype.kind == "f":
                _check_finite(name, array[:, start:], start)


def chunk_source(chunks: ChunkSource) -> tuple[Callable[[], Iterator[Chunk]], bool]:
    """A function that gives the chunks from the beginning, and whether it can do so more than once."""
    if callable(chunks):
        make, again = chunks, True
    else:
        again = iter(chunks) is not chunks

        def make() -> Iterable[Chunk | tuple[Any, ...]]:
            return chunks

    def each() -> Iterator[Chunk]:
        for item in make():
            if not isinstance(item, tuple) or not 2 <= len(item) <= 4:
                raise ConfigurationError(
                    "chunks must be tuples (states, targets[, inputs[, new_sequence]]) or Chunk objects, "
                    f"got {type(item).__name__}"
                )
            yield Chunk(*cast(tuple[Any, Any], item))

    return each, again


def numeric(values: npt.ArrayLike, name: str) -> npt.NDArray:
    """As an array of real numbers; raises ShapeError or ConfigurationError."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            f"{name} is not one array ({error}); give sequences of different lengths one by one, "
            "as chunks with new_sequence=True"
        ) from error
    if array.dtype.kind == "c":
        raise ConfigurationError(
            f"{name} is complex; give real and imaginary parts (or amplitude and phase) as separate columns"
        )
    if array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{name} must hold real numbers, not {array.dtype}")
    return array


def _alongside(states: npt.NDArray, array: npt.NDArray, name: str) -> npt.NDArray:
    if array.ndim == states.ndim and array.shape[:-1] == states.shape[:-1]:
        return array
    wanted = "(" + ", ".join([*map(str, states.shape[:-1]), name.replace("targets", "outputs")]) + ")"
    hint = f"; a single column is {name}[..., None]" if array.shape == states.shape[:-1] else ""
    raise ShapeError(f"{name} must be {wanted} beside states {_shape(states)}, got {_shape(array)}{hint}")


def _check_widths(got: Widths, expected: Widths | None) -> None:
    for name in ("nodes", "inputs", "outputs"):
        width = getattr(got, name)
        if expected is not None and width != getattr(expected, name):
            raise ShapeError(
                f"this chunk has {width} {name}, the chunks before had {getattr(expected, name)}; "
                "call reset() to start over with another width"
            )
        if width == 0 and name != "inputs":
            raise ShapeError(f"the chunk has no {name}: its last axis is empty")


def _check_finite(name: str, array: npt.NDArray, start: int) -> None:
    if all(_surely_finite(lane) for lane in array):
        return
    bad = ~np.isfinite(array)
    if array.dtype.itemsize >= 8:
        bad |= np.abs(array) > LARGEST
    if not bad.any():
        return
    step = int(bad.any(axis=(0, 2)).argmax())
    lane, column = (int(i) for i in np.argwhere(bad[:, step])[0])
    axis = {"states": "node", "inputs": "input", "targets": "output"}[name]
    value = array[lane, step, column]
    raise InputRangeError(
        f"{name} hold {value} at step {start + step} of this chunk, {axis} {column}"
        + (f", sequence {lane}" if array.shape[0] > 1 else "")
        + f" ({int(bad.sum())} such values in all). The chunk was not used. "
        + (
            "An unstable reservoir or a lost sample?"
            if name == "states"
            else "Check where they come from; steps that are not known may lie in the washout."
        )
    )


def _surely_finite(lane: npt.NDArray) -> bool:
    """One pass at the speed of memory: a sum of squares is finite only if every term is."""
    if not lane.flags.c_contiguous or lane.dtype == np.float16:
        return False
    flat = lane.reshape(-1)
    return math.isfinite(np.dot(flat, flat))


def _shape(array: npt.NDArray) -> str:
    return "(" + ", ".join(map(str, array.shape)) + ")"


def one_shot_error() -> NotSupported:
    """What leave-one-out says to data that can be seen only once."""
    return NotSupported(
        'alpha="loo" reads the data twice, and these chunks can be read only once: call fit() with arrays, a list '
        'of chunks or a function that returns them; or use alpha="gcv" (one pass, nearly the same choice) or "kfold"'
    )
