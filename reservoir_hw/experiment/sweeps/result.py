"""What a sweep found, and its folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.figure_style import one_panel, panels, whole_numbers
from reservoir_hw.experiment.configuration.sweep import choice_names
from reservoir_hw.experiment.run.result import InFolder
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Status: TypeAlias = Literal["complete", "pruned", "failed", "died", "running"]


@dataclass(frozen=True)
class Trial:
    """One trial. `objective` is the mean of the metric over the grid of `vary`, of a pruned trial over its beginning.

    `metrics` are means over the grid, `rows` the metrics of each of its points, `devices` what they were measured on.
    A failed trial has a `problem`; one that died was cut off, by Ctrl-C or worse, and counts for nothing, but what
    dies with its process a second time has failed. `worker` is the process at work on it.
    """

    number: int
    status: Status
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


def short_names(space: Mapping[str, Dimension]) -> dict[str, str]:
    """The last part of each key, or the whole of it where two have the same."""
    last = {key: key.rpartition(".")[2] for key in space}
    often = Counter(last.values())
    return {key: name if often[name] == 1 else key for key, name in last.items()}


_MAIN, _BEST, _QUIET = "#26547c", "#d1495b", "0.6"
_COLUMNS = 3
# From this ratio of the largest to the smallest objective on, a linear axis would hide the small ones.
_LOGARITHMIC = 20


def _history(result: SweepResult) -> Figure:
    """The objective of every trial, and the best so far."""
    figure, axes = one_panel(8.0, 4.0)
    _objective_axis(axes, result)
    numbers, found = _points(result.complete)
    _dots(axes, numbers, found, color=_MAIN, s=16, alpha=0.6, linewidths=0, label="trial")
    pruned = [trial for trial in result.trials if trial.status == "pruned" and trial.objective is not None]
    if pruned:
        axes.scatter(*_points(pruned), color=_QUIET, marker="x", s=20, label="pruned")
    failed = [trial.number for trial in result.trials if trial.status == "failed"]
    if failed:
        at_the_bottom = axes.get_xaxis_transform()
        axes.scatter(
            failed, np.zeros(len(failed)), color=_BEST, marker="x", s=20, label="failed", transform=at_the_bottom
        )
    best = np.minimum.accumulate(found) if result.direction == "minimize" else np.maximum.accumulate(found)
    end = max(trial.number for trial in result.trials)
    axes.step([*numbers, end], [*best, best[-1]], where="post", color=_BEST, linewidth=1.5, label="best so far")
    axes.set_xlabel("trial")
    whole_numbers(axes.xaxis)
    if (winner := result.best) is not None:
        axes.set_title(f"Best {result.metric} {winner.objective:.4g}, in trial {winner.number}", loc="left")
    figure.legend(frameon=False, fontsize=9, loc="outside right center")
    return figure


def _values(result: SweepResult) -> Figure:
    """Each key against the objective; later trials are darker."""
    names = short_names(result.space)
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure, grid = panels(3.3 * columns + 0.6, 2.8 * rows + 0.5, rows, columns, squeeze=False, sharey=True)
    trials = result.complete
    _, found = _points(trials)
    shades = np.linspace(0.75, 0.15, len(trials))
    for panel in grid.flat[len(names) :]:
        panel.set_visible(False)
    for position, (axes, (key, name)) in enumerate(zip(grid.flat, names.items(), strict=False)):
        _objective_axis(axes, result, named=position % columns == 0)
        dimension = result.space[key]
        values = [trial.values[key] for trial in trials]
        if dimension.choices is None:
            at = np.array(values, dtype=np.float64)
            if dimension.log:
                axes.set_xscale("log")
            if dimension.whole:
                whole_numbers(axes.xaxis)
            axes.set_xlim(_wider(dimension.range, dimension.log))
        else:
            index = np.array([dimension.choices.index(value) for value in values], dtype=np.float64)
            at = index + np.random.default_rng(0).uniform(-0.15, 0.15, len(index))
            choices = choice_names(dimension)
            axes.set_xticks(range(len(choices)), choices)
            axes.set_xlim(-0.5, len(choices) - 0.5)
        _dots(axes, at, found, c=shades, cmap="gray", vmin=0, vmax=1, s=16, linewidths=0)
        if result.best is not None:
            best = trials.index(result.best)
            axes.plot(
                at[best], found[best], "o", color=_BEST, markersize=7, markerfacecolor="none", markeredgewidth=1.5
            )
        axes.set_xlabel(name)
    title = "Every complete trial; dark: late, ring: the best, triangles: beyond the scale"
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def _importance(result: SweepResult) -> Figure:
    names = short_names(result.space)
    shares = sorted(result.importances.items(), key=lambda item: item[1])
    figure, axes = one_panel(7.0, 1.3 + 0.35 * len(shares))
    axes.barh([names[key] for key, _ in shares], [share for _, share in shares], 0.6, color=_MAIN)
    axes.set_xlabel("importance (shares of 1)")
    axes.set_title("Which keys decide whether a trial is among the best tenth", loc="left")
    return figure


def _dots(axes: Axes, at: np.ndarray, found: np.ndarray, **look: Any) -> None:
    """A dot for each trial; a triangle at the edge for one that lies beyond it."""
    low, high = sorted(axes.get_ylim())
    below, above = found < low, found > high
    for which, marker, height in ((~below & ~above, "o", found), (below, "v", low), (above, "^", high)):
        if which.any():
            shades = {"c": look["c"][which]} if "c" in look else {}
            heights = np.broadcast_to(height, found.shape)[which]
            axes.scatter(at[which], heights, marker=marker, clip_on=False, **{**look, **shades})
            look.pop("label", None)


def _objective_axis(axes: Axes, result: SweepResult, *, named: bool = True) -> None:
    """From the best to the worst; a few trials that went far astray stay outside, so that the rest can be seen."""
    _, found = _points(result.complete)
    found = found if result.direction == "minimize" else -found
    best, middle, worst = np.quantile(found, [0.0, 0.5, 1.0])
    # Far: several times as far from the middle as the best is.
    limit = min(worst, middle + 4 * (middle - best)) if middle > best else worst
    if result.direction == "minimize" and 0 < _LOGARITHMIC * best < worst:
        axes.set(yscale="log", ylim=_wider((best, worst), logarithmic=True))
    else:
        low, high = _wider((best, limit), logarithmic=False)
        axes.set_ylim((low, high) if result.direction == "minimize" else (-high, -low))
    if named:
        axes.set_ylabel(result.metric)


def _points(trials: list[Trial]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.array([trial.number for trial in trials], dtype=np.float64)
    return numbers, np.array([trial.objective for trial in trials], dtype=np.float64)


def _wider(limits: tuple[float, float], logarithmic: bool) -> tuple[float, float]:
    """A little more on both sides."""
    low, high = limits
    if logarithmic:
        share = (high / low) ** 0.04 if high > low else 1.1
        return low / share, high * share
    share = 0.04 * (high - low) or 0.04 * abs(high) or 0.04
    return low - share, high + share


_SHOWN_TRIALS = 10
_SHOWN_REASONS = 5


@dataclass(kw_only=True)
class SweepResult(InFolder):
    """The trials of a study, of all processes that took part, what they were judged by, and what a sweep says of them.

    `importances` are shares of 1, empty where there are too few trials. `status` can also be "unfinished": other
    processes are at work on the last trials.
    """

    study: str
    storage: str
    wanted: int
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
        return {status: found[status] for status in get_args(Status)}

    @property
    def best_file(self) -> Path:
        """The experiment file of the best trial, written at the end of a sweep."""
        return self.folder / "best.yaml"

    @property
    def metrics(self) -> dict[str, Any]:
        """Everything that was found, ready for JSON."""
        return {
            **super().metrics,
            **{name: getattr(self, name) for name in ("study", "storage", "metric", "direction", "wanted", "counts")},
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
                "" if trial.seconds is None else f"{trial.seconds:.1f} s",
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
        if not self.complete:
            return {}
        decide = {"importance": _importance(self)} if self.importances else {}
        return {"history": _history(self), "values": _values(self), **decide}

    def _text(self, trial: Trial, key: str) -> str:
        value, dimension = trial.values[key], self.space[key]
        return _number(value) if dimension.choices is None else choice_names(dimension)[dimension.choices.index(value)]


def _number(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"
