"""All tasks of a bench as small panels on one page."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, panels
from reservoir_hw.experiment.bench.score import TaskScore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3
# From this ratio on, a linear axis would hide the small values.
_LOGARITHMIC = 10


def scores_figure(scores: Collection[TaskScore]) -> Figure:
    """A panel for each task: repetitions (dots), their mean with its interval (bar), published figures (dashed)."""
    rows = math.ceil(len(scores) / _COLUMNS)
    columns = min(_COLUMNS, len(scores))
    figure, grid = panels(3.7 * columns, 1.1 * rows + 0.1, rows, columns, squeeze=False)
    for axes, score in zip(grid.flat, scores, strict=False):
        _draw(axes, score)
    for axes in list(grid.flat)[len(scores) :]:
        axes.set_axis_off()
    return figure


def _draw(axes: Axes, score: TaskScore) -> None:
    from matplotlib.ticker import NullFormatter

    standard = score.standard
    shades = colours(max(len(score.models), 2))
    seen = [one.value for one in standard.published]
    for height, (found, shade) in enumerate(zip(score.models.values(), shades, strict=False)):
        values = found.values(standard)
        finite = values[np.isfinite(values)]
        seen += finite.tolist()
        if not len(finite):
            axes.annotate("diverged", (0.02, height), xycoords=("axes fraction", "data"), fontsize=7, va="center")
            continue
        axes.plot(finite, np.full(len(finite), height), "o", color=shade, markersize=3.5, alpha=0.6)
        interval = found.interval(standard)
        if interval is not None:
            axes.plot(interval, [height, height], color=shade, linewidth=1.2)
        axes.plot(finite.mean(), height, "|", color="black", markersize=9)
    for one in standard.published:
        axes.axvline(one.value, color="crimson", linewidth=0.8, linestyle="--")
    positive = [value for value in seen if value > 0]
    all_positive = len(positive) == len(seen) > 0 and not standard.larger_is_better
    if all_positive and max(positive) > _LOGARITHMIC * min(positive):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_yticks(range(len(score.models)), list(score.models), fontsize=7)
    axes.set_ylim(len(score.models) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(standard.title, fontsize=8, loc="left")
    arrow = "→ better" if standard.larger_is_better else "← better"
    axes.set_xlabel(f"{standard.metric}   {arrow}", fontsize=7)
    axes.grid(axis="x", color="0.92")
