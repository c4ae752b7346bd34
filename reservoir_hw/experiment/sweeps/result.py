"""The trials of a study: what was tried, what came of it, which was best, and the folder that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reservoir_hw.experiment.configuration.search import Dimension
from reservoir_hw.experiment.run.result import InFolder
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_TRIALS = 10
_SHOWN_REASONS = 5


@dataclass(frozen=True)
class Trial:
    """One trial. `objective` is the mean of the metric over the grid of `vary`, of a pruned trial over its beginning.

    `metrics` are means over the grid, `rows` the metrics of each of its points, `devices` what they were measured on.
    A failed trial has a `problem`; one that died was cut off, by Ctrl-C or worse, and counts for nothing, but what
    dies with its process a second time has failed. `worker` is the process at work on it.
    """

    number: int
    status: Literal["complete", "pruned", "failed", "died", "running"]
    values: Mapping[str, Any]
    objective: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    devices: Sequence[Mapping[str, Any]] = ()
    problem: str = ""
    seconds: float | None = None
    worker: Mapping[str, Any] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it is one of the trials that were asked for."""
        return self.status in ("complete", "pruned", "failed")

    @property
    def running(self) -> bool:
        """Whether a process is at work on it."""
        return self.status == "running"


@dataclass(kw_only=True)
class Trials:
    """The trials of a study, of all processes that took part, and what they were judged by.

    `importances` are shares of 1, empty where there are too few trials.
    """

    metric: str
    direction: Literal["minimize", "maximize"]
    space: Mapping[str, Dimension]
    trials: list[Trial] = field(default_factory=list)
    importances: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> list[Trial]:
        """The trials that were asked for and are done."""
        return [trial for trial in self.trials if trial.counts]

    @property
    def complete(self) -> list[Trial]:
        """Complete trials in the order in which they were begun."""
        return [trial for trial in self.trials if trial.status == "complete"]

    @property
    def best(self) -> Trial | None:
        """The best complete trial, the first of several that are equal."""
        return next(iter(self.ranking), None)

    @property
    def ranking(self) -> list[Trial]:
        """Complete trials, the best first."""
        sign = 1 if self.direction == "minimize" else -1
        return sorted(self.complete, key=lambda trial: (sign * (trial.objective or 0.0), trial.number))

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials by status."""
        found = Counter(trial.status for trial in self.trials)
        return {status: found[status] for status in ("complete", "pruned", "failed", "died", "running")}


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
        from reservoir_hw.experiment.sweeps.figures import figures

        return figures(self)

    def _text(self, trial: Trial, key: str) -> str:
        value, dimension = trial.values[key], self.space[key]
        return _number(value) if dimension.choices is None else dimension.labels[dimension.choices.index(value)]


def short_names(space: Mapping[str, Dimension]) -> dict[str, str]:
    """The last part of each key, or the whole of it where two have the same."""
    last = {key: key.rpartition(".")[2] for key in space}
    often = Counter(last.values())
    return {key: name if often[name] == 1 else key for key, name in last.items()}


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
