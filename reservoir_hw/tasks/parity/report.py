"""How far the outputs for two answers are apart, as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, new_figure, plain
from reservoir_hw.tasks.report import Models

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 6
_BINS = 80


def outputs_figure(models: Models, answers: tuple[str, str], threshold: float) -> Figure:
    """Histograms of the arrays `outputs/0` and `outputs/1`, named by `answers`, around the threshold."""
    shown = list(models.items())[-_SHOWN:]
    figure = new_figure(7.5, 1.0 + 1.3 * len(shown))
    grid = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    low_colour, high_colour = colours(3)[::2]
    for axes, (name, runs) in zip(grid, shown, strict=True):
        groups = [np.concatenate([run.evaluation.arrays[f"outputs/{answer}"] for run in runs]) for answer in (0, 1)]
        # The middle 99.8 %: single outliers would squeeze the rest.
        low, high = np.percentile(np.concatenate(groups), [0.1, 99.9])
        bins = np.linspace(low, high, _BINS)
        for group, answer, colour in zip(groups, answers, (low_colour, high_colour), strict=True):
            axes.hist(group, bins, color=colour, alpha=0.6, label=f"right answer: {answer}")
        axes.axvline(threshold, color="crimson", linewidth=1)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_yticks([])
        plain(axes)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    grid[-1].set_xlabel("output (line: where the answer changes)")
    figure.suptitle("Outputs by the right answer: what overlaps is what is mistaken")
    return figure
