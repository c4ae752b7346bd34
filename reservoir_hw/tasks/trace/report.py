"""Recall and prediction of a trace's inputs, as table and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import colours, one_panel, panels, whole_numbers
from reservoir_hw.tasks.report import Models, best, by_model, mean_and_spread
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PIECE = 150
"""Steps of the test that the figure shows: the arrays `piece/targets` and `piece/outputs` (steps, delays)."""

_PANELS = 4
_MODELS = 4
_CURVES = 12


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table, with a line for each model and delay."""
    body = [
        [
            name,
            _asked(int(delay)),
            *(mean_and_spread(runs, f"{metric}/{delay}") for metric in ("r2", "nrmse", "correlation")),
        ]
        for name, runs in by_model(rows).items()
        for delay in runs[0].evaluation.arrays["delays"]
    ]
    note = "r²: squared correlation R of output and target. NRMSE knows of offset and scale too; 1 is a constant's."
    return [Table("Recall and prediction", ["model", "asked for", "r²", "NRMSE", "R"], body, note)]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """`outputs`: beside the truth, for some delays; `r2`: by delay, if there are several."""
    models = by_model(rows)
    first = f"r2/{rows[0].evaluation.arrays['delays'][0]}"
    drawn = {"outputs": _outputs_figure(*best(models, first, _MODELS, largest=True))}
    if any(len(runs[0].evaluation.arrays["delays"]) > 1 for runs in models.values()):
        drawn["r2"] = _r2_figure(*best(models, first, _CURVES, largest=True))
    return drawn


def _r2_figure(models: Models, which: str) -> Figure:
    figure, axes = one_panel(7.5, 4.2)
    for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
        delays = runs[0].evaluation.arrays["delays"]
        order = np.argsort(delays)
        r2 = np.mean([run.evaluation.arrays["r2"] for run in runs], axis=0)
        axes.plot(delays[order], r2[order], "o-", color=colour, markersize=5, linewidth=1.2, label=name)
    axes.set_ylim(-0.02, 1.03)
    coming = min(int(runs[0].evaluation.arrays["delays"].min()) for runs in models.values()) < 0
    axes.set_xlabel("delay k in steps" + (" (below 0: inputs that are still to come)" if coming else ""))
    axes.set_ylabel("r² of output and u(t - k)")
    whole_numbers(axes.xaxis)
    axes.set_title(f"How well the input of k steps ago is told (1: exactly, 0: not at all){which}", fontsize=11)
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    return figure


def _outputs_figure(models: Models, which: str) -> Figure:
    """One panel for each of some delays; every model over the truth."""
    delays = list(dict.fromkeys(int(d) for runs in models.values() for d in runs[0].evaluation.arrays["delays"]))
    shown = [delays[i] for i in np.linspace(0, len(delays) - 1, min(_PANELS, len(delays))).round().astype(int)]
    figure, grid = panels(10.0, 1.2 + 1.9 * len(shown), len(shown), 1, sharex=True, squeeze=False)
    for axes, delay in zip(grid[:, 0], shown, strict=True):
        truth_drawn = False
        for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
            arrays = runs[0].evaluation.arrays
            if delay not in arrays["delays"]:
                continue
            column = arrays["delays"].tolist().index(delay)
            if not truth_drawn:
                axes.plot(arrays["piece/targets"][:, column], color="0.7", linewidth=2.5, label="truth")
                truth_drawn = True
            r2 = runs[0].evaluation.metrics[f"r2/{delay}"]
            axes.plot(arrays["piece/outputs"][:, column], color=colour, linewidth=1.1, label=f"{name}, r² {r2:.3f}")
        axes.set_title(_asked(delay), fontsize=10, loc="left")
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
    grid[-1, 0].set_xlabel("step of the test")
    figure.suptitle("Outputs beside the truth, first steps of the test" + which, fontsize=11)
    return figure


def _asked(delay: int) -> str:
    return "u(t)" if delay == 0 else f"u(t {'-' if delay > 0 else '+'} {abs(delay)})"
