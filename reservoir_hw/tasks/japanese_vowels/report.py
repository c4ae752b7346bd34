"""Who was taken for whom, as table and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.figure_style import new_figure
from reservoir_hw.tasks import classification
from reservoir_hw.tasks.japanese_vowels.published import ERRORS
from reservoir_hw.tasks.report import Models, best, by_model
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 4


def tables(rows: Sequence[Row]) -> list[Table]:
    """Error rates by model, with published ones below."""
    ours = classification.table(by_model(rows), "Japanese vowels", "utterances", ["error_rate/step"])
    blank = ["", ""]
    published = [[f"published: {what}", "", "370", errors, rate, *blank] for what, errors, rate in ERRORS]
    return [replace(ours, rows=[*ours.rows, *published])]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem."""
    models = by_model(rows)
    return {"error_rate": classification.figure(models, "utterances", 8 / 9), "confusion": _confusion_figure(models)}


def _confusion_figure(models: Models) -> Figure:
    shown, which = best(models, "error_rate", _SHOWN)
    figure = new_figure(1.2 + 3.6 * len(shown), 4.2)
    grid = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (name, runs) in zip(grid, shown.items(), strict=True):
        confusion = np.sum([run.evaluation.arrays["confusion"] for run in runs], axis=0)
        axes.imshow(np.sqrt(confusion / confusion.sum(axis=1, keepdims=True)), cmap="Blues", vmin=0, vmax=1)
        for speaker, answer in np.argwhere(confusion):
            right = speaker == answer
            colour = "white" if right else "crimson"
            weight = "normal" if right else "bold"
            axes.text(
                answer, speaker, confusion[speaker, answer], ha="center", va="center", color=colour, weight=weight
            )
        axes.set_xticks(range(len(confusion)), range(1, len(confusion) + 1))
        axes.set_yticks(range(len(confusion)), range(1, len(confusion) + 1))
        axes.set_xlabel("answer: speaker")
        axes.set_title(name, fontsize=10)
    grid[0].set_ylabel("right answer: speaker")
    figure.suptitle(f"Who was taken for whom (utterances of the test; red: wrong){which}")
    return figure
