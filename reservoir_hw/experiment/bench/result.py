"""What a bench found: for each task the score of the device, of each baseline, and what papers print."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reservoir_hw.experiment.bench.figure import scores_figure
from reservoir_hw.experiment.bench.score import DEVICE, TaskScore
from reservoir_hw.experiment.run.result import InFolder
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHOSEN = (
    "By the score on the last quarter of the training data of the first repetition, for the device and the baselines "
    "alike. The test was not looked at. w: weights of each output, without the bias. of: so many settings were tried."
)


@dataclass(kw_only=True, repr=False)
class BenchResult(InFolder):
    """The tasks that were run, by name, and for the others the reason."""

    device: str
    scores: dict[str, TaskScore] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    _warned: dict[str, tuple[str, list[str]]] = field(default_factory=dict)

    def warn_of(self, task: str, warnings: Iterable[str]) -> None:
        """Add the warnings of a task. Tasks and repetitions warn of the same thing with other numbers: one is kept."""
        for warning in warnings:
            _, tasks = self._warned.setdefault(re.sub(r"[\d,.e+-]+", "", warning), (warning, []))
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
            papers = "\n".join(f"{one.value:.3g} {one.what}" for one in standard.published)
            body.append([standard.title, f"{standard.metric} {standard.arrow}", *texts, score.verdict, papers])
        header = [
            "task",
            "score",
            *(self.device if name == DEVICE else name for name in names),
            "who wins",
            "published",
        ]
        note = (
            "↓: less is better, ↑: more is better. "
            "Mean over repetitions and its 95 % interval. Of a single repetition: the 95 % interval of an error rate, "
            "or the quartiles of the starts of a forecast."
        )
        chosen = [
            [score.standard.title, *(score.models[name].setting if name in score.models else "–" for name in names)]
            for score in self.scores.values()
        ]
        tables = [
            Table(self.title, header, body, note),
            Table("What was chosen", ["task", *header[2:-2]], chosen, _CHOSEN),
        ]
        if self.not_run:
            tables.append(Table("Not run", ["task", "why"], [[*one] for one in self.not_run.items()]))
        return tables

    def figures(self) -> dict[str, Figure]:
        """All tasks as small panels. Needs the `report` extra."""
        return {"scores": scores_figure(self.scores.values())} if self.scores else {}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
