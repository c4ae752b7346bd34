"""What the tasks whose targets are series of numbers share: the error beside the variance."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def nmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error over the variance of the targets (divided by n): 1 for the best constant."""
    targets = targets.astype(np.float64)
    return float(np.mean((outputs - targets) ** 2) / targets.var())


def mean_and_spread(values: Iterable[float], digits: int = 3) -> str:
    """The mean and, of more than one value, ± the standard deviation over them."""
    found = np.fromiter(values, dtype=float)
    spread = f" ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else ""
    return f"{found.mean():.{digits}f}{spread}"
