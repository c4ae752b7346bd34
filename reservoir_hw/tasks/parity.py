"""Delayed parity of the last bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from reservoir_hw.core.figure_style import colours, panels
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks import report
from reservoir_hw.tasks.prediction.task import nmse
from reservoir_hw.tasks.task import Evaluation, OutputScale, RepeatedConfig, Row, Table, Task, checked_outputs, in_two

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ---- Error rates, and how far the outputs for the two answers are apart, as table and figures.


_SHOWN = 6
_BINS = 80


def _outputs_figure(models: report.Models) -> Figure:
    """Histograms of the arrays `outputs/0` and `outputs/1`, the outputs for an even and for an odd number."""
    # Where nothing is mistaken there is little to see.
    mistaken = {name: runs for name, runs in models.items() if report.metric_values(runs, "error_rate").any()}
    shown, which = report.best(mistaken or models, "error_rate", _SHOWN)
    figure, grid = panels(7.5, 1.0 + 1.3 * len(shown), len(shown), 1, sharex=True, squeeze=False)
    for axes, (name, runs) in zip(grid[:, 0], shown.items(), strict=True):
        groups = [np.concatenate([run.evaluation.arrays[f"outputs/{answer}"] for run in runs]) for answer in (0, 1)]
        # The middle 99.8 %: single outliers would squeeze the rest.
        low, high = np.percentile(np.concatenate(groups), [0.1, 99.9])
        bins = np.linspace(low, high, _BINS)
        for group, answer, colour in zip(groups, ("even", "odd"), colours(3)[::2], strict=True):
            axes.hist(group, bins, color=colour, alpha=0.6, label=f"right answer: {answer}")
        axes.axvline(0.0, color="crimson", linewidth=1)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_yticks([])
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    grid[-1, 0].set_xlabel("output (line: where the answer changes)")
    remark = f"\n({which[2:]} that make mistakes)" if which else ""
    figure.suptitle(f"Outputs by the right answer: what overlaps is what is mistaken{remark}")
    return figure


# ---- Delayed parity of the last bits; of two bits it is the exclusive or.


class ParityConfig(RepeatedConfig):
    """Say whether an odd number of the last bits is set; of two bits, their exclusive or."""

    kind: Literal["parity"]
    bits: PositiveInt = 2
    delay: NonNegativeInt = Field(default=0, description="steps from the last of the bits to the answer")
    train_steps: PositiveInt = 2000
    test_steps: Annotated[int, Field(ge=2)] = 5000

    def build(self) -> Parity:
        """A `Parity` with these settings."""
        return Parity(self)


class Parity(Task):
    """Say whether an odd number of `bits` consecutive bits is set, `delay` steps after the last of them.

        y(t) = b(t - delay) ⊕ b(t - delay - 1) ⊕ ... ⊕ b(t - delay - bits + 1)

    (Bertschinger & Natschläger 2004, Neural Computation 16:1413, PAR_n). Bits are independent and equally likely. They
    enter as -1 and 1, (1, time, 1), and the targets are -1 for an even and 1 for an odd number. `bits: 2` is the
    (temporal) exclusive or, 1 is recall. No linear function of the bits, however far back, is better than guessing:
    it takes nonlinearity and memory at once.

    `evaluate` takes the sign of each output and gives `error_rate` with the ends of its 95 % interval,
    `error_rate/low` and `/high` (Wilson 1927; of the chance in the test alone), and `nmse`, the mean squared error over
    the variance of the targets. Guessing gives 0.5 and 1. `dataset` numbers repetitions.

    Takes a configuration, or the fields of `ParityConfig` as keywords. Raises `ConfigurationError` for settings out of
    range.
    """

    score = "error_rate"
    input_range = (-1.0, 1.0)
    smaller = ("nmse",)

    def __init__(self, config: ParityConfig | None = None, /, **settings: Any) -> None:
        config = ParityConfig.of(config, settings)
        bits, delay = config.bits, config.delay
        before, steps = delay + bits - 1, config.train_steps + config.test_steps
        drawn = generator(config.seed, f"parity/{config.dataset}").integers(2, size=before + steps, dtype=np.int8)
        odd = np.bitwise_xor.reduce([drawn[before - delay - bit :][:steps] for bit in range(bits)])
        self.train, self.test = in_two(2 * drawn[before:] - 1, 2 * odd - 1, config.train_steps)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, 1) for the test split; the class describes the metrics.

        `arrays` are `errors` and `trials` (), and `outputs/0` and `outputs/1`, the outputs (n,) for an even and for
        an odd number.

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs = checked_outputs(outputs, self.test)
        odd = self.test.targets > 0
        found = report.counted((outputs > 0) != odd)
        found.metrics["nmse"] = nmse(outputs, self.test.targets)
        found.arrays.update({"outputs/0": outputs[~odd], "outputs/1": outputs[odd]})
        return found

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Error rates by model, data sets pooled."""
        return [report.error_table(report.by_model(rows), "Parity", "answers", ["nmse"])]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Error rates, and how far the outputs for the two answers are apart."""
        models = report.by_model(rows)
        varied = [name for name in ("bits", "delay") if all(f"task.{name}" in row.point for row in rows)]
        if varied:
            rates = report.error_curves(rows, varied[0], "answers", 0.5)
        else:
            rates = report.error_figure(models, "answers", 0.5)
        return {"error_rate": rates, "outputs": _outputs_figure(models)}
