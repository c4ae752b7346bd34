"""Recall of earlier inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.core.figure_style import colours, one_panel, whole_numbers
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.report import best, by_model, mean_and_spread, metric_values
from reservoir_hw.tasks.task import Evaluation, OutputScale, RepeatedConfig, Row, Table, Task, checked_outputs, in_two

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---- How well earlier inputs are recalled.


_COLUMNS = 8
_CURVES = 12


def correlations(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Of outputs and targets (time, delays): (delays,). A constant output is related to nothing."""
    x, y = outputs - outputs.mean(axis=0), targets - targets.mean(axis=0)
    power = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    return np.divide((x * y).sum(axis=0), power, out=np.zeros_like(power), where=power > 0)


def recall_figure(rows: Sequence[Row], metric: str) -> Figure:
    """r² against delay, of the models that are best by a metric: mean and range over the runs."""
    models, which = best(by_model(rows), metric, _CURVES, largest=True)
    drawn, axes = one_panel(7.5, 3.8 + 0.13 * len(models))
    coming = False
    for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
        delays = runs[0].evaluation.arrays["delays"]
        order = np.argsort(delays)
        coming |= bool(delays.min() < 0)
        r2 = np.stack([run.evaluation.arrays["r2"] for run in runs])[:, order]
        label = f"{name} (sum {r2.sum(axis=1).mean():.1f})"
        axes.plot(delays[order], r2.mean(axis=0), "o-", color=colour, markersize=4, linewidth=1.2, label=label)
        if len(runs) > 1:
            axes.fill_between(delays[order], r2.min(axis=0), r2.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    label = "delay k in steps" + (" (below 0: inputs that are still to come)" if coming else "")
    axes.set(ylim=(-0.02, 1.03), xlabel=label, ylabel="r² of output and u(t - k)")
    whole_numbers(axes.xaxis)
    axes.set_title(f"How well the input of k steps ago is told (1: exactly, 0: not at all){which}", fontsize=11)
    drawn.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    return drawn


# ---- Recall of earlier inputs: how long a reservoir remembers, and how well.


class MemoryRecallConfig(RepeatedConfig):
    """Give back the inputs of earlier steps."""

    kind: Literal["memory_recall"]
    delays: Annotated[list[NonNegativeInt], Field(min_length=1)] = Field(
        default=list(range(21)), description="the steps back that are asked for, one output for each"
    )
    train_steps: PositiveInt = 4000
    test_steps: Annotated[int, Field(ge=3)] = 4000

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.delays)) < len(self.delays):
            raise ValueError(f"delays are {self.delays}; they must be different whole numbers")
        return self

    def build(self) -> MemoryRecall:
        """A `MemoryRecall` with these settings."""
        return MemoryRecall(self)


class MemoryRecall(Task):
    """Give back the inputs of earlier steps, u(t - k) for each k of `delays`.

    Inputs are independent and uniform in [-1, 1], (1, time, 1); column i of the targets is u(t - delays[i]). Train and
    test are consecutive pieces of one sequence. `dataset` numbers repetitions.

    `evaluate` gives `r2/k`, the squared correlation of output and target for each delay k, and `recalled`, their sum.
    Over all delays from 1 on this sum is the memory capacity of Jaeger 2001 (*Short term memory in echo state
    networks*, GMD report 152), which no reservoir of N nodes can bring above N. Here it is taken as it comes, over
    these delays and with its bias: where there is nothing to remember, r² is about 1 / `test_steps` and not 0, and an
    overfitted readout lowers it.

    Takes a configuration, or the fields of `MemoryRecallConfig` as keywords. Raises `ConfigurationError` for settings
    out of range.
    """

    score = "recalled"
    input_range = (-1.0, 1.0)
    larger_is_better = True
    larger = ("r2",)

    def __init__(self, config: MemoryRecallConfig | None = None, /, **settings: Any) -> None:
        config = MemoryRecallConfig.of(config, settings)
        self.delays = tuple(config.delays)
        before, steps = max(self.delays), config.train_steps + config.test_steps
        u = generator(config.seed, f"memory_recall/{config.dataset}").uniform(-1, 1, before + steps)
        targets = np.stack([u[before - delay :][:steps] for delay in self.delays], axis=1)
        self.train, self.test = in_two(u[before:], targets, config.train_steps)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, delays) for the test split; the class describes the metrics.

        `arrays` are `delays` and `r2` (delays,).

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        r2 = correlations(checked_outputs(outputs, self.test)[0], self.test.targets[0].astype(np.float64)) ** 2
        metrics = {f"r2/{delay}": float(value) for delay, value in zip(self.delays, r2, strict=True)}
        return Evaluation({"recalled": float(r2.sum()), **metrics}, {"delays": np.array(self.delays), "r2": r2})

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """r² for some delays, evenly chosen where there are many, and the sum over all."""
        models = by_model(rows)
        delays = sorted({int(delay) for runs in models.values() for delay in runs[0].evaluation.arrays["delays"]})
        at = np.linspace(0, len(delays) - 1, min(_COLUMNS, len(delays))).round().astype(int)
        shown = [delays[place] for place in at]
        body = []
        for name, runs in models.items():
            found = [metric_values(runs, f"r2/{delay}") for delay in shown]
            cells = [f"{values.mean():.3f}" if len(values) else "–" for values in found]
            body.append([name, str(len(runs)), mean_and_spread(runs, "recalled", ".2f"), *cells])
        header = ["model", "runs", "sum of r²", *(f"k = {delay}" for delay in shown)]
        return [Table("Recall of u(t - k)", header, body, "r² is the squared correlation of output and target.")]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """r² against delay."""
        return {"recall": recall_figure(rows, "recalled")}
