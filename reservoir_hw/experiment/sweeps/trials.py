"""The trials of a study: what was tried, what came of it, and which was best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reservoir_hw.core.axes import Dimension


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


def short_names(space: Mapping[str, Dimension]) -> dict[str, str]:
    """The last part of each key, or the whole of it where two have the same."""
    last = {key: key.rpartition(".")[2] for key in space}
    often = Counter(last.values())
    return {key: name if often[name] == 1 else key for key, name in last.items()}
