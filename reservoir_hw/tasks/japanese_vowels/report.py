"""Who was taken for whom, as table and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reservoir_hw.tasks import classification
from reservoir_hw.tasks.japanese_vowels.published import ERRORS
from reservoir_hw.tasks.report import by_model
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(rows: Sequence[Row]) -> list[Table]:
    """Error rates by model, with published ones below."""
    ours = classification.table(by_model(rows), "Japanese vowels", "utterances", ["error_rate/step"])
    blank = ["", ""]
    published = [[f"published: {what}", "", "370", errors, rate, *blank] for what, errors, rate in ERRORS]
    return [replace(ours, rows=[*ours.rows, *published])]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem."""
    models = by_model(rows)
    return {
        "error_rate": classification.figure(models, "utterances", 8 / 9),
        "confusion": classification.confusion_figure(models, range(1, 10), "utterances", "speaker"),
    }
