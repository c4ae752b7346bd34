"""The nonlinear autoregressive moving average system NARMA10 (Atiya & Parlos 2000) and its other orders."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import at_least
from reservoir_hw.tasks.narma import report
from reservoir_hw.tasks.prediction.report import PIECE
from reservoir_hw.tasks.series import nmse, one_sequence
from reservoir_hw.tasks.task import Evaluation, OutputScale, Row, Table, Task, checked_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

ORDERS = (3, 20)
"""Smallest and largest order. In the literature, order 2 is an equation of another form."""

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

    Raises `ConfigurationError` for arguments out of range, and if one sequence after the other diverges.
    """

    def __init__(
        self,
        order: int = 10,
        dataset: int = 0,
        seed: int = 0,
        washout_steps: int = 100,
        train_steps: int = 2000,
        test_steps: int = 2000,
    ) -> None:
        if not ORDERS[0] <= order <= ORDERS[1]:
            raise ConfigurationError(
                f"order is {order}; it lies between {ORDERS[0]} and {ORDERS[1]}. Order 2 of the literature is another "
                "equation, and above 20 the system saturates."
            )
        at_least(
            dataset=(dataset, 0),
            seed=(seed, 0),
            washout_steps=(washout_steps, 0),
            train_steps=(train_steps, 1),
            test_steps=(test_steps, 2),
        )
        self.order = order
        steps = washout_steps + train_steps + test_steps
        inputs, targets = self._draw(seed, dataset, steps)
        train, test = slice(washout_steps, steps - test_steps), slice(steps - test_steps, steps)
        self.train, self.test = (one_sequence(inputs[part], targets[part]) for part in (train, test))

    def _draw(self, seed: int, dataset: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
        for attempt in range(_ATTEMPTS):
            random = generator(seed, f"narma/{self.order}/{dataset}/{attempt}")
            # Rounded first: the targets belong to exactly the inputs that a reservoir gets.
            inputs = random.uniform(0.0, 0.5, steps).astype(np.float32)
            targets = narma_series(inputs, self.order)
            if np.isfinite(targets).all():
                self.redrawn = attempt
                return inputs, targets
            log.warning(
                "narma: data set %d of seed %d diverged after %d steps and is drawn again",
                dataset,
                seed,
                np.count_nonzero(np.isfinite(targets)),
            )
        raise ConfigurationError(
            f"the system of order {self.order} diverged in {_ATTEMPTS} sequences of {steps} steps. Take fewer steps, "
            "or more data sets instead of long ones."
        )

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, 1) for the test split; the class describes the metrics.

        `arrays` are `piece/targets` and `piece/outputs`, the first 200 steps of the test, and `redrawn` ().

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        del scale
        outputs = checked_outputs(outputs, self.test)
        error = nmse(outputs, self.test.targets)
        piece = slice(PIECE)
        return Evaluation(
            {"nrmse": math.sqrt(error), "nmse": error},
            {
                "piece/targets": self.test.targets[0, piece, 0],
                "piece/outputs": outputs[0, piece, 0],
                "redrawn": np.array(self.redrawn),
            },
        )

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """NRMSE and NMSE by model, over the data sets, for order 10 with published values below."""
        return report.tables(rows, self.order)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Outputs beside targets with their error, and the NMSE of every run."""
        return report.figures(rows, self.order)
