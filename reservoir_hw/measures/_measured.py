"""What every measure takes and returns: recordings; a value, an interval that says how it was found, and a note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import all_finite, as_numpy
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.statistics import t_quantile

CONFIDENCE = 0.95
"""Probability with which an interval holds the true value."""


@dataclass(frozen=True)
class Interval:
    """Where the true value lies with the probability `CONFIDENCE`; `method` says how that was found.

    An end is infinite where nothing bounds it.
    """

    low: float
    high: float
    confidence: float = field(default=CONFIDENCE, kw_only=True)
    method: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """The result of a measure. Each measure adds the arrays that its figure shows."""

    value: float
    interval: Interval
    note: str = ""


# ---- Quantiles and standard errors, with numpy alone.


BATCHES = 20
"""Pieces into which a series is cut for its batch means."""

SPAN = 4
"""Correlation times in a piece that is nearly independent of the next."""

FEWEST = 4
"""Pieces that an interval needs."""


def require_steps(steps: int) -> None:
    """Raise `ShapeError` where there are fewer than two steps for each of `BATCHES` pieces."""
    if steps < 2 * BATCHES:
        raise ShapeError(f"{steps} steps are too few for an interval: at least {2 * BATCHES} are needed")


def chi2_quantile(probability: float, degrees: float) -> float:
    """Quantile of the chi-square distribution (Wilson & Hilferty 1931).

    In the upper tail it errs to the large side: by 7 % for one degree of freedom, 2 % for five, nothing for fifty.
    """
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + NormalDist().inv_cdf(probability) * spread**0.5) ** 3


def correlation_times(series: np.ndarray) -> np.ndarray:
    """Integrated autocorrelation time of each column of (time, columns), in steps: 1 where steps are independent.

    The mean of n steps of a series with the time τ is as certain as that of n / τ independent ones. Autocorrelations
    are added up in pairs of neighbouring lags as long as the pairs are positive (Geyer 1992), which for a short series
    errs less to the small side than a fixed window does.
    """
    moved = series - series.mean(axis=0)
    spectrum = np.fft.rfft(moved, 2 * len(series), axis=0)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[: len(series) // 2 * 2]
    pairs = products[::2] + products[1::2]
    counted = np.where(np.logical_and.accumulate(pairs > 0, axis=0), pairs, 0.0).sum(axis=0)
    power = products[0]
    return np.maximum(2 * np.divide(counted, power, out=np.ones_like(power), where=power > 0) - 1, 1.0)


def independent_pieces(series: np.ndarray, most: int) -> np.ndarray:
    """Into how many pieces with nearly independent means, up to `most`, each column of (time, columns) can be cut.

    A piece is at least `SPAN` times the correlation time.
    """
    return np.minimum(len(series) / (SPAN * correlation_times(series)), most).astype(int)


@dataclass(frozen=True)
class BatchMeans:
    """Mean of a correlated series, and its standard error from the means of consecutive pieces.

    `batches` is how many of them are independent; with fewer than `FEWEST` the error is too small for an interval.
    """

    mean: float
    error: float
    batches: int

    def interval(self, value: float) -> Interval:
        """Interval for a `value` that has this error."""
        if self.batches < FEWEST:
            return no_interval()
        return t_interval(value, self.error, self.batches - 1, f"{self.batches} batch means over time, Student's t")


def batch_means(series: np.ndarray) -> BatchMeans:
    """Mean of a correlated series (time,) with its error.

    Means of consecutive pieces are nearly independent where a piece is much longer than the correlation time of the
    series (Conway 1963; Law & Kelton 2000, section 9.5.3). There are `BATCHES` of them, and fewer where the measured
    correlation time asks for longer ones. Raises `ShapeError` where there are fewer than two steps for each of
    `BATCHES` pieces.
    """
    require_steps(len(series))
    batches = int(independent_pieces(series[:, None], BATCHES)[0])
    count = max(batches, FEWEST)
    length = len(series) // count
    means = series[len(series) - length * count :].reshape(count, length).mean(axis=1)
    return BatchMeans(float(series.mean()), float(means.std(ddof=1) / count**0.5), batches)


def t_interval(value: float, error: float, degrees: int, method: str) -> Interval:
    """`value` plus and minus its standard error times Student's quantile."""
    half = t_quantile((1 + CONFIDENCE) / 2, degrees) * error
    return Interval(value - half, value + half, method)


def no_interval() -> Interval:
    """Where too few pieces of time are independent."""
    return Interval(-np.inf, np.inf, f"none: fewer than {FEWEST} independent pieces of time")


def remark(interval: Interval) -> str:
    """A sentence for a result without an interval, else empty."""
    if np.isfinite([interval.low, interval.high]).any():
        return ""
    return f"No interval: slow changes leave fewer than {FEWEST} stretches of time that are independent. Record longer."


def bounded(interval: Interval, least: float, most: float) -> Interval:
    """The part of an interval that is possible."""
    return replace(interval, low=min(max(interval.low, least), most), high=max(min(interval.high, most), least))


# ---- Arrays as the measures take them: checked for shape and for values that are no numbers.


# Standard deviations below this, relative to the mean, are rounding.
_ROUNDING = 64 * np.finfo(np.float64).eps


def checked(values: Any, axes: tuple[str, ...], name: str = "states") -> np.ndarray:
    """`values` in float64 with these axes.

    Raises `ShapeError` for other numbers of axes and for empty ones, `InputRangeError` for NaN and infinity.
    """
    array = np.asarray(as_numpy(values))
    wanted = f"({', '.join(axes)})"
    if array.ndim != len(axes):
        raise ShapeError(f"{name} must be {wanted}, not an array of shape {array.shape}")
    if 0 in array.shape:
        raise ShapeError(f"{name} {wanted} are empty: {array.shape}")
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{name} must hold real numbers, not {array.dtype}")
    if not all_finite(array):
        raise InputRangeError(
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} values of the {name} are not finite; leave out "
            "the channels or steps that were not recorded"
        )
    return array.astype(np.float64)


def precision(dtype: Any) -> np.floating:
    """Relative precision of numbers as they were recorded, in their own dtype; that of float64 for whole numbers."""
    dtype = np.dtype(dtype)
    return np.finfo(dtype if dtype.kind == "f" else np.float64).eps


def deviations(states: np.ndarray, axis: int) -> np.ndarray:
    """`states` about their mean over time; exactly 0 for a node that only rounding moves."""
    mean = states.mean(axis=axis, keepdims=True)
    moved = states - mean
    still = np.ptp(states, axis=axis, keepdims=True) <= _ROUNDING * np.abs(mean)
    return np.where(still, 0.0, moved)


def moving_nodes(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Which nodes move by more than rounding (nodes,), from their means and standard deviations.

    Raises `InputRangeError` if none does.
    """
    moving = spread > _ROUNDING * np.abs(mean)
    refuse_still(moving)
    return moving


def refuse_still(moving: np.ndarray) -> None:
    """Raise `InputRangeError` if no node moves; `moving` (nodes,) holds a truth value for each."""
    if not moving.any():
        raise InputRangeError(
            f"all {moving.size} nodes are constant: the device does not respond. Check the amplitude of the drive and "
            "the read-out"
        )


# ---- Recordings in blocks of bounded memory: states, and the inputs that caused them.


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

    def blocks(self) -> Iterator[Block]:
        """All rows, a few thousand at a time at most, in float64.

        Sequences that share their chunks on disk take turns, so the rows do not come in their order; those of one
        sequence do. Raises `InputRangeError` for states that are not finite.
        """
        # Consecutive sequences that are best read together.
        together = getattr(self.states, "sharing", 1)
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
        self.channels = inputs.shape[2]
