"""Arrays as the measures take them: checked for shape and for values that are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.core.arrays import all_finite, as_numpy
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError

# Standard deviations below this, relative to the mean, are rounding.
_ROUNDING = 64 * np.finfo(np.float64).eps


def checked(values: Any, axes: tuple[str, ...], name: str = "states") -> np.ndarray:
    """`values` in float64 with these axes.

    Raises `ShapeError` for other numbers of axes and for empty ones, `InputRangeError` for NaN and infinity.
    """
    array = np.asarray(as_numpy(values))
    wanted = f"({', '.join(axes)})"
    if array.ndim != len(axes):
        raise ShapeError(f"{name} must be {wanted}, not an array of shape {array.shape}")
    if 0 in array.shape:
        raise ShapeError(f"{name} {wanted} are empty: {array.shape}")
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{name} must hold real numbers, not {array.dtype}")
    if not all_finite(array):
        raise InputRangeError(
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} values of the {name} are not finite; leave out "
            "the channels or steps that were not recorded"
        )
    return array.astype(np.float64)


def precision(dtype: Any) -> np.floating:
    """Relative precision of numbers as they were recorded, in their own dtype; that of float64 for whole numbers."""
    dtype = np.dtype(dtype)
    return np.finfo(dtype if dtype.kind == "f" else np.float64).eps


def after_washout(array: np.ndarray, washout: int, axis: int) -> np.ndarray:
    """`array` without its first `washout` steps; raises `ConfigurationError` where nothing would be left."""
    steps = array.shape[axis]
    if not 0 <= washout < steps:
        raise ConfigurationError(f"washout is {washout}, but the recording has {steps} steps")
    return array[(slice(None),) * axis + (slice(washout, None),)]


def deviations(states: np.ndarray, axis: int) -> np.ndarray:
    """`states` about their mean over time; exactly 0 for a node that only rounding moves."""
    mean = states.mean(axis=axis, keepdims=True)
    moved = states - mean
    still = np.ptp(states, axis=axis, keepdims=True) <= _ROUNDING * np.abs(mean)
    return np.where(still, 0.0, moved)


def moving_nodes(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Which nodes move by more than rounding (nodes,), from their means and standard deviations.

    Raises `InputRangeError` if none does.
    """
    moving = spread > _ROUNDING * np.abs(mean)
    refuse_still(moving)
    return moving


def refuse_still(moving: np.ndarray) -> None:
    """Raise `InputRangeError` if no node moves; `moving` (nodes,) holds a truth value for each."""
    if not moving.any():
        raise InputRangeError(
            f"all {moving.size} nodes are constant: the device does not respond. Check the amplitude of the drive and "
            "the read-out"
        )
