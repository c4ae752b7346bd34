"""What the questions were taken for, as table and figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reservoir_hw.tasks import classification
from reservoir_hw.tasks.report import by_model
from reservoir_hw.tasks.task import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of always answering the class that is the most frequent in training, in the test.
_GUESSING = 1 - 94 / 500


def tables(rows: Sequence[Row]) -> list[Table]:
    """Error rates by model."""
    return [classification.table(by_model(rows), "TREC questions", "questions", ["accuracy/unseen"])]


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Figures by file stem."""
    return {"error_rate": classification.figure(by_model(rows), "questions", _GUESSING)}
