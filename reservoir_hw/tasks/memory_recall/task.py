"""Recall of earlier inputs: how long a reservoir remembers, and how well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import at_least
from reservoir_hw.tasks.memory_recall import report
from reservoir_hw.tasks.series import models, one_sequence
from reservoir_hw.tasks.task import Evaluation, OutputScale, Row, Table, Task, checked_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MemoryRecall(Task):
    """Give back the inputs of earlier steps, u(t - k) for each k of `delays`.

    Inputs are independent and uniform in [-1, 1], (1, time, 1); column i of the targets is u(t - delays[i]). Train and
    test are consecutive pieces of one sequence. `dataset` numbers repetitions.

    `evaluate` gives `r2/k`, the squared correlation of output and target for each delay k, and `recalled`, their sum.
    Over all delays from 1 on this sum is the memory capacity of Jaeger 2001 (*Short term memory in echo state
    networks*, GMD report 152), which no reservoir of N nodes can bring above N. Here it is taken as it comes, over
    these delays and with its bias: where there is nothing to remember, r² is about 1 / `test_steps` and not 0, and an
    overfitted readout lowers it.

    Raises `ConfigurationError` for arguments out of range.
    """

    def __init__(
        self,
        delays: Sequence[int] = tuple(range(21)),
        dataset: int = 0,
        seed: int = 0,
        train_steps: int = 4000,
        test_steps: int = 4000,
    ) -> None:
        at_least(dataset=(dataset, 0), seed=(seed, 0), train_steps=(train_steps, 1), test_steps=(test_steps, 3))
        self.delays = tuple(delays)
        if not self.delays or min(self.delays) < 0 or len(set(self.delays)) < len(self.delays):
            raise ConfigurationError(f"delays are {list(self.delays)}; they must be different whole numbers from 0 on.")
        before, steps = max(self.delays), train_steps + test_steps
        u = generator(seed, f"memory_recall/{dataset}").uniform(-1, 1, before + steps)
        inputs = u[before:]
        targets = np.stack([u[before - delay :][:steps] for delay in self.delays], axis=1)
        self.train = one_sequence(inputs[:train_steps], targets[:train_steps])
        self.test = one_sequence(inputs[train_steps:], targets[train_steps:])

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, delays) for the test split; the class describes the metrics.

        `arrays` are `delays` and `r2` (delays,).

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        del scale
        outputs = checked_outputs(outputs, self.test)[0]
        targets = self.test.targets[0].astype(np.float64)
        outputs, targets = outputs - outputs.mean(axis=0), targets - targets.mean(axis=0)
        product, power = (outputs * targets).sum(axis=0), (outputs**2).sum(axis=0) * (targets**2).sum(axis=0)
        # A constant output recalls nothing.
        r2 = np.divide(product**2, power, out=np.zeros_like(power), where=power > 0)
        metrics = {f"r2/{delay}": float(value) for delay, value in zip(self.delays, r2, strict=True)}
        return Evaluation({"recalled": float(r2.sum()), **metrics}, {"delays": np.array(self.delays), "r2": r2})

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """r² by delay, and their sum, as means over the runs."""
        return [report.table(models(rows))]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """r² against delay, one curve for each model."""
        return {"recall": report.figure(models(rows))}
