"""Results on NARMA beside published ones, as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.tasks._figures import colours, new_figure, plain
from reservoir_hw.tasks._series import mean_and_spread
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = (
    ("linear shift register (Appeltant et al. 2011)", "0.4", "0.16"),
    ("optoelectronic loop, 50 nodes (Paquot et al. 2012)", "", "0.168 ± 0.015"),
)
"""For order 10: what, NRMSE, NMSE. The loop's figure is that of the experiment and of its simulation."""

_SHOWN = 4

Models = dict[tuple[str, int], list[Row]]


def tables(rows: Sequence[Row], order: int) -> list[Table]:
    """One table; `order` is that of rows in which it was not varied."""
    models = _models(rows, order)
    body = [
        [
            label,
            str(of_order),
            str(len(runs)),
            *(mean_and_spread(run.evaluation.metrics[metric] for run in runs) for metric in ("nrmse", "nmse")),
        ]
        for (label, of_order), runs in models.items()
    ]
    if any(of_order == 10 for _, of_order in models):
        body += [[f"published: {what}", "10", "", *errors] for what, *errors in PUBLISHED]
    note = "Mean ± standard deviation over the runs."
    redrawn = sum(int(row.evaluation.arrays["redrawn"]) for row in rows)
    if redrawn:
        note += " Some sequences diverged and were drawn again."
    return [Table("NARMA", ["model", "order", "runs", "NRMSE", "NMSE"], body, note)]


def figures(rows: Sequence[Row], order: int) -> dict[str, Figure]:
    """Figures by file stem, over the same rows as `tables`."""
    models = _models(rows, order)
    return {"series": _series_figure(models), "nmse": _error_figure(models)}


def _models(rows: Sequence[Row], order: int) -> Models:
    """Runs that differ in the data alone, together."""
    models: Models = {}
    for row in rows:
        models.setdefault((row.label, row.point.get("task.order", order)), []).append(row)
    return models


def _names(models: Models) -> list[str]:
    several = len({order for _, order in models}) > 1
    return [f"{label}, order {order}" if several else label for label, order in models]


def _series_figure(models: Models) -> Figure:
    shown = list(zip(_names(models), models.values(), strict=True))[-_SHOWN:]
    figure = new_figure(9.0, 1.4 + 1.5 * len(shown))
    grid = figure.subplots(len(shown), 2, sharex=True, sharey="col", squeeze=False)
    for (above, below), (name, runs), colour in zip(grid, shown, colours(len(shown)), strict=True):
        arrays = runs[0].evaluation.arrays
        steps = np.arange(len(arrays["piece/targets"]))
        above.plot(steps, arrays["piece/targets"], color="0.6", linewidth=2.5, label="target")
        above.plot(steps, arrays["piece/outputs"], color=colour, linewidth=1, label="output")
        above.set_title(name, fontsize=10, loc="left")
        below.axhline(0, color="0.6", linewidth=1)
        below.plot(steps, arrays["piece/outputs"] - arrays["piece/targets"], color=colour, linewidth=1)
        below.set_title("output - target", fontsize=10, loc="left")
        plain(above)
        plain(below)
    grid[0, 0].legend(frameon=False, ncols=2, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("step of the test")
    figure.suptitle("The first steps of the test, of the first data set")
    return figure


def _error_figure(models: Models) -> Figure:
    figure = new_figure(7.5, 1.6 + 0.35 * len(models))
    axes = figure.subplots()
    at = np.arange(len(models))
    for height, runs, colour in zip(at, models.values(), colours(len(models)), strict=True):
        errors = np.array([run.evaluation.metrics["nmse"] for run in runs])
        axes.plot(errors, np.full(len(errors), height), "o", color=colour, markersize=4, alpha=0.6)
        axes.plot(errors.mean(), height, "|", color="black", markersize=14)
    axes.set_yticks(at, _names(models))
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("NMSE (dots: runs, bar: their mean)")
    plain(axes)
    return figure
