"""Error rates, and how far the outputs for the two answers are apart, as table and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, panels
from reservoir_hw.tasks import classification
from reservoir_hw.tasks.report import Models, best, by_model, metric_values
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 6
_BINS = 80


def tables(rows: Sequence[Row]) -> list[Table]:
    """Error rates by model, data sets pooled."""
    return [classification.table(by_model(rows), "Parity", "answers", ["nmse"])]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem."""
    models = by_model(rows)
    varied = [name for name in ("bits", "delay") if all(f"task.{name}" in row.point for row in rows)]
    if varied:
        rates = classification.curves(rows, varied[0], "answers", 0.5)
    else:
        rates = classification.figure(models, "answers", 0.5)
    return {"error_rate": rates, "outputs": _outputs_figure(models)}


def _outputs_figure(models: Models) -> Figure:
    """Histograms of the arrays `outputs/0` and `outputs/1`, the outputs for an even and for an odd number."""
    # Where nothing is mistaken there is little to see.
    mistaken = {name: runs for name, runs in models.items() if metric_values(runs, "error_rate").any()}
    shown, which = best(mistaken or models, "error_rate", _SHOWN)
    figure, grid = panels(7.5, 1.0 + 1.3 * len(shown), len(shown), 1, sharex=True, squeeze=False)
    low_colour, high_colour = colours(3)[::2]
    for axes, (name, runs) in zip(grid[:, 0], shown.items(), strict=True):
        groups = [np.concatenate([run.evaluation.arrays[f"outputs/{answer}"] for run in runs]) for answer in (0, 1)]
        # The middle 99.8 %: single outliers would squeeze the rest.
        low, high = np.percentile(np.concatenate(groups), [0.1, 99.9])
        bins = np.linspace(low, high, _BINS)
        for group, answer, colour in zip(groups, ("even", "odd"), (low_colour, high_colour), strict=True):
            axes.hist(group, bins, color=colour, alpha=0.6, label=f"right answer: {answer}")
        axes.axvline(0.0, color="crimson", linewidth=1)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_yticks([])
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    grid[-1, 0].set_xlabel("output (line: where the answer changes)")
    remark = f"\n({which[2:]} that make mistakes)" if which else ""
    figure.suptitle(f"Outputs by the right answer: what overlaps is what is mistaken{remark}")
    return figure
