"""What a sweep found, and its folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir_hw.experiment.configuration.search import choice_names
from reservoir_hw.experiment.run.result import InFolder
from reservoir_hw.experiment.sweeps.figures import figures
from reservoir_hw.experiment.sweeps.trials import Trial, Trials, short_names
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_TRIALS = 10
_SHOWN_REASONS = 5


@dataclass(kw_only=True)
class SweepResult(Trials, InFolder):
    """The trials of a study with what a sweep says of them.

    `status` can also be "unfinished": other processes are at work on the last trials.
    """

    study: str
    storage: str
    wanted: int

    @property
    def best_file(self) -> Path:
        """The experiment file of the best trial, written at the end of a sweep."""
        return self.folder / "best.yaml"

    @property
    def metrics(self) -> dict[str, Any]:
        """Everything that was found, ready for JSON."""
        return {
            **super().metrics,
            "study": self.study,
            "storage": self.storage,
            "metric": self.metric,
            "direction": self.direction,
            "wanted": self.wanted,
            "counts": self.counts,
            "best": None if self.best is None else asdict(self.best),
            "best_file": None if self.best is None else str(self.best_file),
            "importances": dict(self.importances),
            "trials": [asdict(trial) for trial in self.trials],
        }

    def tables(self) -> list[Table]:
        """The best trials, and why others failed."""
        names = short_names(self.space)
        ranking = self.ranking[:_SHOWN_TRIALS]
        body = [
            [
                str(trial.number),
                _number(trial.objective),
                *(self._text(trial, key) for key in names),
                _time(trial.seconds),
            ]
            for trial in ranking
        ]
        said = ", ".join(f"{number} {status}" for status, number in self.counts.items() if number)
        which = f"the best {len(ranking)} of {len(self.complete)}" if len(ranking) < len(self.complete) else "by rank"
        note = (
            f"{self.wanted} trials wanted: {said}. The best was chosen by these very numbers: judge it on data and "
            "networks that no trial has seen."
        )
        tables = [Table(f"{self.title}: {which}", ["trial", self.metric, *names.values(), "time"], body, note)]
        failed = Counter(trial.problem for trial in self.trials if trial.problem)
        if failed:
            reasons = [[reason, str(number)] for reason, number in failed.most_common(_SHOWN_REASONS)]
            more = len(failed) - len(reasons)
            tables.append(
                Table("Failed trials", ["reason", "trials"], reasons, f"and {more} more reasons" if more else "")
            )
        return tables

    def figures(self) -> dict[str, Figure]:
        """How the objective went, each key against it, and which keys decide. Needs the `report` extra."""
        return figures(self)

    def _text(self, trial: Trial, key: str) -> str:
        value, dimension = trial.values[key], self.space[key]
        return _number(value) if dimension.choices is None else choice_names(dimension)[dimension.choices.index(value)]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
