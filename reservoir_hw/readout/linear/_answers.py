"""Answers of a linear readout: checked shapes in, W x + b out, in the precision of the states."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.readout.linear.chunks import Widths, numeric


def linear_answers(
    states: npt.ArrayLike,
    inputs: npt.ArrayLike | None,
    out: npt.NDArray | None,
    *,
    widths: Widths,
    input_connection: bool,
    parameters: Callable[[np.dtype], tuple[npt.NDArray, npt.NDArray]],
) -> npt.NDArray:
    """Outputs (..., outputs) for states (..., nodes) and inputs (..., inputs), whatever the leading axes.

    float32 states (and inputs) give float32, computed in float32; everything else float64. `out` is filled and
    returned if given. `parameters` gives weights (features, outputs) and bias (outputs,) in a dtype.
    Raises ShapeError, and ConfigurationError for inputs that are missing or not wanted.
    """
    x = numeric(states, "states")
    u = None if inputs is None else numeric(inputs, "inputs")
    nodes = widths.nodes
    if x.ndim == 0 or x.shape[-1] != nodes:
        raise ShapeError(f"states must be (..., {nodes}) as in training, got {x.shape}")
    if (u is not None) != input_connection:
        raise ConfigurationError(
            "this readout was trained with the inputs: pass them to predict as well"
            if input_connection
            else "this readout was trained without the inputs: call predict with states only"
        )
    if u is not None and u.shape != (*x.shape[:-1], widths.inputs):
        raise ShapeError(f"inputs must be {(*x.shape[:-1], widths.inputs)} beside states {x.shape}, got {u.shape}")
    single = x.dtype == np.float32 and (u is None or u.dtype == np.float32)
    dtype = np.dtype(np.float32 if single else np.float64)
    shape = (*x.shape[:-1], widths.outputs)
    if out is not None and (out.shape != shape or out.dtype != dtype):
        raise ShapeError(f"out must be {shape} {dtype}, got {out.shape} {out.dtype}")
    weights, bias = parameters(dtype)
    result = np.matmul(x.astype(dtype, copy=False), weights[:nodes], out=out)
    if u is not None:
        result += u.astype(dtype, copy=False) @ weights[nodes:]
    result += bias
    return result
