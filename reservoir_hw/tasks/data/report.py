"""Errors by model, outputs beside targets, and which class was taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from reservoir_hw.tasks import classification
from reservoir_hw.tasks.prediction import report as series_report
from reservoir_hw.tasks.report import about_spread, by_model, mean_and_spread
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables_of_numbers(rows: Sequence[Row], further: Sequence[str]) -> list[Table]:
    """Mean errors by model; of several outputs a second table has each."""
    models = by_model(rows)
    shown = ["nrmse", "mae", "r2", *further]
    note = about_spread(chain(*models.values()))
    body = [
        [name, str(len(runs)), *(mean_and_spread(runs, m, ".3g", ".2g") for m in shown)]
        for name, runs in models.items()
    ]
    tables = [Table("Own data", ["model", "runs", *shown], body, note)]
    outputs = [name for name in rows[0].evaluation.metrics if name.startswith("nrmse/")]
    if outputs:
        body = [[name, *(mean_and_spread(runs, m, ".3g", ".2g") for m in outputs)] for name, runs in models.items()]
        tables.append(
            Table("NRMSE of each output", ["model", *(name.partition("/")[2] for name in outputs)], body, note)
        )
    return tables


def tables_of_classes(rows: Sequence[Row], further: Sequence[str]) -> list[Table]:
    """Error rates by model, with the accuracies."""
    shown = ["accuracy", "balanced_accuracy", "f1", *further]
    return [classification.table(by_model(rows), "Own data", "series", shown)]


def figures_of_numbers(rows: Sequence[Row]) -> dict[str, Figure]:
    """Outputs beside targets with their error, outputs over targets, and the error of every run."""
    return series_report.figures(by_model(rows))


def figures_of_classes(rows: Sequence[Row], classes: Sequence[str]) -> dict[str, Figure]:
    """Error rates, and which class was taken for which."""
    models = by_model(rows)
    return {
        "error_rate": classification.figure(models, "series", 1 - 1 / len(classes)),
        "confusion": classification.confusion_figure(models, classes, "series"),
    }
