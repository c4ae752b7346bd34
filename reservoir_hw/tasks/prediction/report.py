"""Outputs beside the series that they follow, as tables and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel, panels
from reservoir_hw.tasks.report import Models, mean_and_spread, metric_values
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PIECE = 200
"""Steps of the test that the figure shows: the arrays `piece/targets` and `piece/outputs` (steps,)."""

_SHOWN = 4
# From this ratio of the largest to the smallest error on, a linear axis would hide the small ones.
_LOGARITHMIC = 20


def table(models: Models, title: str) -> Table:
    """NRMSE and NMSE by model, over the runs."""
    body = [
        [
            name,
            str(len(runs)),
            *(mean_and_spread(metric_values(runs, m), ".3g", ".2g") for m in ("nrmse", "nmse")),
        ]
        for name, runs in models.items()
    ]
    return Table(title, ["model", "runs", "NRMSE", "NMSE"], body, "Mean ± standard deviation over the runs.")


def figures(models: Models) -> dict[str, Figure]:
    """`series`: outputs beside targets with their error; `nmse`: the error of every run."""
    return {"series": _series_figure(models), "nmse": _error_figure(models)}


def _series_figure(models: Models) -> Figure:
    shown = list(models.items())[-_SHOWN:]
    figure, grid = panels(9.0, 1.4 + 1.5 * len(shown), len(shown), 2, sharex=True, sharey="col", squeeze=False)
    for (above, below), (name, runs), colour in zip(grid, shown, colours(len(shown)), strict=True):
        arrays = runs[0].evaluation.arrays
        steps = np.arange(len(arrays["piece/targets"]))
        above.plot(steps, arrays["piece/targets"], color="0.6", linewidth=2.5)
        above.plot(steps, arrays["piece/outputs"], color=colour, linewidth=1)
        above.set_title(name, fontsize=10, loc="left")
        below.axhline(0, color="0.6", linewidth=1)
        below.plot(steps, arrays["piece/outputs"] - arrays["piece/targets"], color=colour, linewidth=1)
        above.set_ylabel("value")
        below.set_ylabel("output - target")
    for axes in grid[-1]:
        axes.set_xlabel("step of the test")
    which = f"; the last {len(shown)} of {len(models)} models" if len(shown) < len(models) else ""
    figure.suptitle(f"Outputs (in colour) and target (grey) at the beginning of the test, first run{which}")
    return figure


def _error_figure(models: Models) -> Figure:
    figure, axes = one_panel(7.5, 1.6 + 0.35 * len(models))
    found = [np.array([run.evaluation.metrics["nmse"] for run in runs]) for runs in models.values()]
    for height, (errors, colour) in enumerate(zip(found, colours(len(found)), strict=True)):
        axes.plot(errors, np.full(len(errors), height), "o", color=colour, markersize=4, alpha=0.6)
        axes.plot(errors.mean(), height, "|", color="black", markersize=14)
    axes.set_yticks(range(len(models)), models)
    axes.set_ylim(len(models) - 0.5, -0.5)
    everything = np.concatenate(found)
    if 0 < _LOGARITHMIC * everything.min() < everything.max():
        axes.set_xscale("log")
        axes.grid(axis="x", color="0.92")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("NMSE (dots: runs, bar: their mean)")
    return figure
