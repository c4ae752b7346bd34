"""What the reports of the tasks share: runs by label or by model, and the mean with its spread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from reservoir_hw.tasks.task import Row, Table

Models = Mapping[str, Sequence[Row]]
"""Runs by the name of the model."""

DRAW = "run.draw"
"""The key that says which of several drives of the same point a run is: between them only the device differs."""

REPETITIONS = ("dataset", "seed", "first_step", "fold", "draw")
"""Keys that say which data, random numbers or drive a run had: runs that differ in them alone are repetitions."""


def by_label(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by their label: all runs of a model, whatever else of the task varies."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.label, []).append(row)
    return found


def by_model(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows by model, each named after its label and what else of the task varies.

    Rows that differ in which data they had (`task.dataset`, `task.seed`, `task.first_step`, `task.fold`) are
    repetitions, and stay together.
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


@dataclass(frozen=True)
class Spread:
    """The mean of a metric over runs, and what it varies with.

    `over_data` is the standard deviation over data sets and seeds, of the means over draws. `of_device` is that
    between draws of one point, pooled over the points. Each is None where there is nothing to tell it from.
    """

    mean: float
    over_data: float | None
    of_device: float | None


def spread_of(rows: Iterable[Row], metric: str) -> Spread | None:
    """The mean of a metric over those of the rows that have it, and its spreads; None where none has it."""
    drives: dict[str, list[float]] = {}
    for row in rows:
        if metric in row.evaluation.metrics:
            point = json.dumps({key: value for key, value in row.point.items() if key != DRAW}, default=str)
            # Without a draw each run is a drive of its own, also where two are of one point.
            drive = point if DRAW in row.point else f"{point} {len(drives)}"
            drives.setdefault(drive, []).append(row.evaluation.metrics[metric])
    if not drives:
        return None
    means = [float(np.mean(values)) for values in drives.values()]
    between = [np.var(values, ddof=1) for values in drives.values() if len(values) > 1]
    return Spread(
        float(np.mean(means)),
        float(np.std(means, ddof=1)) if len(means) > 1 else None,
        float(np.sqrt(np.mean(between))) if between else None,
    )


def about_spread(rows: Iterable[Row]) -> str:
    """The sentence below a table of `mean_and_spread`."""
    if any(DRAW in row.point for row in rows):
        return (
            "Mean ± standard deviation over data and seeds, of the means over draws; device: the standard deviation "
            "between draws of the same point."
        )
    return "Mean ± standard deviation over the runs."


def mean_and_spread(rows: Iterable[Row], metric: str, mean: str = ".3f", spread: str = "") -> str:
    """The mean of a metric, ± its spread over data and seeds, and (device ± that between draws); "–" of none.

    `mean` and `spread` are the formats; `spread` is that of the mean where it is not given.
    """
    found = spread_of(rows, metric)
    if found is None:
        return "–"
    over_data = "" if found.over_data is None else f" ± {found.over_data:{spread or mean}}"
    of_device = "" if found.of_device is None else f" (device ± {found.of_device:{spread or mean}})"
    return f"{found.mean:{mean}}{over_data}{of_device}"


def table_of_means(
    title: str, models: Models, metrics: Mapping[str, str], mean: str = ".3f", spread: str = "", note: str = ""
) -> Table:
    """`mean_and_spread` of metrics (name -> heading) by model, over the runs."""
    body = [
        [name, str(len(runs)), *(mean_and_spread(runs, metric, mean, spread) for metric in metrics)]
        for name, runs in models.items()
    ]
    return Table(title, ["model", "runs", *metrics.values()], body, about_spread(chain(*models.values())) + note)
