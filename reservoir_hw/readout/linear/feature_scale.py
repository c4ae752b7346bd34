"""What features are like, and features brought to one scale by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from reservoir_hw.readout.linear._decomposition import Array


@dataclass(frozen=True)
class FeatureScale:
    """Features x become (x - centre) / spread; all arrays are (features,)."""

    centre: Array
    spread: Array

    @classmethod
    def none(cls, features: int) -> Self:
        """Features as they are."""
        return cls(np.zeros(features), np.ones(features))

    @classmethod
    def of(cls, blocks: Sequence[Array], *, centred: bool, precision: float) -> Self:
        """From rows (..., features): mean and standard deviation, or 0 and root mean square.

        A feature that is constant up to `precision`, relative to its size, keeps its spread: it may come alive later.
        """
        rows = np.concatenate([block.reshape(-1, block.shape[-1]) for block in blocks])
        centre = rows.mean(axis=0) if centred else np.zeros(rows.shape[1])
        spread = np.sqrt(np.mean((rows - centre) ** 2, axis=0))
        constant = spread <= 16 * precision * np.abs(rows).max(axis=0)
        return cls(centre, np.where(constant, 1.0, spread))

    def standardised(self, rows: Array, *, bias: bool) -> Array:
        """Rows (..., features) for the update rule, with `bias` a constant 1 behind them."""
        result = np.empty((*rows.shape[:-1], rows.shape[-1] + bias))
        np.subtract(rows, self.centre, out=result[..., : rows.shape[-1]])
        result[..., : rows.shape[-1]] /= self.spread
        if bias:
            result[..., -1] = 1.0
        return result

    def unfolded(self, weights: Array, *, bias: bool) -> tuple[Array, Array]:
        """Weights (features, outputs) and bias (outputs,) for features as they are."""
        raw = weights[: len(self.spread)] / self.spread[:, None]
        offset = weights[-1] if bias else np.zeros(weights.shape[1])
        return raw, offset - self.centre @ raw
