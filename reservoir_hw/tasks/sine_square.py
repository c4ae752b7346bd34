"""Sine or square: which wave the input is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from reservoir_hw.core.figure_style import colours, one_panel, panels
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.prediction.task import nmse
from reservoir_hw.tasks.report import Models, best, by_model, counted, error_figure, error_table
from reservoir_hw.tasks.task import Evaluation, OutputScale, RepeatedConfig, Row, Table, Task, checked_outputs, in_two

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---- Waves and the answers to them, as figures.


PERIODS = 12
"""Of the test, that the figure shows."""

_SHOWN = 4


def _answers_figure(models: Models) -> Figure:
    shown, which = best(models, "error_rate", _SHOWN)
    figure, (first, *grid) = panels(9.0, 1.8 + 1.4 * len(shown), 1 + len(shown), 1, sharex=True)
    arrays = next(iter(shown.values()))[0].evaluation.arrays
    first.plot(arrays["piece/inputs"], color="0.3", linewidth=1, marker=".", markersize=4)
    first.set_title(f"input{which}", fontsize=10, loc="left")
    for axes, (name, runs), colour in zip(grid, shown.items(), colours(len(shown)), strict=True):
        arrays = runs[0].evaluation.arrays
        axes.plot(arrays["piece/targets"], color="0.6", linewidth=2.5, drawstyle="steps-mid", label="right answer")
        axes.plot(arrays["piece/outputs"], color=colour, linewidth=1, marker=".", markersize=4, label="output")
        axes.axhline(0.5, color="crimson", linewidth=0.8, linestyle="--", label="threshold")
        axes.set_yticks([0, 1], ["sine", "square"])
        axes.set_ylim(-0.45, 1.45)
        axes.set_title(name, fontsize=10, loc="left")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    grid[-1].set_xlabel("step of the test")
    return figure


def _phase_figure(models: Models) -> Figure:
    figure, axes = one_panel(7.5, 3.6)
    for (name, runs), colour in zip(models.items(), colours(len(models)), strict=True):
        by_phase = np.mean([run.evaluation.arrays["by_phase"] for run in runs], axis=0)
        axes.plot(range(len(by_phase)), by_phase, "o-", color=colour, markersize=4, linewidth=1, label=name)
    axes.set(ylim=(-0.005, None), xlabel="step of the period", ylabel="error rate")
    axes.set_title("Where in a period the answers are wrong", fontsize=11)
    axes.grid(axis="y", color="0.92")
    figure.legend(loc="outside right center", frameon=False)
    return figure


def waves(kinds: np.ndarray, period_steps: int = 12) -> np.ndarray:
    """One period for each of `kinds` (0: sine, 1: square), one after the other: (periods · period_steps,), float64.

    sin(2π i / period_steps), or 1 in the first half of the period and -1 in the second.
    """
    phase = np.arange(period_steps)
    sine, square = np.sin(2 * np.pi * phase / period_steps), np.where(phase < period_steps / 2, 1.0, -1.0)
    return np.stack([sine, square])[kinds].reshape(-1)


class SineSquareConfig(RepeatedConfig):
    """Say at every step whether the input is a sine or a square wave (Paquot et al. 2012)."""

    kind: Literal["sine_square"]
    period_steps: Annotated[int, Field(ge=4, multiple_of=2)] = 12
    train_periods: PositiveInt = 100
    test_periods: Annotated[int, Field(ge=8)] = 400

    def build(self) -> SineSquare:
        """A `SineSquare` with these settings."""
        return SineSquare(self)


class SineSquare(Task):
    """Say at every step whether the input is a sine or a square wave.

    The input is a random sequence of whole periods of either, equally likely, of `period_steps` steps each, (1, time,
    1); the target is 0 during a sine and 1 during a square wave (Paquot et al. 2012, with 12 steps). Without noise
    this asks for little memory and much nonlinearity: the values 1 and -1 of a square wave lie on both sides of a
    sine's, and where a sine reaches them, in a quarter of its period, only the steps before tell the two apart.

    `evaluate` takes an output above 0.5 for a square wave and gives

    - `error_rate`, the share of steps with the wrong answer, with the ends of its 95 % interval, `error_rate/low` and
      `/high` (Wilson 1927);
    - `error_rate/period`, the share of periods whose mean output is on the wrong side;
    - `nmse`, the mean squared error over the variance of the targets.

    Guessing gives 0.5, 0.5 and 1. `dataset` numbers repetitions.

    Takes a configuration, or the fields of `SineSquareConfig` as keywords. Raises `ConfigurationError` for settings
    out of range.
    """

    score = "error_rate"
    input_range = (-1.0, 1.0)
    smaller = ("nmse",)

    def __init__(self, config: SineSquareConfig | None = None, /, **settings: Any) -> None:
        config = SineSquareConfig.of(config, settings)
        self.period_steps = self.piece_steps = config.period_steps
        periods = config.train_periods + config.test_periods
        kinds = generator(config.seed, f"sine_square/{config.dataset}").integers(2, size=periods)
        inputs, targets = waves(kinds, self.period_steps), np.repeat(kinds, self.period_steps)
        self.train, self.test = in_two(inputs, targets, config.train_periods * self.period_steps)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, 1) for the test split; the class describes the metrics.

        `arrays` are `errors` and `trials` (), `piece/inputs`, `piece/targets` and `piece/outputs`, the first 12
        periods of the test, and `by_phase` (period_steps,), the error rate at each step of a period.

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs = checked_outputs(outputs, self.test)
        square = self.test.targets > 0.5
        wrong = ((outputs > 0.5) != square).reshape(-1, self.period_steps)
        whole = outputs.reshape(wrong.shape).mean(axis=1) > 0.5
        piece = slice(PERIODS * self.period_steps)
        found = counted(wrong)
        found.metrics["error_rate/period"] = float(np.mean(whole != square.reshape(wrong.shape)[:, 0]))
        found.metrics["nmse"] = nmse(outputs, self.test.targets)
        for name, values in (("inputs", self.test.inputs), ("targets", self.test.targets), ("outputs", outputs)):
            found.arrays[f"piece/{name}"] = values[0, piece, 0]
        found.arrays["by_phase"] = wrong.mean(axis=0)
        return found

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Error rates by model, data sets pooled."""
        return [error_table(by_model(rows), "Sine or square wave", "steps", ["error_rate/period", "nmse"])]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Answers beside waves, error rates, and errors by step of the period."""
        models = by_model(rows)
        return {
            "answers": _answers_figure(models),
            "error_rate": error_figure(models, "steps", 0.5),
            "error_by_step": _phase_figure(models),
        }
