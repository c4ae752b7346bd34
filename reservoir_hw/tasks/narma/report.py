"""Results on NARMA beside published ones, as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reservoir_hw.tasks.narma.published import ORDER_10
from reservoir_hw.tasks.prediction import report as prediction_report
from reservoir_hw.tasks.report import about_spread, mean_and_spread
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Models = dict[tuple[str, int], list[Row]]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table."""
    models = _models(rows)
    body = [
        [
            label,
            str(of_order),
            str(len(runs)),
            *(mean_and_spread(runs, metric) for metric in ("nrmse", "nmse")),
        ]
        for (label, of_order), runs in models.items()
    ]
    if any(of_order == 10 for _, of_order in models):
        body += [[f"published: {what}", "10", "", *errors] for what, *errors in ORDER_10]
    note = about_spread(rows)
    redrawn = sum(int(row.evaluation.arrays["redrawn"]) for row in rows)
    if redrawn:
        note += " Some sequences diverged and were drawn again."
    return [Table("NARMA", ["model", "order", "runs", "NRMSE", "NMSE"], body, note)]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem, over the same rows as `tables`."""
    models = _models(rows)
    several = len({of_order for _, of_order in models}) > 1
    return prediction_report.figures(
        {f"{label}, order {of_order}" if several else label: runs for (label, of_order), runs in models.items()}
    )


def _models(rows: Sequence[Row]) -> Models:
    """Runs that differ in the data alone, together."""
    models: Models = {}
    for row in rows:
        models.setdefault((row.label, int(row.evaluation.arrays["order"])), []).append(row)
    return models
