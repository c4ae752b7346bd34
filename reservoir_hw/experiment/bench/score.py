"""The score of each model on a task of a bench, with its interval, and who wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reservoir_hw.core.statistics import half_width
from reservoir_hw.experiment.bench.resampling import interval
from reservoir_hw.experiment.bench.standard import StandardTask

DEVICE = "device"


@dataclass(frozen=True)
class ModelScore:
    """A model on the test of a task: what was chosen for it, and the metrics of each repetition.

    `tried` is how many settings it was chosen among, `loss` how it did on the validation part of the training (less is
    better). `weights` are those of each output of the readout, without the bias. `resampled` is the metric on tests
    that were drawn from that of a single repetition (`resampling.resampled`).
    """

    label: str
    alpha: float
    tried: int
    loss: float
    weights: int
    metrics: Sequence[Mapping[str, float]]
    resampled: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def setting(self) -> str:
        """What was chosen, for people."""
        return f"{self.label} α\u00a0{self.alpha:g}, {self.weights}\u00a0w".lstrip()

    def values(self, standard: StandardTask) -> np.ndarray:
        """The metric of each repetition; the worst there is where all forecasts have left every bound."""
        return np.array([one.get(standard.metric, standard.worst) for one in self.metrics])

    def mean(self, standard: StandardTask) -> float:
        """Over the repetitions."""
        return float(self.values(standard).mean())

    def interval(self, standard: StandardTask) -> tuple[float, float] | None:
        """With 95 %: of the mean over the repetitions; of one, or of equal ones, what the first test tells.

        That is the task's own interval, if it has one, or that of `resampled`. None of what has diverged.
        """
        values = self.values(standard)
        if not np.isfinite(values).all():
            return None
        if values.std() > 0:
            mean, reach = float(values.mean()), half_width(values)
            return max(mean - reach, 0.0), mean + reach
        low, high = (self.metrics[0].get(f"{standard.metric}/{end}") for end in ("low", "high"))
        if low is not None and high is not None:
            return low, high
        # Drawing anew raises what cannot be negative, such as r²: the value itself still lies within.
        value = float(values[0])
        low, high = (value, value) if self.resampled is None else interval(self.resampled)
        return min(low, value), max(high, value)

    def text(self, standard: StandardTask) -> str:
        """Mean and interval for people."""
        mean = self.mean(standard)
        if not math.isfinite(mean):
            return "diverged"
        interval = self.interval(standard)
        return f"{mean:.3g}" + ("" if interval is None else "\n({} to {})".format(*map(_digits, interval)))


@dataclass(frozen=True)
class TaskScore:
    """A task with the score of each model by name; the device is called `DEVICE`."""

    standard: StandardTask
    models: dict[str, ModelScore]

    @property
    def rival(self) -> str:
        """The baseline that did best on the validation part of the training: the device is compared with it."""
        return min((name for name in self.models if name != DEVICE), key=lambda name: self.models[name].loss)

    @property
    def verdict(self) -> str:
        """Whether the device or its rival wins, by what factor, with its 95 % interval.

        Both were judged on the same tests. So the interval is that of the mean logarithm of the ratio over the
        repetitions (Student), or of the ratio on tests that were drawn from a single one.
        """
        rival = self.rival
        mine, its = self.models[DEVICE], self.models[rival]
        values = mine.values(self.standard), its.values(self.standard)
        if (values[0] == values[1]).all():
            return f"{DEVICE} and {rival}: the same score"
        drawn = None if mine.resampled is None or its.resampled is None else (mine.resampled, its.resampled)
        ratio = _middle_and_ends(self._log_ratios, values, drawn)
        worse = ratio if np.isfinite(ratio[1:]).any() else _middle_and_ends(self._differences, values, drawn)
        if worse[1] <= 0 <= worse[2]:
            return f"{DEVICE} and {rival}: no difference beyond the intervals"
        winner, beside = (rival, "") if worse[1] > 0 else (DEVICE, f" over {rival}")
        if not np.isfinite(worse).any():
            return f"{winner}{beside}"
        form, by = (_factor, "by a factor of ") if worse is ratio else (_digits, "by ")
        middle, *ends = (form(abs(one)) for one in (worse[0], *sorted(worse[1:], key=abs)))
        return f"{winner}, {by}{middle} ({ends[0]} to {ends[1]}){beside}"

    def _log_ratios(self, mine: np.ndarray, its: np.ndarray) -> np.ndarray:
        """Above 0 where the baseline is better; infinite beside a 0, or where one of them has diverged."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(its / mine if self.standard.larger_is_better else mine / its)
        return np.where(mine == its, 0.0, ratios)

    def _differences(self, mine: np.ndarray, its: np.ndarray) -> np.ndarray:
        """Above 0 where the baseline is better; infinite where one of them has diverged."""
        with np.errstate(invalid="ignore"):
            differences = its - mine if self.standard.larger_is_better else mine - its
        return np.where(mine == its, 0.0, differences)


Pair = tuple[np.ndarray, np.ndarray]


def _middle_and_ends(
    of: Callable[[np.ndarray, np.ndarray], np.ndarray], values: Pair, drawn: Pair | None
) -> tuple[float, float, float]:
    """The mean of a comparison over the repetitions with its 95 % interval: Student, or that of a test drawn anew.

    Where it is infinite in some repetitions the interval holds everything, and in all of them it is infinite as well.
    """
    found = of(*values)
    if drawn is not None:
        return float(found[0]), *interval(of(*drawn))
    if np.isfinite(found).all():
        middle, reach = float(found.mean()), half_width(found)
        return middle, middle - reach, middle + reach
    if len(set(found)) == 1:
        return float(found[0]), float(found[0]), float(found[0])
    return math.nan, -math.inf, math.inf


def _digits(end: float) -> str:
    return f"{end:.2g}" if end < 10 else f"{end:.3g}"


def _factor(logarithm: float) -> str:
    if math.isinf(logarithm):
        return "∞"
    value = math.exp(min(logarithm, 700.0))
    if value < 1000:
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"{float(f'{value:.2g}'):,.0f}" if value < 1e6 else f"{value:.1e}"
