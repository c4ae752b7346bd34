"""Ridge regression in the basis where it is diagonal: one decomposition serves every alpha and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from reservoir_hw.readout.linear.training_chunks import EPSILON

Array: TypeAlias = npt.NDArray[np.float64]


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
        return times(self.vectors, self.filtered(alphas))

    def filtered(self, alphas: Array) -> Array:
        """(Λ + alpha)⁻¹ Vᵀ Aᵀ Y, the weights in the basis V: (k, alphas, outputs)."""
        return self.moments[:, None, :] / (self.values[:, None] + alphas)[:, :, None]

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
