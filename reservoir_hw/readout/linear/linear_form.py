"""What every linear readout computes, whatever found its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

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


class LinearForm(NamedTuple):
    """y = W x + b, in float64. The features x are the states of `nodes` nodes, then the inputs, if it reads any.

    `weights` (outputs, features) and `bias` (outputs,) are those of the features as they are, standardisation folded
    in. `scale` is what the features were like in training, and `target_spread` (outputs,) how much the targets moved;
    None where the readout does not know it.
    """

    weights: Array
    bias: Array
    nodes: int
    scale: FeatureScale | None
    target_spread: Array | None = None

    @property
    def inputs(self) -> int:
        """How many of the features are inputs."""
        return self.weights.shape[1] - self.nodes

    def arrays(self) -> dict[str, Array]:
        """What a file keeps of it."""
        found = {"weights": np.ascontiguousarray(self.weights), "bias": self.bias}
        if self.scale is not None:
            found |= {"centre": self.scale.centre, "spread": self.scale.spread}
        if self.target_spread is not None:
            found["target_spread"] = self.target_spread
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], nodes: int) -> Self:
        """What was kept. Raises `KeyError` where it is incomplete."""
        scale = FeatureScale(arrays["centre"], arrays["spread"]) if "centre" in arrays else None
        return cls(arrays["weights"], arrays["bias"], nodes, scale, arrays.get("target_spread"))


SINGLE_LIMIT = 1e-4
"""What rounding to float32 may change in an output, in standard deviations of it."""

REACH, SHARE = 3.0, 0.25
"""Standard deviations from the mean that a feature is taken to reach, and how much of the limit one rounding of all
products may take: the sums of products that large and of one sign are rounded as well."""


def loses_in_single(weights: Array, sizes: Array, spread: Array) -> bool:
    """Whether large weights that cancel move an output too far in float32.

    `weights` (outputs, features) of features of these `sizes` (features,); `spread` (outputs,) is that of outputs.
    """
    lost = (np.abs(weights) * sizes).sum(axis=1) * np.finfo(np.float32).epsneg
    return bool((lost > SINGLE_LIMIT * spread).any())


def sizes_of(scale: FeatureScale) -> Array:
    """How large features (features,) of this scale get."""
    return (np.abs(scale.centre) + REACH * scale.spread) / SHARE
