"""The nonlinear autoregressive moving average system (NARMA)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.prediction.report import series_figures
from reservoir_hw.tasks.prediction.task import series_evaluation
from reservoir_hw.tasks.report import about_spread, by_model, mean_and_spread
from reservoir_hw.tasks.task import Evaluation, Figures, OutputScale, RepeatedConfig, Row, Table, Task, in_two

# ---- Errors on NARMA that papers print.


ORDER_10 = (
    ("linear shift register (Appeltant et al. 2011)", "0.4", "0.16"),
    ("optoelectronic loop, 50 nodes (Paquot et al. 2012)", "", "0.168 ± 0.015"),
)
"""What, NRMSE, NMSE. The loop's figure is that of the experiment and of its simulation."""


# ---- The nonlinear autoregressive moving average system NARMA10 (Atiya & Parlos 2000) and its other orders.


log = logging.getLogger(__name__)

# No sequence of 8 million steps that stayed finite ever went above 1.3.
_DIVERGED = 2.0
_ATTEMPTS = 100


def narma_series(inputs: np.ndarray, order: int = 10) -> np.ndarray:
    """The system's answer y(t + 1) to `inputs` u(0) ... u(t), from rest: (time,) -> (time,), float64.

    Up to order 10, with n for the order (Atiya & Parlos 2000, eq. 86, where n = 10):

        y(t + 1) = 0.3 y(t) + 0.05 y(t) Σ_{i=0}^{n-1} y(t - i) + 1.5 u(t - n + 1) u(t) + 0.1

    Above, the sum grows and the system with it, so the bounded form of Rodan & Tiňo 2011 (eq. 6, where n = 20):

        y(t + 1) = tanh(0.3 y(t) + 0.05 y(t) Σ_{i=0}^{n-1} y(t - i) + 1.5 u(t - n + 1) u(t) + 0.01)

    What lies before the first input is 0. Element t of the result is y(t + 1): it depends on no later input than
    u(t). From the step at which the system diverges on, the result is infinite.
    """
    u = [0.0] * (order - 1) + np.asarray(inputs, dtype=np.float64).tolist()
    y = [0.0] * order
    bounded = order > 10
    for t in range(len(u) - order + 1):
        following = 0.3 * y[-1] + 0.05 * y[-1] * sum(y[-order:]) + 1.5 * u[t] * u[t + order - 1]
        following = math.tanh(following + 0.01) if bounded else following + 0.1
        if following > _DIVERGED:
            y += [math.inf] * (len(u) - order + 1 - t)
            break
        y.append(following)
    return np.array(y[order:])


class NarmaConfig(RepeatedConfig):
    """Emulate the nonlinear system NARMA10 (Atiya & Parlos 2000), or one of another order."""

    kind: Literal["narma"]
    # In the literature, order 2 is an equation of another form; above 20 the system saturates.
    order: Annotated[int, Field(ge=3, le=20)] = Field(default=10, description="steps of memory")
    washout_steps: NonNegativeInt = Field(
        default=100, description="steps from rest that belong to no split; a reservoir's own are `readout.washout`"
    )
    train_steps: PositiveInt = 2000
    test_steps: Annotated[int, Field(ge=2)] = 2000

    def build(self) -> Narma:
        """A `Narma` with these settings."""
        return Narma(self)


class Narma(Task):
    """Emulate a nonlinear system with a memory of `order` steps: NARMA10 by default (`narma_series`).

    Inputs u(t) are uniform in [0, 0.5], (1, time, 1). Row t of the targets is y(t + 1), the value that u(t) is the
    newest input of; this is the usual convention, and causal: nothing beyond row t is needed to know it.

    Train and test are consecutive pieces of one sequence, `train_steps` and `test_steps` long, after
    `washout_steps` in which the system forgets that it started from rest. How many steps a reservoir needs for the
    same is told by `readout.washout`. `dataset` numbers repetitions: each is a sequence of its own.

    Order 10 diverges for some inputs: about once in 250,000 steps (Kubota, Nakajima & Takahashi 2019 look into
    it). A sequence in which that happens is drawn again, which the log and the note of the table say; `redrawn`
    counts it.

    `evaluate` gives `nmse`, the mean squared error over the variance of the test targets, and its root `nrmse`.

    Takes a configuration, or the fields of `NarmaConfig` as keywords. Raises `ConfigurationError` for settings out of
    range, and if one sequence after the other diverges.
    """

    score = "nrmse"
    input_range = (0.0, 0.5)
    smaller = ("nmse",)

    def __init__(self, config: NarmaConfig | None = None, /, **settings: Any) -> None:
        config = NarmaConfig.of(config, settings)
        self.order, washout = config.order, config.washout_steps
        inputs, targets = self._draw(config.seed, config.dataset, washout + config.train_steps + config.test_steps)
        self.train, self.test = in_two(inputs[washout:], targets[washout:], config.train_steps)

    def _draw(self, seed: int, dataset: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
        for attempt in range(_ATTEMPTS):
            random = generator(seed, f"narma/{self.order}/{dataset}/{attempt}")
            # Rounded first: the targets belong to exactly the inputs that a reservoir gets.
            inputs = random.uniform(0.0, 0.5, steps).astype(np.float32)
            targets = narma_series(inputs, self.order)
            finite = np.count_nonzero(np.isfinite(targets))
            if finite == steps:
                self.redrawn = attempt
                return inputs, targets
            about = "narma: data set %d of seed %d diverged after %d steps and is drawn again"
            log.warning(about, dataset, seed, finite)
        raise ConfigurationError(
            f"the system of order {self.order} diverged in {_ATTEMPTS} sequences of {steps} steps. Take fewer steps, "
            "or more data sets instead of long ones."
        )

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, 1) for the test split; the class describes the metrics.

        `arrays` are `piece/targets` and `piece/outputs`, the first 200 steps of the test, `order` () and `redrawn` ().

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        evaluation = series_evaluation(outputs, self.test)
        evaluation.arrays.update(order=np.array(self.order), redrawn=np.array(self.redrawn))
        return evaluation

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table, with published results of order 10 below."""
        body = []
        for name, runs in by_model(rows).items():
            errors = (mean_and_spread(runs, metric) for metric in ("nrmse", "nmse"))
            body.append([name, str(runs[0].evaluation.arrays["order"]), str(len(runs)), *errors])
        if any(cells[1] == "10" for cells in body):
            body += [[f"published: {what}", "10", "", *errors] for what, *errors in ORDER_10]
        note = about_spread(rows)
        if any(row.evaluation.arrays["redrawn"] for row in rows):
            note += " Some sequences diverged and were drawn again."
        return [Table("NARMA", ["model", "order", "runs", "NRMSE", "NMSE"], body, note)]

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Outputs beside targets, and the error of every run."""
        return series_figures(by_model(rows))
