"""What the tasks on series of numbers share: splits, checked arguments, the error beside the variance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from reservoir_hw.tasks.task import Row, Split

Models = Mapping[str, Sequence[Row]]
"""Runs by the name of the model."""

_REPETITIONS = ("dataset", "seed", "first_step")


def one_sequence(inputs: np.ndarray, targets: np.ndarray) -> Split:
    """A split of one sequence, from (time,) or (time, channels) each."""
    steps = len(inputs)
    return Split(*(series.reshape(1, steps, -1).astype(np.float32) for series in (inputs, targets)))


def nmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error over the variance of the targets (divided by n): 1 for the best constant.

    Both are (batch, time, outputs); errors and variances are summed over the outputs.
    """
    targets = targets.astype(np.float64)
    return float(np.mean((outputs - targets) ** 2) / targets.var(axis=(0, 1)).mean())


def models(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows by model, each named after its label and what else of the task varies.

    Rows that differ in which data they had (`task.dataset`, `task.seed`, `task.first_step`) are repetitions, and stay
    together.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        varied = {key.removeprefix("task."): value for key, value in row.point.items() if key.startswith("task.")}
        name = ", ".join([row.label, *(f"{k} {v}" for k, v in varied.items() if k not in _REPETITIONS)])
        found.setdefault(name, []).append(row)
    return found


def mean_and_spread(values: Iterable[float], digits: int = 3) -> str:
    """The mean and, of more than one value, ± the standard deviation over them."""
    found = np.fromiter(values, dtype=float)
    spread = f" ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else ""
    return f"{found.mean():.{digits}f}{spread}"
