"""Chunks of sequences: checked as a whole before any of it is used, then cut into rows to learn from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError

EPSILON = float(np.finfo(np.float64).eps)


class Chunk(NamedTuple):
    """Some consecutive steps of one sequence, or of a batch of sequences that are driven together.

    `states` is (batch, time, nodes) or (time, nodes); `targets` and `inputs` have the same leading axes.
    `new_sequence` says that the sequences start here; otherwise the chunk continues the previous one.
    """

    states: npt.ArrayLike
    targets: npt.ArrayLike
    inputs: npt.ArrayLike | None = None
    new_sequence: bool = False


ChunkSource: TypeAlias = Iterable[Chunk | tuple[Any, ...]]


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
    """A checked chunk: every array is (batch, time, ·); `inputs` is None without an input connection.

    All are numpy arrays, or all are tensors on one device.
    """

    states: Any
    targets: Any
    inputs: Any | None

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

    @property
    def features(self) -> list[Any]:
        """States, and inputs if there are any."""
        return [self.states] if self.inputs is None else [self.states, self.inputs]

    @property
    def precisions(self) -> list[float]:
        """Machine epsilon of the numbers that the states, and the inputs if there are any, came in."""
        return [arrays.machine_epsilon(one) if arrays.is_floating(one) else EPSILON for one in self.features]

    @property
    def device(self) -> str | None:
        """Where the tensors are; None for arrays."""
        return str(self.states.device) if arrays.is_tensor(self.states) else None


def checked(chunk: Chunk, *, input_connection: bool, widths: Widths | None) -> Columns:
    """The chunk as arrays (batch, time, ·) that fit together and fit what came before.

    States that are tensors stay where they are, and what belongs to them goes there; gradients are left behind.
    Raises ShapeError or ConfigurationError. Values are not looked at: see `check_finite`.
    """
    states = numeric(chunk.states, "states")
    if states.ndim not in (2, 3):
        raise ShapeError(
            f"states must be (batch, time, nodes) or (time, nodes), got {_shape(states)}"
            + ("; a single node is states[:, None]" if states.ndim == 1 else "")
        )
    states = states.detach() if arrays.is_tensor(states) else states
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


def asked(states: Any, inputs: Any | None, nodes: int, width: int) -> tuple[Any, Any | None]:
    """States (..., nodes), and inputs (..., width) where a readout reads any, that it shall answer.

    Raises ShapeError or ConfigurationError where they are not as in training.
    """
    x = numeric(states, "states")
    u = None if inputs is None else numeric(inputs, "inputs")
    if x.ndim == 0 or x.shape[-1] != nodes:
        raise ShapeError(f"states must be (..., {nodes}) as in training, got {tuple(x.shape)}")
    if (u is not None) != (width > 0):
        raise ConfigurationError(
            "this readout was trained with the inputs: pass them to predict as well"
            if width
            else "this readout was trained without the inputs: call predict with states only"
        )
    if u is not None and u.shape != (*x.shape[:-1], width):
        raise ShapeError(
            f"inputs must be {(*x.shape[:-1], width)} beside states {tuple(x.shape)}, got {tuple(u.shape)}"
        )
    return x, u


def check_finite(columns: Columns, start: int, largest: float) -> None:
    """Raise InputRangeError for NaN, inf or float64 values above `largest` at step `start` or later.

    Steps of the washout are not looked at: targets are often undefined there.
    """
    named = {"states": columns.states, "inputs": columns.inputs, "targets": columns.targets}
    with np.errstate(all="ignore"):
        for name, array in named.items():
            if array is not None and arrays.is_floating(array):
                _check_finite(name, array[:, start:], start, largest)


def in_numpy(chunk: Chunk) -> Chunk:
    """The same chunk without tensors."""
    return Chunk(*(arrays.as_numpy(array) for array in chunk[:3]), new_sequence=chunk.new_sequence)


def chunks(
    states: npt.ArrayLike | ChunkSource, targets: npt.ArrayLike | None, inputs: npt.ArrayLike | None
) -> Iterator[Chunk]:
    """What `fit` was given, in chunks. Raises ConfigurationError for what are neither arrays nor chunks."""
    if targets is not None:
        return iter([Chunk(cast(Any, states), targets, inputs, True)])
    one_array = isinstance(states, np.ndarray) or arrays.is_tensor(states)
    if one_array or inputs is not None or not hasattr(states, "__iter__"):
        raise ConfigurationError("fit needs targets beside the states (or chunks of both as its only argument)")
    return map(_chunk_of, cast(Any, states))


def _chunk_of(item: Any) -> Chunk:
    if not isinstance(item, tuple) or not 2 <= len(item) <= 4:
        raise ConfigurationError(
            "chunks must be tuples (states, targets[, inputs[, new_sequence]]) or Chunk objects, "
            f"got {type(item).__name__}"
        )
    return Chunk(*cast(tuple[Any, Any], item))


def numeric(values: Any, name: str) -> Any:
    """As an array of real numbers, or the tensor that it is; raises ShapeError or ConfigurationError."""
    if arrays.is_tensor(values) and not values.is_complex():
        return arrays.dense(values)
    try:
        array = np.asarray(arrays.as_numpy(values))
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


def _alongside(states: Any, array: Any, name: str) -> Any:
    if array.ndim == states.ndim and array.shape[:-1] == states.shape[:-1]:
        return arrays.like(array.detach() if arrays.is_tensor(array) else array, states)
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


def _check_finite(name: str, array: Any, start: int, largest: float) -> None:
    if arrays.is_tensor(array):
        # Narrower numbers cannot be that large, and `largest` is none of them.
        within = array.abs() <= largest if array.dtype.itemsize >= 8 else array.isfinite()
        if bool(within.all()):
            return
        array = arrays.as_numpy(array)
    elif all(_surely_within(lane, largest) for lane in array):
        return
    bad = ~np.isfinite(array)
    if array.dtype.itemsize >= 8:
        bad |= np.abs(array) > largest
    if not bad.any():
        return
    step = int(bad.any(axis=(0, 2)).argmax())
    lane, column = arrays.first_true(bad[:, step])
    axis = {"states": "node", "inputs": "input", "targets": "output"}[name]
    value = array[lane, step, column]
    if np.isfinite(value):
        advice = f"Numbers above {largest:g} are too large to be squared and summed: scale them."
    elif name == "states":
        advice = "An unstable reservoir, a lost sample, or a masked one?"
    else:
        advice = "Check where they come from; steps that are not known may lie in the washout."
    raise InputRangeError(
        f"{name} hold {value} at step {start + step} of this chunk, {axis} {column}"
        + (f", sequence {lane}" if array.shape[0] > 1 else "")
        + f" ({int(bad.sum())} such values in all). The chunk was not used. {advice}"
    )


def _surely_within(lane: npt.NDArray, largest: float) -> bool:
    """One pass at the speed of memory: no number is larger than the root of a sum of squares, and NaN stays NaN."""
    if not lane.flags.c_contiguous or lane.dtype == np.float16:
        return False
    flat = lane.reshape(-1)
    squares = np.dot(flat, flat)
    return math.isfinite(squares) and (lane.dtype.itemsize < 8 or squares <= largest**2)


def _shape(array: Any) -> str:
    return "(" + ", ".join(map(str, array.shape)) + ")"


# ---- Where in its sequences a stream of chunks is: which steps are washed out, and which fold the others are in.


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

    def advance(self, columns: Columns, drop: int, *, new_sequence: bool) -> list[tuple[int, int, int, int]]:
        """Move on by a chunk of which the first `drop` steps are washed out; returns the rows to learn from.

        They come as (lane, start, stop, fold): steps start..stop of one sequence of the chunk, all in one fold.
        """
        if new_sequence:
            if self._batch is not None:
                kept = max(self._step - self._washout, 0)
                self._first_block += -(-kept // self._block_steps) * self._batch
            self._step = 0
        self._batch = columns.batch
        kept_before = max(self._step - self._washout, 0)
        self._step += columns.steps
        if self._folds == 1:
            return [(lane, drop, columns.steps, 0) for lane in range(columns.batch)]
        segments: list[tuple[int, int, int, int]] = []
        start = drop
        while start < columns.steps:
            block, before = divmod(kept_before + start - drop, self._block_steps)
            stop = min(columns.steps, start + self._block_steps - before)
            number = self._first_block + block * columns.batch
            segments += [(lane, start, stop, (number + lane) % self._folds) for lane in range(columns.batch)]
            start = stop
        return segments
