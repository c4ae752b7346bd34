"""Readouts as an experiment file names them."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from reservoir_hw.configuration import Config
from reservoir_hw.errors import ConfigurationError


class Readout(Protocol):
    """What an experiment asks of a readout. States are (batch, time, nodes), targets (batch, time, outputs)."""

    input_connection: bool
    repetitions_: int

    @property
    def report_(self) -> dict[str, Any]:
        """What to know about the last fit, for the provenance."""
        ...

    def partial_fit(self, states: Any, targets: Any, inputs: Any = None, *, new_sequence: bool = False) -> Any:
        """Learn from one more chunk, of the same sequences or of new ones; `inputs` come if `input_connection`."""

    def solve(self) -> Any:
        """Finish learning."""

    def predict(self, states: Any, inputs: Any = None) -> np.ndarray:
        """Outputs (batch, time, outputs)."""
        ...

    def save(self, path: str | Path) -> None:
        """Write the trained weights to a safetensors file."""


class ReadoutConfig(Config):
    """What every kind of readout can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    kind: Any

    @abstractmethod
    def build(self) -> Readout:
        """Make the readout, untrained. Heavy imports belong in here."""

    def check_outputs(self, outputs: int) -> None:
        """Raise `ConfigurationError` if these settings cannot serve a task with so many outputs."""
        del outputs

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise `ConfigurationError` if these settings cannot learn targets (batch, time, outputs), NaN if unknown."""
        del targets


class RidgeConfig(ReadoutConfig):
    """Ridge regression, learned in one pass over the states."""

    kind: Literal["ridge"]
    alpha: NonNegativeFloat | list[NonNegativeFloat] | Literal["gcv", "kfold"] = Field(
        default=1e-6, description="the penalty, one for each output, or how to find it"
    )
    solver: Literal["normal", "qr"] = Field(default="normal", description="qr is slower and accurate at a tiny alpha")
    standardise: bool = Field(default=True, description="the penalty acts on standardised states")
    bias: bool = True
    input_connection: bool = Field(default=False, description="the readout sees the inputs too")
    washout: NonNegativeInt = Field(default=0, description="leading steps of each sequence that are not learned")
    alphas: Annotated[list[PositiveFloat], Field(min_length=1)] | None = Field(
        default=None, description="grid for the searches"
    )
    per_output: bool = Field(default=False, description="the searches choose an alpha for each output")
    folds: Annotated[int, Field(ge=2)] = 5
    block_steps: PositiveInt = Field(default=100, description="kfold: consecutive steps that stay together")

    def check_outputs(self, outputs: int) -> None:
        """A list of alphas needs one for each output."""
        if isinstance(self.alpha, list) and len(self.alpha) != outputs:
            raise ConfigurationError(f"alpha has {len(self.alpha)} values, the task has {outputs} outputs")

    def check_targets(self, targets: np.ndarray) -> None:
        """Targets that are not known from the first step on need a washout."""
        known = np.flatnonzero(~np.isnan(targets).any(axis=(0, 2)))
        steps = int(known[0]) if len(known) else targets.shape[1]
        if steps > self.washout:
            raise ConfigurationError(
                f"washout is {self.washout}, but the targets of the first {steps} steps are not known (they ask for "
                f"what came before the data); set readout.washout to at least {steps}"
            )

    def build(self) -> Readout:
        """A `RidgeReadout` with these settings."""
        from reservoir_hw.readout.ridge import RidgeReadout

        return RidgeReadout(**self.model_dump(exclude={"kind"}))
