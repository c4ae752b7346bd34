"""Ridge regression from accumulated second moments: fast, good for condition numbers up to about 1e7."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.threads import blas_threads
from reservoir_hw.readout.linear._decomposition import Array, Design, Spectrum, rounding_level, times


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
