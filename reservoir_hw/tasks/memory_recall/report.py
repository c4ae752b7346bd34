"""How well earlier inputs are recalled, as table and figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel, whole_numbers
from reservoir_hw.tasks.report import best, by_model, mean_and_spread
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 8
_CURVES = 12


def tables(rows: Sequence[Row]) -> list[Table]:
    """r² for some delays, evenly chosen where there are many, and the sum over all."""
    models = by_model(rows)
    delays = sorted({int(delay) for runs in models.values() for delay in runs[0].evaluation.arrays["delays"]})
    at = np.linspace(0, len(delays) - 1, min(_COLUMNS, len(delays))).round().astype(int)
    shown = [delays[place] for place in at]
    body = []
    for name, runs in models.items():
        metrics = [run.evaluation.metrics for run in runs]
        cells = [
            f"{np.mean([m[f'r2/{delay}'] for m in metrics]):.3f}" if f"r2/{delay}" in metrics[0] else "–"
            for delay in shown
        ]
        body.append([name, str(len(runs)), mean_and_spread(runs, "recalled", ".2f"), *cells])
    header = ["model", "runs", "sum of r²", *(f"k = {delay}" for delay in shown)]
    return [Table("Recall of u(t - k)", header, body, "r² is the squared correlation of output and target.")]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """r² against delay: mean and range over the runs."""
    from matplotlib.ticker import MaxNLocator

    models, which = best(by_model(rows), "recalled", _CURVES, largest=True)
    drawn, axes = one_panel(7.5, 3.8 + 0.13 * len(models))
    for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
        delays = runs[0].evaluation.arrays["delays"]
        order = np.argsort(delays)
        r2 = np.stack([run.evaluation.arrays["r2"] for run in runs])[:, order]
        label = f"{name} (sum {r2.sum(axis=1).mean():.1f})"
        axes.plot(delays[order], r2.mean(axis=0), "o-", color=colour, markersize=4, linewidth=1.2, label=label)
        if len(runs) > 1:
            axes.fill_between(delays[order], r2.min(axis=0), r2.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    axes.set_ylim(0, 1.03)
    axes.set_xlim(left=0)
    axes.set(xlabel="delay k in steps", ylabel="r² of output and u(t - k)")
    whole_numbers(axes.xaxis)
    axes.set_title(f"How well the input of k steps ago is recalled (1: exactly, 0: not at all){which}", fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    drawn.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    return {"recall": drawn}
