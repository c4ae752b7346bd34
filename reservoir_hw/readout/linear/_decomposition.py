"""The ridge problem: its features and their units (`Design`), and the basis where it is diagonal (`Spectrum`).

One decomposition serves every alpha and output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from reservoir_hw.core import arrays
from reservoir_hw.readout.linear.training_chunks import EPSILON

Array: TypeAlias = npt.NDArray[np.float64]

# A column that moves by less than this many of its own last digits carries rounding errors only.
DEAD_DIGITS = 2.0


@dataclass(frozen=True)
class Design:
    """How accumulated columns become the features that the penalty acts on: (x - centre) / scale.

    `keep` (kept,) are the feature columns that vary, `centre` (features + outputs,) is in the coordinates of
    the accumulated statistics, `scale` (kept,), or None for 1. `constants` counts the unpenalised constant columns
    (the bias).
    """

    keep: npt.NDArray[np.intp]
    features: int
    centre: Array
    scale: Array | None
    constants: int

    @classmethod
    def of(cls, rows: Any, *, shift: Array, precision: Array, standardise: bool, bias: bool) -> Self:
        """The design of rows whose `mean` and `variance` (features + outputs,) are relative to `shift`.

        `precision` (features,) is the machine epsilon of the numbers that the rows came in.
        """
        features, mean = precision.size, rows.mean
        spread = np.sqrt(rows.variance[:features])
        magnitude = np.hypot(mean[:features] + shift[:features], spread)
        # Without a bias there is no constant to take a mean off, so a constant column is as good as any.
        keep = np.flatnonzero(spread > DEAD_DIGITS * precision * magnitude if bias else magnitude > 0)
        centre = mean if bias else -shift
        scale = (spread if bias else magnitude)[keep] if standardise else None
        return cls(keep=keep, features=features, centre=centre, scale=scale, constants=int(bias))

    @property
    def columns(self) -> npt.NDArray[np.intp] | slice:
        """`keep` as an index; a slice, which copies nothing, if that is all features."""
        return slice(self.features) if self.keep.size == self.features else self.keep

    def scaled(self, weights: Array) -> Array:
        """Weights (kept, ...) of the scaled features as weights of the columns themselves."""
        return weights if self.scale is None else weights / self.scale.reshape(-1, *(1,) * (weights.ndim - 1))


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of AᵀA (A: the design, rows × kept features) and the targets seen in their basis.

    values      (k,)          eigenvalues λ = s², s the singular values of A = U S Vᵀ
    vectors     (kept, k)     V
    moments     (k, outputs)  Vᵀ Aᵀ Y = S Uᵀ Y
    explained   (k, outputs)  (Uᵀ Y)², zero where λ is below what rounding leaves visible
    unexplained (outputs,)    squared norm of the part of Y that no weights reach
    resolved    (k,)          which eigenvalues are above the rounding errors of the solver
    """

    values: Array
    vectors: Array
    moments: Array
    explained: Array
    unexplained: Array
    resolved: npt.NDArray[np.bool_]
    rows: int
    constants: int

    @property
    def rank(self) -> int:
        """Number of directions of the design that can be told from rounding errors."""
        return int(np.count_nonzero(self.resolved))

    @property
    def features(self) -> int:
        """Number of columns of the design."""
        return self.vectors.shape[0]

    def weights(self, alpha: Array) -> Array:
        """V (Λ + alpha)⁻¹ Vᵀ Aᵀ Y, (kept, outputs). `alpha` is () or (outputs,)."""
        return self.vectors @ (self.moments / (self.values[:, None] + alpha))

    def weights_for_each(self, alphas: Array) -> Array:
        """The weights for every alpha of a grid: (kept, alphas, outputs)."""
        # In the basis V: (k, alphas, outputs).
        return times(self.vectors, self.moments[:, None, :] / (self.values[:, None] + alphas)[:, :, None])

    def condition(self, alpha: npt.ArrayLike) -> Array:
        """Ratio of the largest to the smallest singular value of the design stacked on √alpha · 1, for each alpha.

        Directions that are not resolved count as zero: what the decomposition shows there is rounding.
        """
        largest = float(self.values.max(initial=0.0))
        full_rank = self.rank == self.features
        smallest = float(self.values.min(initial=np.inf)) if full_rank else 0.0
        with np.errstate(divide="ignore"):
            return np.sqrt((largest + np.asarray(alpha)) / (smallest + np.asarray(alpha)))


def times(matrix: Array, stack: Array) -> Array:
    """(n, k) times (k, alphas, outputs), as one product of two matrices."""
    return (matrix @ stack.reshape(stack.shape[0], -1)).reshape(-1, *stack.shape[1:])


def rounding_level(features: int, rows: int) -> float:
    """Relative size below which a singular value of an accumulated design is rounding.

    Errors grow with the number of columns in the worst case, and with the square root of the number of
    summed rows where they are independent (Higham 2002, Accuracy and Stability, __2.8, 19.3).
    """
    return EPSILON * (features + float(np.sqrt(rows)))


# ---- Statistics of rows (1, x, y), features x and targets y as float64 relative to a shift, in a single pass.


# Large enough for the matrix product to hide the cost of starting it and of adding its result.
BLOCK_ROWS = 4096
FOLD_BLOCK_ROWS = 2048
# The products of torch's libraries add up their rows one by one: over 4096 rows that costs five times the rounding
# errors of numpy's, over 512 nothing.
TENSOR_BLOCK_ROWS = 512
SHIFT_ROWS = 64


class Accumulator:
    """Collects rows into blocks and adds each full block to the statistics of its fold, which `empty` makes.

    Blocks are cut by the number of rows, not by the chunks they came in, so that chunking cannot change the
    result. Columns whose mean in the first block exceeds their spread are taken relative to it: a large offset of
    the states would otherwise use up the digits of the second moments. A smaller one costs one bit at most.

    Rows are collected and summed on `device`, as tensors; as numpy arrays where it is None. Rows from elsewhere go
    there.
    """

    def __init__(self, empty: Callable[[int], Any], width: int, folds: int, device: str | None = None) -> None:
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

    def statistics(self) -> list[Any]:
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


# ---- Estimates of the error on unseen steps, as curves over alpha: (alphas, outputs), mean squared errors.


DEFAULT_ALPHAS = np.logspace(-8, 8, 49)


def gcv_scores(spectrum: Spectrum, alphas: Array) -> Array:
    """Generalised cross-validation (Golub, Heath & Wahba 1979, eq. 1.4): |(1 - H) y|² / n over (tr(1 - H) / n)².

    With the singular value decomposition of the design, 1 - H(alpha) is diagonal with entries
    alpha / (λ + alpha) and 1 (and 0 for the bias), so that all alphas and outputs are one matrix product.
    """
    values = spectrum.values[spectrum.resolved]
    shrinkage = alphas[:, None] / (values + alphas[:, None])
    free = max(spectrum.rows - spectrum.constants - spectrum.rank, 0)
    # Without a free row every target can be reached; what was found beyond is rounding.
    unexplained = spectrum.unexplained if free else np.zeros_like(spectrum.unexplained)
    squared_error = unexplained + shrinkage**2 @ spectrum.explained[spectrum.resolved]
    freedom = free + shrinkage.sum(axis=1, keepdims=True)
    return spectrum.rows * squared_error / freedom**2


def choose_alpha(scores: Array, alphas: Array, *, per_output: bool) -> float | Array:
    """The alpha of the lowest score, () or (outputs,); of equal ones the largest. `alphas` ascends."""
    curve = scores if per_output else scores.mean(axis=1)
    best = alphas.size - 1 - np.argmin(curve[::-1], axis=0)
    return alphas[best] if per_output else float(alphas[best])
