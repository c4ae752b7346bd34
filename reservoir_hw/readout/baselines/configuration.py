"""Baselines as an experiment file names them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.task import Task


class Baseline(Protocol):
    """What an experiment asks of a baseline: to learn from and to answer for whole splits.

    Inputs are (batch, time, inputs), targets and outputs (batch, time, outputs), symbols (batch, time).
    """

    scale: Literal["scores", "probabilities"]

    def fit(self, inputs: np.ndarray, targets: np.ndarray, symbols: np.ndarray | None) -> Any:
        """Learn from the training split."""

    def predict(self, inputs: np.ndarray, symbols: np.ndarray | None) -> np.ndarray:
        """Outputs for a split."""
        ...


class BaselineConfig(Config):
    """What every kind of baseline can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    kind: Any

    @abstractmethod
    def build(self) -> Baseline:
        """Make the baseline, untrained."""

    def check_task(self, task: Task) -> None:
        """Raise `ConfigurationError` where this baseline cannot be run on this task."""
        for what, there in (
            ("in a closed loop", task.closed_loop),
            ("with sequences of different lengths", not task.closed_loop and task.train.lengths is not None),
        ):
            if there:
                raise ConfigurationError(f"baselines cannot be run {what}; remove them")

    @property
    def label(self) -> str:
        """A short name for tables and figures."""
        return self.kind


class _NGramConfig(BaselineConfig):
    smoothing: PositiveFloat = Field(default=1.0, description="added to every count")


class BigramConfig(_NGramConfig):
    """The next symbol given the present one (symbolic tasks)."""

    kind: Literal["bigram"]

    def build(self) -> Baseline:
        """An `NGramBaseline` of order 2."""
        from reservoir_hw.readout.baselines.ngram import NGramBaseline

        return NGramBaseline(2, self.smoothing)


class TrigramConfig(_NGramConfig):
    """The next symbol given the present and the last one (symbolic tasks)."""

    kind: Literal["trigram"]

    def build(self) -> Baseline:
        """An `NGramBaseline` of order 3."""
        from reservoir_hw.readout.baselines.ngram import NGramBaseline

        return NGramBaseline(3, self.smoothing)


class FirConfig(BaselineConfig):
    """Linear regression on the last inputs: a shift register without any reservoir."""

    kind: Literal["fir"]
    taps: PositiveInt = Field(default=13, description="how many inputs the register holds, the present one included")
    alpha: NonNegativeFloat = Field(default=1e-6, description="the penalty, on standardised inputs")

    @property
    def label(self) -> str:
        """fir(taps)."""
        return f"fir({self.taps})"

    def build(self) -> Baseline:
        """A `FirBaseline` with these settings."""
        from reservoir_hw.readout.baselines.fir import FirBaseline

        return FirBaseline(self.taps, self.alpha)
