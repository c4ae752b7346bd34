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
        return f"{self.label} α {self.alpha:g}, {self.weights} w, of {self.tried}".lstrip()

    def values(self, standard: StandardTask) -> np.ndarray:
        """The metric of each repetition; the worst there is where all forecasts have left every bound."""
        worst = 0.0 if standard.larger_is_better else math.inf
        return np.array([one.get(standard.metric, worst) for one in self.metrics])

    def mean(self, standard: StandardTask) -> float:
        """Over the repetitions."""
        return float(self.values(standard).mean())

    def interval(self, standard: StandardTask) -> tuple[float, float] | None:
        """Of the mean over the repetitions with 95 %; of one, or of equal ones, what the task knows of a repetition."""
        values = self.values(standard)
        if not np.isfinite(values).all():
            return None
        if values.std() > 0:
            mean, reach = float(values.mean()), _reach(values)
            return max(mean - reach, 0.0), mean + reach
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
        return f"{mean:.3g}" + ("" if interval is None else "\n({:.2g} to {:.2g})".format(*interval))


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
        """Whether the device or its best baseline wins, by what factor, with its 95 % interval.

        Both were judged on the same data, so the interval is that of the mean logarithm of the ratio over the
        repetitions (Student). Of a single repetition, the intervals of the two must not overlap.
        """
        others = {name: score for name, score in self.models.items() if name != DEVICE}
        best = TaskScore(self.standard, others).winner
        mine, its = (self.models[name].values(self.standard) for name in (DEVICE, best))
        if (mine == its).all():
            return f"device and {best} alike"
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithms = np.log(its / mine if self.standard.larger_is_better else mine / its)
        if not np.isfinite(logarithms).all():
            alone = len(mine) == 1
            return self.winner if alone or not _may_be_zero(mine - its) else _NO_DIFFERENCE
        winner, middle = (best if logarithms.mean() > 0 else DEVICE), abs(float(logarithms.mean()))
        if len(logarithms) == 1:
            return self._single_verdict(winner, best, math.exp(middle))
        if _may_be_zero(logarithms):
            return _NO_DIFFERENCE
        reach = _reach(logarithms)
        low, high = _factor(math.exp(middle - reach)), _factor(math.exp(middle + reach))
        return f"{winner}, by a factor of {_factor(math.exp(middle))} ({low} to {high})"

    def _single_verdict(self, winner: str, best: str, ratio: float) -> str:
        ranges = [self.models[name].interval(self.standard) for name in (DEVICE, best)]
        known = [found for found in ranges if found is not None]
        if len(known) == 2 and max(low for low, _ in known) <= min(high for _, high in known):
            return _NO_DIFFERENCE
        return f"{winner}, by a factor of {_factor(ratio)} (one repetition)"


_NO_DIFFERENCE = "no difference beyond the intervals"


def _reach(values: np.ndarray) -> float:
    """Half the 95 % interval of the mean (Student)."""
    return t_quantile(0.975, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def _may_be_zero(values: np.ndarray) -> bool:
    """Whether the interval of the mean holds 0; of values that are not finite nothing is known."""
    return bool(np.isfinite(values).all() and abs(values.mean()) <= _reach(values))


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 1000 else "more than 1000"
