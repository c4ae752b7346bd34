"""What a bench found, with the run folders that hold it, and what it may have taken of the device."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors

from reservoir_hw.core.configuration import Document, decisive
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.figure_style import colours, panels
from reservoir_hw.experiment.bench.score import DEVICE, ModelScore, TaskScore
from reservoir_hw.experiment.bench.standard import SETTINGS, StandardTask, standard_tasks
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.run.experiment import Experiment
from reservoir_hw.experiment.run.result import InFolder, write_json
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_COLUMNS = 3
# From this ratio on, a linear axis would hide the small values.
_LOGARITHMIC = 10


def scores_figure(scores: Collection[TaskScore]) -> Figure:
    """A panel for each task: repetitions (dots), their mean with its interval (bar), published figures (dashed)."""
    rows = math.ceil(len(scores) / _COLUMNS)
    columns = min(_COLUMNS, len(scores))
    figure, grid = panels(3.7 * columns, 1.1 * rows + 0.1, rows, columns, squeeze=False)
    for axes, score in zip(grid.flat, scores, strict=False):
        _draw(axes, score)
    for axes in list(grid.flat)[len(scores) :]:
        axes.set_axis_off()
    return figure


def _draw(axes: Axes, score: TaskScore) -> None:
    from matplotlib.ticker import NullFormatter

    standard = score.standard
    shades = colours(max(len(score.models), 2))
    seen = [one.value for one in standard.published]
    for height, (found, shade) in enumerate(zip(score.models.values(), shades, strict=False)):
        values = found.values(standard)
        finite = values[np.isfinite(values)]
        seen += finite.tolist()
        if not len(finite):
            axes.annotate("diverged", (0.02, height), xycoords=("axes fraction", "data"), fontsize=7, va="center")
            continue
        axes.plot(finite, np.full(len(finite), height), "o", color=shade, markersize=3.5, alpha=0.6)
        interval = found.interval(standard)
        if interval is not None:
            axes.plot(interval, [height, height], color=shade, linewidth=1.2)
        axes.plot(finite.mean(), height, "|", color="black", markersize=9)
    for one in standard.published:
        axes.axvline(one.value, color="crimson", linewidth=0.8, linestyle="--")
    positive = [value for value in seen if value > 0]
    all_positive = len(positive) == len(seen) > 0 and not standard.larger_is_better
    if all_positive and max(positive) > _LOGARITHMIC * min(positive):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_yticks(range(len(score.models)), list(score.models), fontsize=7)
    axes.set_ylim(len(score.models) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(standard.title, fontsize=8, loc="left")
    arrow = "→ better" if standard.larger_is_better else "← better"
    axes.set_xlabel(f"{standard.metric}   {arrow}", fontsize=7)
    axes.grid(axis="x", color="0.92")


_SCORES = (
    "↓: less is better, ↑: more is better. In brackets the 95 % interval: of the mean over repetitions; of a single "
    "test, from its errors or from drawing it anew. The verdict compares the device with the baseline that did best on "
    "the validation part of the training."
)
_CHOSEN = (
    f"By the score on the last quarter of the training data of the first repetition, among {SETTINGS} settings for the "
    "device and for each baseline. The test was not looked at. w: weights of each output, without the bias."
)


@dataclass(kw_only=True, repr=False)
class BenchResult(InFolder):
    """The tasks that were run, by name, and for the others the reason."""

    device: str
    scores: dict[str, TaskScore] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    """What the device got in the place of the inputs u of a task, where they lay outside its range."""
    _warned: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def add(
        self, task: str, score: TaskScore, inputs: str, warnings: Iterable[str], left_out: Iterable[str] = ()
    ) -> None:
        """A task that was judged, and which baselines were left out. Tasks stay in their usual order."""
        self.scores[task] = score
        self.scores = {name: self.scores[name] for name in standard_tasks() if name in self.scores}
        if inputs:
            self.inputs[task] = self.provenance.setdefault("inputs", {})[task] = inputs
        # Tasks and repetitions warn of the same thing with other numbers: one is kept.
        keys = {re.sub(r"\([\d, .…]*\)|[\d,.e+-]+", "", warning): warning for warning in warnings}
        for key, warning in {**{one: one for one in left_out}, **keys}.items():
            _, tasks = self._warned.setdefault(key, (warning, []))
            if task not in tasks:
                tasks.append(task)
        self.warnings = [f"{', '.join(tasks)}: {warning}" for warning, tasks in self._warned.values()]

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            **super().metrics,
            "device": self.device,
            "tasks": {
                name: {
                    "metric": score.standard.metric,
                    "verdict": score.verdict,
                    "models": {model: _numbers(found, score.standard) for model, found in score.models.items()},
                    "published": [vars(one) for one in score.standard.published],
                }
                for name, score in self.scores.items()
            },
            "inputs": self.inputs,
            "not_run": self.not_run,
        }

    def tables(self) -> list[Table]:
        """The scores, what was chosen, and what was not run."""
        names = list(dict.fromkeys(name for score in self.scores.values() for name in score.models))
        body = []
        for score in self.scores.values():
            standard, verdict = score.standard, score.verdict.replace(" (", "\n(").replace(": ", ":\n")
            texts = [score.models[name].text(standard) if name in score.models else "–" for name in names]
            body.append([f"{standard.title}\n{standard.metric} {standard.arrow}", *texts, verdict])
        header = ["task, score", *(self.device if name == DEVICE else name for name in names), "who wins"]
        chosen = [
            [score.standard.title, *(score.models[name].setting if name in score.models else "–" for name in names)]
            for score in self.scores.values()
        ]
        printed = [
            [score.standard.title, score.standard.metric, f"{one.value:.3g}", one.what]
            for score in self.scores.values()
            for one in score.standard.published
        ]
        inputs = [[self.scores[name].standard.title, what] for name, what in self.inputs.items()]
        reasons = dict.fromkeys(self.not_run.values())
        not_run = [[", ".join(name for name, why in self.not_run.items() if why == one), one] for one in reasons]
        tables = [
            Table("Scores", header, body, _SCORES),
            Table("What was chosen", ["task", *header[1:-1]], chosen, _CHOSEN),
            Table("Published figures", ["task", "score", "figure", "of"], printed),
            Table("Inputs outside the range of the device", ["task", "what it got for u"], inputs),
            Table("Not run", ["task", "why"], not_run),
        ]
        return [table for table in tables if table.rows]

    def figures(self) -> dict[str, Figure]:
        """All tasks as small panels. Needs the `report` extra."""
        return {"scores": scores_figure(self.scores.values())} if self.scores else {}


def _numbers(found: ModelScore, standard: StandardTask) -> dict[str, Any]:
    """Of a model on a task, ready for JSON."""
    own = {"label": found.label, "alpha": found.alpha, "tried": found.tried, "weights": found.weights}
    mean, loss = _plain(found.mean(standard)), _plain(found.loss)
    return {**own, "loss": loss, "mean": mean, "interval": found.interval(standard), "metrics": found.metrics}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---- What the run folders of a bench hold.


@dataclass(frozen=True)
class Rows:
    """The rows of a complete run folder."""

    folder: Path
    metrics: list[dict[str, float]]
    provenance: list[dict[str, Any]]
    warnings: list[str]

    def weights(self, row: int) -> int:
        """How many states the readout of a row has weights for."""
        with safetensors.safe_open(self.folder / self.provenance[row]["readout"]["file"], "numpy") as file:
            return file.get_slice("weights").get_shape()[1]

    def outputs(self, row: int) -> np.ndarray:
        """What the readout of a row answered in the test, (batch, time, outputs)."""
        return np.load(self.folder / self.provenance[row]["readout"]["outputs"])


def complete_rows(experiment: Experiment) -> Rows | None:
    """Those of a complete run with these settings in its folder, whatever it was labelled; None where there is none."""
    folders = sorted(Path(experiment.config.run.folder).glob(f"{experiment.name}-*"))
    wanted = _settings(experiment.points)
    return next((rows_in(folder) for folder in folders if _is_complete(folder) and _made_with(folder) == wanted), None)


def _is_complete(folder: Path) -> bool:
    try:
        return json.loads((folder / "provenance.json").read_text())["status"] == "complete"
    except (OSError, ValueError, KeyError):
        return False


def _made_with(folder: Path) -> list[Any] | None:
    """The settings of a run; None where a later version does not know them any more."""
    try:
        return _settings(Experiment(Document.from_file(folder / "experiment.yaml")).points)
    except ConfigurationError:
        return None


def _settings(points: Sequence[Point]) -> list[Any]:
    """What decides about the rows."""
    sections = ("task", "reservoir", "readout", "training")
    return [[decisive(getattr(point.config, section)) for section in sections] for point in points]


def rows_in(folder: Path) -> Rows:
    """Those of a folder that is complete."""
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = json.loads((folder / "provenance.json").read_text())["rows"]
    return Rows(folder, [row["metrics"] for row in metrics["rows"]], rows, metrics["warnings"])


# ---- What the experiments of a bench may have taken of the device, over all calls.


@dataclass(frozen=True)
class Cost:
    """Of a device. `seconds` is None where no step period is declared."""

    steps: int
    seconds: float | None

    def __add__(self, other: Cost) -> Cost:
        known = self.seconds is not None and other.seconds is not None
        return Cost(self.steps + other.steps, (self.seconds or 0) + (other.seconds or 0) if known else None)


NOTHING = Cost(0, 0.0)


@dataclass(frozen=True)
class Ledger:
    """A file with a line for each experiment that was begun.

    It is written before the device is driven. So an experiment that was killed counts in full, and one that is complete
    counts once, because it is not begun again.
    """

    path: Path

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was begun, in order: `experiment`, `steps`, `seconds`."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    @property
    def spent(self) -> Cost:
        """The sum."""
        return sum((Cost(one["steps"], one["seconds"]) for one in self.entries), NOTHING)

    def begin(self, experiment: str, cost: Cost) -> None:
        """Write down what an experiment may take at most."""
        entry = {"experiment": experiment, "steps": cost.steps, "seconds": cost.seconds}
        write_json(self.path, [*self.entries, entry])
