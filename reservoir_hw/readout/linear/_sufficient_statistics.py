"""What the two solvers have in common: additive statistics of rows, filled in blocks in a single pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.readout.linear._decomposition import Array, Design, Spectrum

# Large enough for the matrix product to hide the cost of starting it and of adding its result.
BLOCK_ROWS = 4096
FOLD_BLOCK_ROWS = 2048
# The products of torch's libraries add up their rows one by one: over 4096 rows that costs five times the rounding
# errors of numpy's, over 512 nothing.
TENSOR_BLOCK_ROWS = 512
SHIFT_ROWS = 64


class Statistics(Protocol):
    """Sufficient statistics of rows (1, x, y): features x, targets y, both as float64 relative to a shift.

    Rows may be tensors where a kind takes them; what it tells of them are numpy arrays.
    """

    rows: int

    def add(self, block: Any) -> None:
        """Take in rows (n, 1 + features + outputs), the first column of which is 1."""
        ...

    def merged(self, others: Sequence[Self]) -> Self:
        """The statistics of these rows and those of `others` together."""
        ...

    @property
    def mean(self) -> Array:
        """(features + outputs,)."""
        ...

    @property
    def variance(self) -> Array:
        """Divided by the number of rows (not rows - 1): (features + outputs,)."""
        ...

    def spectrum(self, design: Design) -> Spectrum:
        """The ridge problem of these rows under `design`, decomposed."""
        ...

    def direct(self, design: Design, alpha: float) -> tuple[Array, Callable[[], Spectrum]] | None:
        """Weights (kept, outputs) without a decomposition, and what makes up for it; None if in doubt.

        Given only if `Spectrum.condition` for this `alpha`, one number, surely is one the solver can handle.
        """
        ...

    def squared_error(self, design: Design, weights: Array) -> Array:
        """Summed squared residuals of these rows, (alphas, outputs), for weights (kept, alphas, outputs)."""
        ...


class Accumulator:
    """Collects rows into blocks and adds each full block to the statistics of its fold.

    Blocks are cut by the number of rows, not by the chunks they came in, so that chunking cannot change the
    result. Columns whose mean in the first block exceeds their spread are taken relative to it: a large offset of
    the states would otherwise use up the digits of the second moments. A smaller one costs one bit at most.

    Rows are collected and summed on `device`, as tensors; as numpy arrays where it is None. Rows from elsewhere go
    there.
    """

    def __init__(self, empty: Callable[[int], Statistics], width: int, folds: int, device: str | None = None) -> None:
        self._shift: Any = None
        self._device = device
        self._shifted = False
        self._statistics = [empty(width) for _ in range(folds)]
        self._block_rows = BLOCK_ROWS if folds == 1 else FOLD_BLOCK_ROWS
        if device is not None:
            self._block_rows = TENSOR_BLOCK_ROWS
        self._blocks: list[Any] = [None] * folds
        self._filled = [0] * folds
        self._width = width

    @property
    def rows(self) -> int:
        """Rows taken in so far."""
        return sum(part.rows for part in self._statistics) + sum(self._filled)

    def add(self, columns: Sequence[Any], fold: int) -> None:
        """Take in rows given as arrays (n, ·) that lie side by side: states, inputs, targets."""
        block = self._blocks[fold]
        if block is None:
            shape = (self._block_rows, 1 + self._width)
            block = self._blocks[fold] = arrays.empty(shape, np.dtype(np.float64), self._device)
        if arrays.is_tensor(columns[0]) != arrays.is_tensor(block):
            columns = [arrays.like(column, block) for column in columns]
        start, rows = 0, columns[0].shape[0]
        while start < rows:
            at = self._filled[fold]
            count = min(rows - start, self._block_rows - at)
            left = 1
            for column in columns:
                right = left + column.shape[1]
                block[at : at + count, left:right] = column[start : start + count]
                left = right
            start += count
            self._filled[fold] += count
            if self._filled[fold] == self._block_rows:
                self._flush(fold)

    @property
    def shift(self) -> Array:
        """What the statistics are relative to, (width,); known once `statistics` was called with rows."""
        assert self._shift is not None
        return arrays.as_numpy(self._shift)[1:]

    def statistics(self) -> list[Statistics]:
        """One per fold, complete up to the last row taken in."""
        for fold in range(len(self._statistics)):
            self._flush(fold)
        return self._statistics

    def _flush(self, fold: int) -> None:
        block, count = self._blocks[fold], self._filled[fold]
        if block is None or count == 0:
            return
        filled = block[:count]
        filled[:, 0] = 1.0
        shift = self._shift
        if shift is None:
            sample = filled[:: -(-count // SHIFT_ROWS)]
            total = sample.sum(axis=0)
            far = total * total > len(sample) / 2 * (sample * sample).sum(axis=0)
            far[0] = False
            self._shifted = bool(far.any())
            shift = self._shift = far * total / len(sample)
        if self._shifted:
            # Whole rows, the first column too: numpy subtracts twice as fast in contiguous memory.
            filled -= shift
        self._statistics[fold].add(filled)
        self._filled[fold] = 0
