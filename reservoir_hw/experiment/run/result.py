"""What an experiment found, and its run folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir_hw.experiment.run.folder import write_json
from reservoir_hw.tasks.task import Row, Table, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(kw_only=True)
class InFolder(ABC):
    """What was found and the folder that it is kept in: the part that runs, sweeps and measures share.

    `status` is "running", "complete", "interrupted" or "failed"; what was finished is always there. `notes` are remarks
    for the user, `warnings` what casts doubt on the numbers; they stand below the tables.
    """

    title: str
    folder: Path
    provenance: dict[str, Any]
    status: str = "running"
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, warning: str) -> None:
        """Add a warning, once."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            "title": self.title,
            "status": self.status,
            "problem": self.problem,
            "folder": str(self.folder),
            "warnings": self.warnings,
        }

    @abstractmethod
    def tables(self) -> list[Table]:
        """Tables for the terminal and the page."""

    @abstractmethod
    def figures(self) -> dict[str, Figure]:
        """Figures by file stem. Needs the `report` extra."""

    def save(self) -> None:
        """Write metrics.json and provenance.json; done whenever something was finished."""
        write_json(self.folder / "metrics.json", self.metrics)
        write_json(self.folder / "provenance.json", {**self.provenance, "status": self.status})


@dataclass(kw_only=True)
class Result(InFolder):
    """The rows of an experiment, one for each point of its grid and each baseline.

    `earlier_rows` is how many rows a call that is gone on with has left in the folder: its files stay as they are until
    there are as many again.
    """

    task: Task
    rows: list[Row] = field(default_factory=list)
    earlier_rows: int = 0

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            **super().metrics,
            "rows": [
                {"label": row.label, "point": dict(row.point), "metrics": row.evaluation.metrics} for row in self.rows
            ],
        }

    @property
    def replaces_earlier(self) -> bool:
        """Whether nothing is lost if this is written over what an earlier call has found."""
        return len(self.rows) >= self.earlier_rows

    def tables(self) -> list[Table]:
        """The task's own tables; a plain one of all metrics for a task that has none."""
        return self.task.tables(self.rows) or [_plain_table(self.rows)]

    def figures(self) -> dict[str, Figure]:
        """The task's figures by file stem. Needs the `report` extra."""
        return self.task.figures(self.rows)

    def save(self) -> None:
        """Write metrics.json and provenance.json; done after every row."""
        if self.replaces_earlier:
            super().save()


def how_it_ended(error: BaseException) -> tuple[str, str]:
    """Status, "interrupted" or "failed", and problem of what this error ended."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted by Ctrl-C"
    # What SIGTERM becomes where it is waited for.
    if isinstance(error, SystemExit):
        return "interrupted", "terminated"
    return "failed", f"{type(error).__name__}: {error}"


def _plain_table(rows: list[Row]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.evaluation.metrics))
    points = list(dict.fromkeys(key for row in rows for key in row.point))
    return Table(
        "Results",
        ["model", *points, *names],
        [
            [
                row.label,
                *(str(row.point.get(key, "")) for key in points),
                *(f"{row.evaluation.metrics[n]:.4g}" if n in row.evaluation.metrics else "" for n in names),
            ]
            for row in rows
        ],
    )
