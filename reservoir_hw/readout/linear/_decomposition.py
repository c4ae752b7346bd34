"""The ridge problem: its features and their units (`Design`), and the basis where it is diagonal (`Spectrum`).

One decomposition serves every alpha and output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

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
    def of(cls, mean: Array, variance: Array, *, shift: Array, precision: Array, standardise: bool, bias: bool) -> Self:
        """The design of rows with this mean and variance (features + outputs,), both relative to `shift`.

        `precision` (features,) is the machine epsilon of the numbers that the rows came in.
        """
        features = precision.size
        spread = np.sqrt(variance[:features])
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
