"""Which columns of the rows the weights are found for, and in which units the penalty sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from reservoir_hw.readout.linear._decomposition import Array

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
