"""What every linear readout computes, whatever found its weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reservoir_hw.readout.linear.scale import Scale


class LinearForm(NamedTuple):
    """y = W x + b, in float64. The features x are the states of `nodes` nodes, then the inputs, if it reads any.

    `weights` (outputs, features) and `bias` (outputs,) are those of the features as they are, standardisation folded
    in. `scale` is what the features were like in training, None where the readout does not know it.
    """

    weights: npt.NDArray[np.float64]
    bias: npt.NDArray[np.float64]
    nodes: int
    scale: Scale | None

    @property
    def inputs(self) -> int:
        """How many of the features are inputs."""
        return self.weights.shape[1] - self.nodes
