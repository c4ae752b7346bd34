"""Ridge regression from an incremental QR decomposition: the condition number is not squared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import numpy as np

from reservoir_hw.readout.linear._decomposition import Array, Design, Spectrum, rounding_level, times


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
        if not offset.any():
            return centred
        return np.vstack([np.sqrt(self.rows) * offset, centred])

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
