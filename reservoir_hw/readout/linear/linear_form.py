"""What every linear readout computes, whatever found its weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reservoir_hw.readout.linear._decomposition import Array
from reservoir_hw.readout.linear.feature_scale import FeatureScale


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
