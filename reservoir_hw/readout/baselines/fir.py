"""A linear filter of the last inputs: a shift register with a trained readout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field, NonNegativeFloat, PositiveInt

from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.linear.configuration import NotSolved
from reservoir_hw.readout.linear.ridge import RidgeReadout

# Numbers in one chunk of registers: bounds the memory, which `taps` copies of the inputs would need.
_CHUNK = 1 << 20


class FirConfig(BaselineConfig):
    """Linear regression on the last inputs: a shift register without any reservoir."""

    kind: Literal["fir"]
    taps: PositiveInt = Field(default=13, description="how many inputs the register holds, the present one included")
    alpha: NonNegativeFloat = Field(default=1e-6, description="the penalty, on standardised inputs")

    @property
    def label(self) -> str:
        """fir(taps)."""
        return f"fir({self.taps})"

    def build(self) -> FirBaseline:
        """A `FirBaseline` with these settings."""
        return FirBaseline(self.taps, self.alpha)


class FirBaseline:
    """Linear regression on the last `taps` inputs, present one included, with a constant.

    y(t) = b + Σ_{k=0}^{taps-1} W_k u(t - k): what a reservoir with a linear memory of `taps` steps and nothing else
    could do. It answers for the same targets from the same inputs as a reservoir does, so a target that lags behind
    the inputs lags for both.

    Training begins when the register is full. The test continues the training: the register then holds the end of
    the training inputs, as the reservoir of an experiment has been driven with them.

    `alpha` is the penalty of `RidgeReadout`, on standardised inputs; it is there for inputs that depend on one another
    (one-hot codes) and does nothing else when it is small.

    Raises `ConfigurationError` for arguments out of range.
    """

    scale: Literal["scores", "probabilities"] = "scores"

    def __init__(self, taps: int = 13, alpha: float = 1e-6) -> None:
        given = {"kind": "fir", "taps": taps, "alpha": alpha}
        declared = validate(FirConfig, Document(given, {(): "FirBaseline"}))
        self.taps = declared.taps
        self._readout = RidgeReadout(declared.alpha, washout=self.taps - 1)
        self._last: np.ndarray | None = None

    def fit(self, inputs: np.ndarray, targets: np.ndarray, symbols: np.ndarray | None = None) -> Self:
        """Learn from inputs (batch, time, inputs) and targets (batch, time, outputs).

        Raises `ConfigurationError` if there are fewer steps than taps, otherwise as `RidgeReadout.fit`.
        """
        del symbols
        inputs = _checked(inputs)
        steps = inputs.shape[1]
        if steps <= self.taps:
            raise ConfigurationError(f"{self.taps} taps need more than the {steps} training steps that there are.")
        empty = np.zeros_like(inputs[:, : self.taps - 1])
        self._readout.reset()
        for part, register in self._registers(empty, inputs):
            self._readout.partial_fit(register, targets[:, part])
        self._readout.solve()
        self._last = inputs[:, steps - self.taps + 1 :].copy()
        return self

    def predict(self, inputs: np.ndarray, symbols: np.ndarray | None = None) -> np.ndarray:
        """Outputs (batch, time, outputs) for inputs (batch, time, inputs), in the dtype of the inputs.

        Where the batch is not that of the training, every sequence begins after the first of the training.
        Raises `NotSolved` before `fit`, `ShapeError` for other shapes.
        """
        del symbols
        if self._last is None:
            raise NotSolved("FirBaseline.predict was called before fit: call fit(inputs, targets) first.")
        inputs = _checked(inputs)
        if inputs.shape[2] != self._last.shape[2]:
            raise ShapeError(f"inputs have {inputs.shape[2]} channels; the filter was fitted to {self._last.shape[2]}.")
        last = self._last
        if len(last) != len(inputs):
            last = np.repeat(last[:1], len(inputs), axis=0)
        parts = [self._readout.predict(register) for _, register in self._registers(last, inputs)]
        return np.concatenate(parts, axis=1)

    def _registers(self, before: np.ndarray, inputs: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Consecutive steps with what the register then holds, (batch, steps, taps × inputs), `before` first of all."""
        batch, steps, channels = inputs.shape
        longer = np.concatenate([before, inputs], axis=1)
        size = max(1, _CHUNK // (batch * channels * self.taps))
        for start in range(0, steps, size):
            part = slice(start, min(start + size, steps))
            windows = sliding_window_view(longer[:, part.start : part.stop + self.taps - 1], self.taps, axis=1)
            yield part, windows.reshape(batch, part.stop - part.start, channels * self.taps)


def _checked(inputs: np.ndarray) -> np.ndarray:
    inputs = np.asarray(inputs)
    if inputs.ndim != 3 or 0 in inputs.shape:
        raise ShapeError(f"inputs have shape {inputs.shape}; (batch, time, inputs), none of them 0, is needed.")
    return inputs
