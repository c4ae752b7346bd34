"""A linear filter of the last inputs: a shift register with a trained readout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field, NonNegativeFloat, PositiveInt

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.tasks.task import Evaluation, Task

# Numbers in one chunk of registers: bounds the memory, which `taps` copies of the inputs would need.
_CHUNK = 1 << 20


class FirConfig(BaselineConfig):
    """Linear regression on the last inputs: a shift register without any reservoir.

    y(t) = b + Σ_{k=0}^{taps-1} W_k u(t - k): what a reservoir with a linear memory of `taps` steps and nothing else
    could do. It answers for the same targets from the same inputs as a reservoir does, so a target that lags behind
    the inputs lags for both. The penalty is there for inputs that depend on one another (one-hot codes), and does
    nothing else when it is small.
    """

    kind: Literal["fir"]
    named = "fir({taps})"
    taps: PositiveInt = Field(default=13, description="how many inputs the register holds, the present one included")
    alpha: NonNegativeFloat = Field(default=1e-6, description="the penalty, on standardised inputs")

    def evaluate(self, task: Task) -> Evaluation:
        """Of the test, which continues the training: the register then holds the end of the training inputs.

        So is the reservoir of an experiment driven.
        """
        outputs = self.filtered(task.train.inputs, task.train.targets, task.test.inputs)
        return task.evaluate(outputs, "scores")

    def filtered(self, inputs: np.ndarray, targets: np.ndarray, test: np.ndarray) -> np.ndarray:
        """Outputs (batch, time, outputs) for `test` (batch, time, inputs), in its dtype, learned from the others.

        Training begins when the register is full. Where the batch of the test is another one, each of its sequences
        begins after the first of the training. Raises `ConfigurationError` if there are fewer steps than taps,
        otherwise as `RidgeReadout`.
        """
        steps, before = inputs.shape[1], self.taps - 1
        if steps <= self.taps:
            raise ConfigurationError(f"{self.taps} taps need more than the {steps} training steps that there are.")
        readout = RidgeReadout(self.alpha, washout=before)
        for part, register in self._registers(np.zeros_like(inputs[:, :before]), inputs):
            readout.partial_fit(register, targets[:, part])
        readout.solve()
        last = inputs[:, steps - before :]
        if len(last) != len(test):
            last = np.repeat(last[:1], len(test), axis=0)
        return np.concatenate([readout.predict(register) for _, register in self._registers(last, test)], axis=1)

    def _registers(self, before: np.ndarray, inputs: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Consecutive steps with what the register then holds, (batch, steps, taps × inputs), `before` first of all."""
        batch, steps, channels = inputs.shape
        longer = np.concatenate([before, inputs], axis=1)
        size = max(1, _CHUNK // (batch * channels * self.taps))
        for start in range(0, steps, size):
            part = slice(start, min(start + size, steps))
            windows = sliding_window_view(longer[:, part.start : part.stop + self.taps - 1], self.taps, axis=1)
            yield part, windows.reshape(batch, part.stop - part.start, channels * self.taps)
