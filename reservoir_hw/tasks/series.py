"""What the tasks on series of numbers share: a split of one sequence, and the error beside the variance."""

from __future__ import annotations

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.task import Split


def one_sequence(inputs: np.ndarray, targets: np.ndarray) -> Split:
    """A split of one sequence, from (time,) or (time, channels) each."""
    first, second = (series.reshape(1, len(inputs), -1).astype(np.float32) for series in (inputs, targets))
    return Split(first, second)


def nmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error over the variance of the targets (divided by n): 1 for the best constant.

    Both are (batch, time, outputs); errors and variances are summed over the outputs. Raises `ConfigurationError` for
    targets that do not vary.
    """
    targets = targets.astype(np.float64)
    variance = targets.var(axis=(0, 1)).mean()
    if variance == 0:
        raise ConfigurationError("the targets do not vary, and an error is told in parts of their variance")
    return float(np.mean((outputs - targets) ** 2) / variance)
