"""What a bench found: for each task the score of the device, of each baseline, and what papers print."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reservoir_hw.experiment.bench.candidates import SETTINGS
from reservoir_hw.experiment.bench.figure import scores_figure
from reservoir_hw.experiment.bench.score import DEVICE, ModelScore, TaskScore
from reservoir_hw.experiment.bench.standard import StandardTask, standard_tasks
from reservoir_hw.experiment.run.result import InFolder
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
            standard = score.standard
            texts = [score.models[name].text(standard) if name in score.models else "–" for name in names]
            body.append([f"{standard.title}\n{standard.metric} {standard.arrow}", *texts, _in_two_lines(score.verdict)])
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


def _in_two_lines(verdict: str) -> str:
    """For a column."""
    return verdict.replace(" (", "\n(").replace(": ", ":\n")


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
