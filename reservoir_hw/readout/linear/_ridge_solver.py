"""The ridge problem: its features and their units (`Design`), the basis where it is diagonal (`Spectrum`), and its
solution by second moments or QR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from reservoir_hw.core import arrays
from reservoir_hw.core.threads import blas_threads
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
        smallest = float(self.values.min(initial=np.inf)) if self.rank == self.features else 0.0
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


# ---- Ridge regression from an incremental QR decomposition: the condition number is not squared.


class IncrementalQR:
    """The triangular factor of the columns (1, x, y), updated block by block by Householder reflections.

    Stacking a block under the factor and decomposing again loses nothing (Golub & Van Loan 2013, _6.5.3;
    the sequential "TSQR" of Demmel et al. 2012). Because the columns stand in this order, row 0 holds the
    means, the next rows the centred features, and what is left below them of y is the residual of least
    squares.
    """

    def __init__(self, width: int) -> None:
        self.rows = 0
        self._factor = np.zeros((0, 1 + width))

    def add(self, block: Array) -> None:
        """Take in rows (n, 1 + width)."""
        self._factor = _triangle(np.vstack([self._factor, block]))
        self.rows += block.shape[0]

    def merged(self, others: Sequence[Any]) -> Self:
        """The factor of the factors."""
        result = type(self)(self._factor.shape[1] - 1)
        result._factor = _triangle(np.vstack([part._factor for part in (self, *others)]))
        result.rows = self.rows + sum(part.rows for part in others)
        return result

    @property
    def mean(self) -> Array:
        """(width,)."""
        return self._factor[0, 1:] / self._factor[0, 0]

    @property
    def variance(self) -> Array:
        """(width,)."""
        return (self._factor[1:, 1:] ** 2).sum(axis=0) / self.rows

    def _about(self, centre: Array) -> Array:
        """A matrix F with FᵀF = the second moments about `centre`: (·, width)."""
        offset = self.mean - centre
        centred = self._factor[1:, 1:]
        return np.vstack([np.sqrt(self.rows) * offset, centred]) if offset.any() else centred

    def spectrum(self, design: Design) -> Spectrum:
        """Singular values and right singular vectors of the triangular factor."""
        columns = np.append(design.keep, np.arange(design.features, self._factor.shape[1] - 1))
        kept = design.keep.size
        factor = _triangle(self._about(design.centre)[:, columns])
        left, singular, right = np.linalg.svd(design.scaled(factor[:kept, :kept].T).T, full_matrices=False)
        projected = left.T @ factor[:kept, kept:]
        level = rounding_level(kept, self.rows)
        resolved = singular > level * singular.max(initial=0.0)
        explained = np.where(resolved[:, None], projected**2, 0.0)
        # The second term is what lies along directions that only rounding errors span.
        unexplained = (factor[kept:, kept:] ** 2).sum(axis=0) + (projected[~resolved] ** 2).sum(axis=0)
        return Spectrum(
            values=singular**2,
            vectors=right.T,
            moments=singular[:, None] * projected,
            explained=explained,
            unexplained=unexplained,
            resolved=resolved,
            rows=self.rows,
            constants=design.constants,
        )

    def direct(self, design: Design, alpha: float) -> tuple[Array, Callable[[], Spectrum]] | None:
        """None: beside the updates of the factor, its decomposition takes no time."""

    def squared_error(self, design: Design, weights: Array) -> Array:
        """The residuals themselves, up to a rotation: no difference of large numbers."""
        factor = self._about(design.centre)
        weights = design.scaled(weights)
        residual = factor[:, None, design.features :] - times(factor[:, design.keep], weights)
        return (residual**2).sum(axis=0)


def _triangle(matrix: Array) -> Array:
    return cast(Array, np.linalg.qr(matrix, mode="r"))


# ---- Ridge regression from accumulated second moments: fast, good for condition numbers up to about 1e7.


class NormalEquations:
    """The Gram matrix of the columns (1, x, y), always summed in float64.

    Summed in float32 it is useless for small alpha: the squares of small singular values are the first
    thing that rounding takes away. Rows that are tensors are summed where they are; everything else is computed by
    numpy, from the sums.
    """

    def __init__(self, width: int) -> None:
        self.rows = 0
        self._sums: Any = np.zeros((1 + width, 1 + width))
        self._fetched: Array | None = None

    def add(self, block: Any) -> None:
        """Take in rows (n, 1 + width); numpy hands block.T @ block to dsyrk, half the work of a product."""
        with blas_threads(block.shape[0] * block.shape[1] ** 2):
            product = block.T @ block
        if self.rows:
            self._sums += product
        else:
            self._sums = product
        self.rows += block.shape[0]
        self._fetched = None

    def merged(self, others: Sequence[Any]) -> Self:
        """Moments add up."""
        result = type(self)(self._sums.shape[0] - 1)
        for part in (self, *others):
            result._sums += part._gram
            result.rows += part.rows
        return result

    @property
    def _gram(self) -> Array:
        gram = self._fetched
        if gram is None:
            gram = self._fetched = cast(Array, arrays.as_numpy(self._sums))
        return gram

    @property
    def mean(self) -> Array:
        """(width,)."""
        return self._gram[0, 1:] / self.rows

    @property
    def variance(self) -> Array:
        """(width,)."""
        return np.maximum(self._gram.diagonal()[1:] / self.rows - self.mean**2, 0.0)

    def _about(self, centre: Array) -> Array:
        """Second moments about `centre`: (width, width)."""
        mean = self.mean
        # Two steps: about the mean first, so that the common case loses no digits to the second term.
        moments = np.multiply.outer(mean, -self.rows * mean)
        moments += self._gram[1:, 1:]
        offset = mean - centre
        if offset.any():
            moments += self.rows * np.outer(offset, offset)
        return moments

    def spectrum(self, design: Design) -> Spectrum:
        """Eigenvalues and eigenvectors of the scaled Gram matrix."""
        return _System(self._about(design.centre), design, self.rows).spectrum()

    def direct(self, design: Design, alpha: float) -> tuple[Array, Callable[[], Spectrum]] | None:
        """By elimination, several times as fast as the eigenvectors."""
        system = _System(self._about(design.centre), design, self.rows)
        weights = system.weights(alpha)
        return None if weights is None else (weights, system.spectrum)

    def squared_error(self, design: Design, weights: Array) -> Array:
        """|y|² - 2 w·Xᵀy + w·XᵀX w."""
        moments = self._about(design.centre)
        kept, targets = design.columns, slice(design.features, None)
        weights = design.scaled(weights)
        gram, cross = moments[kept][:, kept], moments[kept, targets]
        error = (weights * (times(gram, weights) - 2.0 * cross[:, None])).sum(axis=0)
        return np.maximum(error + moments.diagonal()[targets], 0.0)


class _System:
    """AᵀA, AᵀY and |Y|² of a design A, on their own: independent of what is learned later."""

    def __init__(self, moments: Array, design: Design, rows: int) -> None:
        kept, targets = design.columns, slice(design.features, None)
        self.gram = moments[kept][:, kept]
        if design.scale is not None:
            self.gram /= design.scale
            self.gram /= design.scale[:, None]
        self.cross = design.scaled(moments[kept, targets])
        self.total = moments.diagonal()[targets].copy()
        self.rows, self.constants = rows, design.constants
        self.level = rounding_level(len(self.gram), rows)

    def spectrum(self) -> Spectrum:
        with blas_threads(4 * len(self.gram) ** 3):
            values, vectors = np.linalg.eigh(self.gram)
        values = np.maximum(values, 0.0)
        projected = vectors.T @ self.cross
        resolved = values > self.level * values.max(initial=0.0)
        explained = np.zeros_like(projected)
        explained[resolved] = projected[resolved] ** 2 / values[resolved, None]
        return Spectrum(
            values=values,
            vectors=vectors,
            moments=projected,
            explained=explained,
            unexplained=np.maximum(self.total - explained.sum(axis=0), 0.0),
            resolved=resolved,
            rows=self.rows,
            constants=self.constants,
        )

    def weights(self, alpha: float) -> Array | None:
        """(AᵀA + alpha)⁻¹ AᵀY, or None if an eigenvalue of AᵀA + alpha may be as small as rounding errors.

        τ is twice the level of the errors of the sums; the Frobenius norm in it is no smaller than the largest
        eigenvalue. The eigenvalues of the exact AᵀA are at least 0, those of the summed one at least -τ/2, so an
        alpha of 2τ keeps them all above τ. For a smaller alpha a factorisation tells: a matrix has a Cholesky factor
        if and only if all eigenvalues are positive, so that of the matrix minus τ if they exceed τ.
        """
        matrix = self.gram.copy()
        entries = matrix.reshape(-1)
        diagonal = entries[:: len(matrix) + 1]
        diagonal += alpha
        threshold = 2 * self.level * math.sqrt(entries.dot(entries))
        if alpha < 2 * threshold:
            diagonal -= threshold
            try:
                with blas_threads(len(matrix) ** 3):
                    np.linalg.cholesky(matrix)
            except np.linalg.LinAlgError:
                return None
            diagonal += threshold
        with blas_threads(len(matrix) ** 3):
            return cast(Array, np.linalg.solve(matrix, self.cross))
