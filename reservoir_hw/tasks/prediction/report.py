"""Outputs beside the series that they follow, as tables and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel, panels
from reservoir_hw.core.statistics import half_width
from reservoir_hw.tasks.report import Models, best

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PIECE = 200
"""Steps of the test that the figure shows: the arrays `piece/targets` and `piece/outputs` (steps,)."""

_SHOWN = 4
_MOST_LINES = 20
# From this ratio of the largest to the smallest error on, a linear axis would hide the small ones.
_LOGARITHMIC = 20


def figures(models: Models) -> dict[str, Figure]:
    """`series`: outputs beside targets with their error; `nmse`: the error of every run."""
    return {"series": _series_figure(models), "nmse": _error_figure(models)}


def _series_figure(models: Models) -> Figure:
    shown, which = best(models, "nmse", _SHOWN)
    size = (11.0, 1.4 + 1.5 * len(shown))
    figure, grid = panels(*size, len(shown), 3, sharey="col", squeeze=False, width_ratios=[4, 4, 1.6])
    for (above, below, against), (name, runs), colour in zip(grid, shown.items(), colours(len(shown)), strict=True):
        arrays = runs[0].evaluation.arrays
        steps = np.arange(len(arrays["piece/targets"]))
        ends = [arrays["piece/targets"].min(), arrays["piece/targets"].max()]
        against.plot(ends, ends, color="0.6", linewidth=1)
        against.plot(arrays["piece/targets"], arrays["piece/outputs"], ".", color=colour, markersize=2)
        against.set_ylabel("output")
        above.plot(steps, arrays["piece/targets"], color="0.6", linewidth=2.5)
        above.plot(steps, arrays["piece/outputs"], color=colour, linewidth=1)
        above.set_title(name, fontsize=10, loc="left")
        below.axhline(0, color="0.6", linewidth=1)
        below.plot(steps, arrays["piece/outputs"] - arrays["piece/targets"], color=colour, linewidth=1)
        above.set_ylabel("value")
        below.set_ylabel("output - target")
    for axes in grid[-1, :2]:
        axes.set_xlabel("step of the test")
    grid[-1, 2].set_xlabel("target")
    figure.suptitle(f"Outputs (in colour) and target (grey) at the beginning of the test, first run{which}")
    return figure


def _error_figure(models: Models) -> Figure:
    models, which = best(models, "nmse", _MOST_LINES)
    figure, axes = one_panel(7.5, 1.6 + 0.35 * len(models))
    found = [np.array([run.evaluation.metrics["nmse"] for run in runs]) for runs in models.values()]
    for height, (errors, colour) in enumerate(zip(found, colours(len(found)), strict=True)):
        axes.plot(errors, np.full(len(errors), height), "o", color=colour, markersize=4, alpha=0.6)
        axes.plot(errors.mean(), height, "|", color="black", markersize=14)
        if len(errors) > 2:
            reach = half_width(errors)
            axes.plot(errors.mean() + np.array([-reach, reach]), [height, height], color="black", linewidth=1)
    axes.set_yticks(range(len(models)), models)
    everything = np.concatenate(found)
    if 0 < _LOGARITHMIC * everything.min() < everything.max():
        axes.set_xscale("log")
        axes.grid(axis="x", color="0.92")
    else:
        axes.set_xlim(left=0)
    interval = " with its 95 % interval" if any(len(errors) > 2 for errors in found) else ""
    axes.set(ylim=(len(models) - 0.5, -0.5), xlabel=f"NMSE (dots: runs, bar: their mean{interval})")
    axes.set_title(which.removeprefix("; "), loc="left", fontsize=10)
    return figure
