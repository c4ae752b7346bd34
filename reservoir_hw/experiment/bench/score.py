"""The score of each model on a task of a bench, with its interval, and who wins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.experiment.bench.standard import StandardTask

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

    @property
    def setting(self) -> str:
        """What was chosen, for people."""
        return f"{self.label}\nα {self.alpha:g}, {self.weights} w, of {self.tried}"

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
        alone = " (one repetition)" if ranges == [None, None] else ""
        by = f"{factor:.2f}" if factor < 10 else f"{factor:.0f}" if factor < 1000 else "more than 1000"
        return winner + (f", by a factor of {by}" if math.isfinite(factor) else "") + alone
