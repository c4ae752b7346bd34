"""Waves and the answers to them, as figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel, panels
from reservoir_hw.tasks import classification
from reservoir_hw.tasks.report import Models, best, by_model
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERIODS = 12
"""Of the test, that the figure shows."""

_SHOWN = 4


def tables(rows: Sequence[Row]) -> list[Table]:
    """Error rates by model, data sets pooled."""
    return [classification.table(by_model(rows), "Sine or square wave", "steps", ["error_rate/period", "nmse"])]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem."""
    models = by_model(rows)
    return {
        "answers": _answers_figure(models),
        "error_rate": classification.figure(models, "steps", 0.5),
        "error_by_step": _phase_figure(models),
    }


def _answers_figure(models: Models) -> Figure:
    shown, which = best(models, "error_rate", _SHOWN)
    figure, (first, *grid) = panels(9.0, 1.8 + 1.4 * len(shown), 1 + len(shown), 1, sharex=True)
    arrays = next(iter(shown.values()))[0].evaluation.arrays
    first.plot(arrays["piece/inputs"], color="0.3", linewidth=1, marker=".", markersize=4)
    first.set_title(f"input{which}", fontsize=10, loc="left")
    for axes, (name, runs), colour in zip(grid, shown.items(), colours(len(shown)), strict=True):
        arrays = runs[0].evaluation.arrays
        axes.plot(arrays["piece/targets"], color="0.6", linewidth=2.5, drawstyle="steps-mid", label="right answer")
        axes.plot(arrays["piece/outputs"], color=colour, linewidth=1, marker=".", markersize=4, label="output")
        axes.axhline(0.5, color="crimson", linewidth=0.8, linestyle="--", label="threshold")
        axes.set_yticks([0, 1], ["sine", "square"])
        axes.set_ylim(-0.45, 1.45)
        axes.set_title(name, fontsize=10, loc="left")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    grid[-1].set_xlabel("step of the test")
    return figure


def _phase_figure(models: Models) -> Figure:
    figure, axes = one_panel(7.5, 3.6)
    for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
        by_phase = np.mean([run.evaluation.arrays["by_phase"] for run in runs], axis=0)
        axes.plot(range(len(by_phase)), by_phase, "o-", color=colour, markersize=4, linewidth=1, label=name)
    axes.set_ylim(bottom=-0.005)
    axes.set(xlabel="step of the period", ylabel="error rate")
    axes.set_title("Where in a period the answers are wrong", fontsize=11)
    axes.grid(axis="y", color="0.92")
    figure.legend(loc="outside right center", frameon=False)
    return figure
