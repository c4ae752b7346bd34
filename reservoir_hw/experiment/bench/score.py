"""The score of each model on a task of a bench, with its interval, and who wins."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reservoir_hw.core.seeds import generator
from reservoir_hw.core.statistics import half_width
from reservoir_hw.experiment.bench.standard import StandardTask
from reservoir_hw.tasks.task import Split, Task

_RESAMPLES = 399
_TAIL = 10
"""So many of the resamples lie at or beyond either end of a 95 % interval: (399 + 1) 0.025."""


def resampled(task: Task, outputs: Sequence[np.ndarray], metric: str, worst: float) -> np.ndarray:
    """The metric of each model on tests that are drawn from the test of the task: (models, resamples).

    `outputs` has those of each model for the test, which is drawn anew for all of them alike. Several sequences, or
    starts of a forecast, are drawn with replacement (Efron 1979, Annals of Statistics 7). One sequence is drawn in
    circular blocks of consecutive steps (Künsch 1989, Annals of Statistics 17; Politis & Romano 1992). They are √n long
    of n steps: consistency asks that they become ever longer and ever more. Where the task judges pieces, a step is a
    piece. `worst` stands for a metric that is missing.
    """
    found = np.empty((len(outputs), _RESAMPLES))
    drawn = copy.copy(task)
    for column, (rows, steps) in enumerate(_draws(task)):
        drawn.test = _part(task.test, rows, steps)
        for row, one in enumerate(outputs):
            found[row, column] = drawn.evaluate(one[rows][:, steps]).metrics.get(metric, worst)
    return found


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of resamples."""
    ordered = np.sort(values)
    return float(ordered[_TAIL - 1]), float(ordered[-_TAIL])


def _draws(task: Task) -> Iterator[tuple[np.ndarray, np.ndarray | slice]]:
    """Rows and steps of each resample."""
    rng = generator(0, "resamples of a test")
    batch, steps = task.test.targets.shape[:2]
    if batch > 1:
        for _ in range(_RESAMPLES):
            yield rng.integers(batch, size=batch), slice(None)
        return
    pieces = steps // task.piece_steps
    length = round(math.sqrt(pieces))
    for _ in range(_RESAMPLES):
        starts = rng.integers(pieces, size=math.ceil(pieces / length))
        chosen = ((starts[:, None] + np.arange(length)) % pieces).ravel()[:pieces]
        whole = chosen[:, None] * task.piece_steps + np.arange(task.piece_steps)
        yield np.array([0]), whole.ravel()


def _part(split: Split, rows: np.ndarray, steps: np.ndarray | slice) -> Split:
    # The inputs of a forecast are its warm-up, which is not judged.
    lengths = None if split.lengths is None else np.asarray(split.lengths)[rows]
    counted = None if split.counted is None else split.counted[rows][:, steps]
    return Split(split.inputs[rows], split.targets[rows][:, steps], None, lengths, split.at_end, counted)


DEVICE = "device"


@dataclass(frozen=True)
class ModelScore:
    """A model on the test of a task: what was chosen for it, and the metrics of each repetition.

    `tried` is how many settings it was chosen among, `loss` how it did on the validation part of the training (less is
    better). `weights` are those of each output of the readout, without the bias. `resampled` is the metric on tests
    that were drawn from that of a single repetition (`resampled`).
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
