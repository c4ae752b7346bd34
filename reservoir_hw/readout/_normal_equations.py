"""Ridge regression from accumulated second moments: fast, good for condition numbers up to about 1e7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from reservoir_hw.readout._spectrum import Array, Design, Spectrum, rounding_level, times


class NormalEquations:
    """The Gram matrix of the columns (1, x, y), always summed in float64.

    Summed in float32 it is useless for small alpha: the squares of small singular values are the first
    thing that rounding takes away.
    """

    def __init__(self, width: int) -> None:
        self.rows = 0
        self._gram = np.zeros((1 + width, 1 + width))

    def add(self, block: Array) -> None:
        """Take in rows (n, 1 + width); numpy hands block.T @ block to dsyrk, half the work of a product."""
        self._gram += block.T @ block
        self.rows += block.shape[0]

    def merged(self, others: Sequence[Self]) -> Self:
        """Moments add up."""
        result = type(self)(self._gram.shape[0] - 1)
        for part in (self, *others):
            result._gram += part._gram
            result.rows += part.rows
        return result

    @property
    def mean(self) -> Array:
        """(width,)."""
        return self._gram[0, 1:] / self.rows

    @property
    def variance(self) -> Array:
        """(width,)."""
        return np.maximum(np.diagonal(self._gram)[1:] / self.rows - self.mean**2, 0.0)

    def _about(self, centre: Array) -> Array:
        """Second moments about `centre`: (width, width)."""
        mean = self.mean
        offset = mean - centre
        # Two steps: about the mean first, so that the common case loses no digits to the second term.
        moments = np.outer(mean, -self.rows * mean)
        moments += self._gram[1:, 1:]
        if offset.any():
            moments += self.rows * np.outer(offset, offset)
        return moments

    def spectrum(self, design: Design) -> Spectrum:
        """Eigenvalues and eigenvectors of the scaled Gram matrix."""
        moments = self._about(design.centre)
        kept, targets = design.keep, slice(design.features, None)
        gram = moments[np.ix_(kept, kept)]
        gram /= design.scale
        gram /= design.scale[:, None]
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values, 0.0)
        projected = vectors.T @ (moments[kept, targets] / design.scale[:, None])
        level = rounding_level(kept.size, self.rows)
        resolved = values > level * values.max(initial=0.0)
        explained = np.zeros_like(projected)
        explained[resolved] = projected[resolved] ** 2 / values[resolved, None]
        total = np.diagonal(moments)[targets]
        return Spectrum(
            values=values,
            vectors=vectors,
            moments=projected,
            explained=explained,
            unexplained=np.maximum(total - explained.sum(axis=0), 0.0),
            resolved=resolved,
            rows=self.rows,
            constants=design.constants,
        )

    def squared_error(self, design: Design, weights: Array) -> Array:
        """|y|² - 2 w·Xᵀy + w·XᵀX w."""
        moments = self._about(design.centre)
        kept, targets = design.keep, slice(design.features, None)
        weights = weights / design.scale[:, None, None]
        gram, cross = moments[np.ix_(kept, kept)], moments[kept, targets]
        error = (weights * (times(gram, weights) - 2.0 * cross[:, None])).sum(axis=0)
        return np.maximum(error + np.diagonal(moments)[targets], 0.0)
