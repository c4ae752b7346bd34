"""What the reports of the tasks share: runs by label or by model, and the mean with its spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from reservoir_hw.tasks.task import Row

Models = Mapping[str, Sequence[Row]]
"""Runs by the name of the model."""

REPETITIONS = ("dataset", "seed", "first_step")
"""Keys that say which data or random numbers a run had: runs that differ in them alone are repetitions."""


def by_label(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by their label: all runs of a model, whatever else of the task varies."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.label, []).append(row)
    return found


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by model, each named after its label and what else of the task varies.

    Rows that differ in which data they had (`task.dataset`, `task.seed`, `task.first_step`) are repetitions, and stay
    together.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        varied = {key.removeprefix("task."): value for key, value in row.point.items() if key.startswith("task.")}
        name = ", ".join([row.label, *(f"{k} {v}" for k, v in varied.items() if k not in REPETITIONS)])
        found.setdefault(name, []).append(row)
    return found


def best(models: Models, metric: str, count: int, *, largest: bool = False) -> tuple[dict[str, Sequence[Row]], str]:
    """The `count` best models by the mean of a metric, in their own order, and a remark where there are more."""
    sign = -1 if largest else 1
    means = {name: sign * found.mean() for name in models if len(found := metric_values(models[name], metric))}
    order = sorted(models, key=lambda name: means.get(name, np.inf))
    chosen = set(order[:count])
    remark = f"; the best {count} of {len(models)} models" if len(models) > count else ""
    return {name: runs for name, runs in models.items() if name in chosen}, remark


def metric_values(rows: Iterable[Row], metric: str) -> np.ndarray:
    """The metric in those of the rows that have it: (rows,)."""
    return np.array([row.evaluation.metrics[metric] for row in rows if metric in row.evaluation.metrics])


def mean_and_spread(values: Iterable[float], mean: str = ".3f", spread: str = "") -> str:
    """The mean and, of more than one value, ± the standard deviation over them; "–" of none.

    `mean` and `spread` are the formats of both; `spread` is that of the mean where it is not given.
    """
    found = np.fromiter(values, dtype=float)
    if not len(found):
        return "–"
    deviation = f" ± {found.std(ddof=1):{spread or mean}}" if len(found) > 1 else ""
    return f"{found.mean():{mean}}{deviation}"
