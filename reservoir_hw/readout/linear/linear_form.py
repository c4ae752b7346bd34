"""What every linear readout computes, whatever found its weights."""

from __future__ import annotations

from typing import NamedTuple

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
