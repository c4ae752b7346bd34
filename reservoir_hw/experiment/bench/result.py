"""What a bench found: for each task the score of the device, of each baseline, and what papers print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.experiment.bench.standard import StandardTask
from reservoir_hw.experiment.run.result import InFolder
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEVICE = "device"


@dataclass(frozen=True)
class ModelScore:
    """A model on the test of a task: what was chosen for it, and the metrics of each repetition.

    `tried` is how many settings it was chosen among, on the validation part of the training. `weights` are those of
    each output of the readout, without the bias.
    """

    label: str
    alpha: float
    tried: int
    weights: int
    metrics: Sequence[Mapping[str, float]]

    def values(self, standard: StandardTask) -> np.ndarray:
        """The metric of each repetition; the worst there is where all forecasts have left every bound."""
        worst = 0.0 if standard.larger_is_better else math.inf
        return np.array([one.get(standard.metric, worst) for one in self.metrics])

    def mean(self, standard: StandardTask) -> float:
        """Over the repetitions."""
        return float(self.values(standard).mean())

    def interval(self, standard: StandardTask) -> tuple[float, float] | None:
        """Of the mean over the repetitions with 95 %, of one repetition what its task knows of it."""
        values = self.values(standard)
        if not np.isfinite(values).all():
            return None
        if len(values) > 1:
            reach = t_quantile(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
            low = values.mean() - reach
            return (float(max(low, 0.0)), float(values.mean() + reach))
        for ends in (("low", "high"), ("q1", "q3")):
            low, high = (self.metrics[0].get(f"{standard.metric}/{end}") for end in ends)
            if low is not None and high is not None:
                return low, high
        return None

    def text(self, standard: StandardTask) -> str:
        """Mean and interval for people."""
        mean = self.mean(standard)
        if not math.isfinite(mean):
            return "diverged"
        interval = self.interval(standard)
        return f"{mean:.3g}" + ("" if interval is None else " ({:.2g} to {:.2g})".format(*interval))


@dataclass(frozen=True)
class TaskScore:
    """A task with the score of each model by name; the device is called `DEVICE`."""

    standard: StandardTask
    models: dict[str, ModelScore]

    @property
    def winner(self) -> str:
        """The model with the best mean; of equal ones the first of them."""
        sign = -1 if self.standard.larger_is_better else 1
        return min(self.models, key=lambda name: sign * self.models[name].mean(self.standard))

    @property
    def verdict(self) -> str:
        """Who wins, by how much; or that the intervals of the device and of the best baseline overlap."""
        others = {name: score for name, score in self.models.items() if name != DEVICE}
        if not others:
            return ""
        best = TaskScore(self.standard, others).winner
        mine, its = (self.models[name].mean(self.standard) for name in (DEVICE, best))
        if mine == its:
            return f"device and {best} alike"
        ranges = [self.models[name].interval(self.standard) for name in (DEVICE, best)]
        low = [(mine, its)[n] if found is None else found[0] for n, found in enumerate(ranges)]
        high = [(mine, its)[n] if found is None else found[1] for n, found in enumerate(ranges)]
        if max(low) <= min(high):
            return "no difference beyond the intervals"
        winner, worse, better = (DEVICE, its, mine) if self.winner == DEVICE else (best, mine, its)
        if self.standard.larger_is_better:
            worse, better = better, worse
        factor = worse / better if better > 0 else math.inf
        return f"{winner}, by a factor of {factor:.2g}" if math.isfinite(factor) else winner


@dataclass(kw_only=True, repr=False)
class BenchResult(InFolder):
    """The tasks that were run, by name, and for the others the reason."""

    device: str
    scores: dict[str, TaskScore] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

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
                    "models": {
                        model: {**vars(found), "mean": _plain(found.mean(score.standard))}
                        for model, found in score.models.items()
                    },
                    "published": [vars(one) for one in score.standard.published],
                }
                for name, score in self.scores.items()
            },
            "not_run": self.not_run,
        }

    def tables(self) -> list[Table]:
        """The scores, what was chosen, and what was not run."""
        names = list(dict.fromkeys(name for score in self.scores.values() for name in score.models))
        body = []
        for score in self.scores.values():
            standard = score.standard
            texts = [score.models[name].text(standard) if name in score.models else "–" for name in names]
            papers = "; ".join(f"{one.value:.3g} {one.what}" for one in standard.published)
            direction = "more" if standard.larger_is_better else "less"
            body.append([f"{standard.title}\n{standard.metric}, {direction} is better", *texts, score.verdict, papers])
        header = ["task", *(self.device if name == DEVICE else name for name in names), "who wins", "published"]
        note = (
            "Mean over repetitions and its 95 % interval. Of a single repetition: the 95 % interval of an error rate, or the "
            "quartiles of the starts of a forecast."
        )
        chosen = [
            [score.standard.title, found.label, f"{found.alpha:g}", str(found.weights), str(found.tried)]
            for score in self.scores.values()
            for found in score.models.values()
        ]
        tables = [
            Table(self.title, header, body, note),
            Table(
                "What was chosen",
                ["task", "model", "alpha", "weights", "settings tried"],
                chosen,
                "Chosen for the device and each baseline alike: by the score on the last quarter of the training data of the "
                "first repetition. The test was not looked at.",
            ),
        ]
        if self.not_run:
            tables.append(Table("Not run", ["task", "why"], [[*one] for one in self.not_run.items()]))
        return tables

    def figures(self) -> dict[str, Figure]:
        """All tasks as small panels. Needs the `report` extra."""
        from reservoir_hw.experiment.bench.figure import scores_figure

        return {"scores": scores_figure(self.scores.values(), self.device)} if self.scores else {}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
