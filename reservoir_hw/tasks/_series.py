"""What the tasks whose targets are series of numbers share: checking outputs, and the error beside the variance."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from reservoir_hw.errors import InputRangeError, ShapeError
from reservoir_hw.tasks.task import Split


def checked_outputs(outputs: np.ndarray, split: Split) -> np.ndarray:
    """The outputs in float64.

    Raises `ShapeError` where their shape is not that of the targets, `InputRangeError` for NaN or infinity.
    """
    outputs = np.asarray(outputs)
    expected = split.targets.shape
    if outputs.shape != expected:
        raise ShapeError(
            f"outputs have shape {outputs.shape}; the test split needs (batch, time, outputs) = {expected}."
        )
    broken = outputs.size - np.count_nonzero(np.isfinite(outputs))
    if broken:
        raise InputRangeError(
            f"{broken} of {outputs.size} outputs are not finite, so they cannot be judged. Check the "
            "states that the readout was given and its regularisation."
        )
    return outputs.astype(np.float64)


def nmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error over the variance of the targets (divided by n): 1 for the best constant."""
    targets = targets.astype(np.float64)
    return float(np.mean((outputs - targets) ** 2) / targets.var())


def mean_and_spread(values: Iterable[float], digits: int = 3) -> str:
    """The mean and, of more than one value, ± the standard deviation over them."""
    found = np.fromiter(values, dtype=float)
    spread = f" ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else ""
    return f"{found.mean():.{digits}f}{spread}"
