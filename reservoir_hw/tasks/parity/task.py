"""Delayed parity of the last bits; of two bits it is the exclusive or."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import at_least
from reservoir_hw.tasks import classification
from reservoir_hw.tasks.parity.report import outputs_figure
from reservoir_hw.tasks.series import models, nmse, one_sequence
from reservoir_hw.tasks.task import Evaluation, OutputScale, Row, Table, Task, checked_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    Raises `ConfigurationError` for arguments out of range.
    """

    def __init__(
        self,
        bits: int = 2,
        delay: int = 0,
        dataset: int = 0,
        seed: int = 0,
        train_steps: int = 2000,
        test_steps: int = 5000,
    ) -> None:
        at_least(
            bits=(bits, 1),
            delay=(delay, 0),
            dataset=(dataset, 0),
            seed=(seed, 0),
            train_steps=(train_steps, 1),
            test_steps=(test_steps, 2),
        )
        before, steps = delay + bits - 1, train_steps + test_steps
        drawn = generator(seed, f"parity/{dataset}").integers(2, size=before + steps, dtype=np.int8)
        odd = np.bitwise_xor.reduce([drawn[before - delay - bit :][:steps] for bit in range(bits)])
        inputs, targets = 2 * drawn[before:] - 1, 2 * odd - 1
        self.train = one_sequence(inputs[:train_steps], targets[:train_steps])
        self.test = one_sequence(inputs[train_steps:], targets[train_steps:])

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, 1) for the test split; the class describes the metrics.

        `arrays` are `errors` and `trials` (), and `outputs/0` and `outputs/1`, the outputs (n,) for an even and for
        an odd number.

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        del scale
        outputs = checked_outputs(outputs, self.test)
        odd = self.test.targets > 0
        errors = int(np.count_nonzero((outputs > 0) != odd))
        return Evaluation(
            {
                **classification.error_metrics("error_rate", errors, odd.size),
                "nmse": nmse(outputs, self.test.targets),
            },
            {**classification.counts(errors, odd.size), "outputs/0": outputs[~odd], "outputs/1": outputs[odd]},
        )

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Error rates by model, data sets pooled."""
        return [classification.table(models(rows), "Parity", "answers", ["nmse"])]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Error rates, against `bits` or `delay` where one of them varies, and the outputs by the right answer."""
        found = models(rows)
        varied = [name for name in ("bits", "delay") if all(f"task.{name}" in row.point for row in rows)]
        if varied:
            rates = classification.curves(rows, varied[0], "answers", 0.5)
        else:
            rates = classification.figure(found, "answers", 0.5)
        return {"error_rate": rates, "outputs": outputs_figure(found, ("even", "odd"), 0.0)}
