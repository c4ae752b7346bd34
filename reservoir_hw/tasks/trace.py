"""Recall and prediction of the inputs of a recorded trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.polynomial.legendre import legval
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.figure_style import colours, panels
from reservoir_hw.core.store import StateStore
from reservoir_hw.tasks.memory_recall import correlations, recall_figure
from reservoir_hw.tasks.report import Models, best, by_model, mean_and_spread
from reservoir_hw.tasks.task import Evaluation, OutputScale, Row, Split, Table, Task, TaskConfig, checked_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---- Recall and prediction of a trace's inputs, as table and figures.


PIECE = 150
"""Steps of the test that the figure shows: the arrays `piece/targets` and `piece/outputs` (steps, delays)."""

_PANELS = 4
_MODELS = 4


def _outputs_figure(models: Models, which: str) -> Figure:
    """One panel for each of some delays; every model over the truth."""
    delays = list(dict.fromkeys(int(d) for runs in models.values() for d in runs[0].evaluation.arrays["delays"]))
    shown = [delays[i] for i in np.linspace(0, len(delays) - 1, min(_PANELS, len(delays))).round().astype(int)]
    figure, grid = panels(10.0, 1.2 + 1.9 * len(shown), len(shown), 1, sharex=True, squeeze=False)
    for axes, delay in zip(grid[:, 0], shown, strict=True):
        for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
            arrays = runs[0].evaluation.arrays
            if delay not in arrays["delays"]:
                continue
            column = arrays["delays"].tolist().index(delay)
            if not axes.lines:
                axes.plot(arrays["piece/targets"][:, column], color="0.7", linewidth=2.5, label="truth")
            r2 = runs[0].evaluation.metrics[f"r2/{delay}"]
            axes.plot(arrays["piece/outputs"][:, column], color=colour, linewidth=1.1, label=f"{name}, r² {r2:.3f}")
        axes.set_title(_asked(delay), fontsize=10, loc="left")
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)
    grid[-1, 0].set_xlabel("step of the test")
    figure.suptitle("Outputs beside the truth, first steps of the test" + which, fontsize=11)
    return figure


def _asked(delay: int) -> str:
    return "u(t)" if delay == 0 else f"u(t {'-' if delay > 0 else '+'} {abs(delay)})"


# ---- What can be asked of the inputs of a recording: recall, and standard nonlinear functions of them.


Target: TypeAlias = Literal["recall", "narma2", "product", "parity", "legendre"]


def target_series(u: np.ndarray, target: Target, delay: int, degree: int, steps: int) -> np.ndarray:
    """The target of one delay k for inputs u(0) to u(T), (time,) -> (steps,); NaN where it asks for what came before.

    - recall: u(t - k)
    - product: u(t) u(t - k)
    - parity: the product of the signs of u(t) ... u(t - k), where 0 counts as positive
    - legendre: P_d(v(t - k)), d the degree and v the input over the recorded range from -1 to 1 (Dambre et al. 2012)
    - narma2: y(t + 1 - k), y(t + 1) = 0.4 y(t) + 0.4 y(t) y(t - 1) + 0.6 w(t)^3 + 0.1 from rest, w the input over the
      recorded range from 0 to 0.5 (Fujii & Nakajima 2017)

    A negative delay asks for what comes.
    """
    if target == "product":
        return u[:steps] * shifted(u, delay, steps)
    if target == "parity":
        signs = np.where(u < 0, -1.0, 1.0)
        return np.prod([shifted(signs, each, steps) for each in range(delay + 1)], axis=0)
    if target == "legendre":
        return shifted(legval(2 * _over_range(u) - 1, [*[0] * degree, 1]), delay, steps)
    if target == "narma2":
        return shifted(_narma2(0.5 * _over_range(u)), delay, steps)
    return shifted(u, delay, steps)


def shifted(series: np.ndarray, delay: int, steps: int) -> np.ndarray:
    """The series at t - delay for t from 0 on: (steps,), NaN before its first value."""
    if delay <= 0:
        return series[-delay : steps - delay]
    return np.concatenate([np.full(delay, np.nan), series])[:steps]


def _over_range(u: np.ndarray) -> np.ndarray:
    """From 0 at the lowest input to 1 at the highest."""
    low, high = float(u.min()), float(u.max())
    return (u - low) / (high - low) if high > low else np.zeros(len(u))


def _narma2(w: np.ndarray) -> np.ndarray:
    y = [0.0, 0.0]
    for value in w.tolist():
        y.append(0.4 * y[-1] + 0.4 * y[-1] * y[-2] + 0.6 * value**3 + 0.1)
    return np.array(y[2:])


# ---- Recall and prediction of the inputs that a trace was driven with.


class TraceConfig(TaskConfig):
    """Recall or predict the inputs of a trace, which makes a recording on a real device a task for it."""

    kind: Literal["trace"]
    trace: str = Field(description="the store: recorded, harvested or imported")
    dataset: str | None = Field(default=None, description="by default the first of the trace")
    sequence: NonNegativeInt = Field(default=0, description="row of the data set")
    channel: NonNegativeInt = Field(default=0, description="the input that is asked for; all of them drive")
    delays: Annotated[list[int], Field(min_length=1)] = Field(
        default=[0, 1, 2, 3, 4, 5], description="steps back that are asked for; -3 asks for the input three steps later"
    )
    target: Target = Field(
        default="recall", description="of the input and each delay: recall, product, parity, legendre, narma2"
    )
    degree: PositiveInt = Field(default=2, description="legendre: of the polynomial")
    train_steps: PositiveInt
    test_steps: PositiveInt | None = Field(default=None, description="by default all that follow")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.delays)) < len(self.delays):
            raise ValueError(f"delays are {self.delays}; they must be different whole numbers")
        if self.target == "parity" and min(self.delays) < 0:
            raise ValueError("target parity takes the inputs up to now: delays cannot be negative")
        if self.train_steps < max(self.delays):
            raise ValueError(f"train_steps is {self.train_steps}; it must be at least {max(self.delays)}")
        return self

    def build(self) -> Trace:
        """A `Trace` with these settings."""
        return Trace(self)


class Trace(Task):
    """Give back the inputs of a trace, u(t - k) for each k of `delays`; a negative k asks for what comes.

    `target` asks for a nonlinear function of them instead (`target_series`). Inputs are those of one recorded
    sequence from its first step on, (1, time, inputs) in the dtype of the trace; column i of the targets is that of
    channel `channel` with delays[i]. The test follows the training: with
    `training: {continuous: true}` the two are driven without a reset between them, as the recording was, and a replay
    of the trace (`kind: replay`) can stand for the device. Targets from before the recording are NaN: a readout needs
    a washout of at least the longest delay.

    `evaluate` gives for each delay k

    - `r2/k`, the squared correlation of output and target (as in the memory capacity of Jaeger 2001),
    - `correlation/k`, with its sign,
    - `nrmse/k`, the root mean squared error over the standard deviation of the target, which an offset or a wrong
      scale worsens and the other two do not.

    Takes a configuration, or the fields of `TraceConfig` as keywords. Raises `ConfigurationError` for settings out of
    range, and for a part that was not recorded.
    """

    larger_is_better = True
    larger, smaller = ("correlation",), ("nrmse",)

    def __init__(self, config: TraceConfig | None = None, /, **settings: Any) -> None:
        config = TraceConfig.of(config, settings)
        trace, train_steps, test_steps = config.trace, config.train_steps, config.test_steps
        self.delays = tuple(config.delays)
        self.score = f"r2/{self.delays[0]}"
        store = StateStore.open(trace)
        found = next(iter(store.datasets.values()), None) if config.dataset is None else store.dataset(config.dataset)
        if found is None:
            raise ConfigurationError(f"{trace} holds no states yet")
        if config.sequence >= found.sequences:
            raise ConfigurationError(
                f"sequence {config.sequence}: {trace}, {found.name} has 0 to {found.sequences - 1}"
            )
        u = found.read_inputs(slice(config.sequence, config.sequence + 1), 0, found.steps)[0]
        # As far as it was recorded.
        missing = np.isnan(u).any(axis=1)
        u = u[: int(missing.argmax())] if missing.any() else u
        if config.channel >= u.shape[1]:
            raise ConfigurationError(f"channel {config.channel}: {trace} has 0 to {u.shape[1] - 1}")
        ahead = max(0, -min(self.delays))
        last = len(u) - ahead
        steps = last if test_steps is None else train_steps + test_steps
        if steps > last or steps - train_steps < 2:
            raise ConfigurationError(
                f"train_steps {train_steps} and test_steps {test_steps or 'all that follow'}: {trace}, {found.name} "
                f"has {len(u)} steps" + (f", of which the last {ahead} are only predicted" if ahead else "")
            )
        asked = u[:, config.channel].astype(np.float64)
        columns = [target_series(asked, config.target, k, config.degree, steps) for k in self.delays]
        targets = np.stack(columns, axis=1).astype(np.float32)
        self.train = Split(u[None, :train_steps], targets[None, :train_steps])
        self.test = Split(u[None, train_steps:steps], targets[None, train_steps:])

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, delays) for the test split; the class describes the metrics.

        `arrays` are `delays` and `r2` (delays,), and `piece/targets` and `piece/outputs` (steps, delays), the first
        steps of the test.

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs = checked_outputs(outputs, self.test)[0]
        targets = self.test.targets[0].astype(np.float64)
        nrmse = np.sqrt(((outputs - targets) ** 2).mean(axis=0)) / targets.std(axis=0)
        correlation = correlations(outputs, targets)
        metrics: dict[str, float] = {}
        for name, values in (("r2", correlation**2), ("nrmse", nrmse), ("correlation", correlation)):
            metrics |= {f"{name}/{k}": float(value) for k, value in zip(self.delays, values, strict=True)}
        pieces = {"piece/targets": targets[:PIECE], "piece/outputs": outputs[:PIECE]}
        return Evaluation(metrics, {**pieces, "delays": np.array(self.delays), "r2": correlation**2})

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table, with a line for each model and delay."""
        body = [
            [
                name,
                _asked(int(delay)),
                *(mean_and_spread(runs, f"{metric}/{delay}") for metric in ("r2", "nrmse", "correlation")),
            ]
            for name, runs in by_model(rows).items()
            for delay in runs[0].evaluation.arrays["delays"]
        ]
        note = "r²: squared correlation R of output and target. NRMSE knows of offset and scale too; 1 is a constant's."
        return [Table("Recall and prediction", ["model", "asked for", "r²", "NRMSE", "R"], body, note)]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """`outputs`: beside the truth, for some delays; `r2`: by delay, if there are several."""
        first = f"r2/{rows[0].evaluation.arrays['delays'][0]}"
        drawn = {"outputs": _outputs_figure(*best(by_model(rows), first, _MODELS, largest=True))}
        if any(len(row.evaluation.arrays["delays"]) > 1 for row in rows):
            drawn["r2"] = recall_figure(rows, first)
        return drawn
