"""Readouts as an experiment file names them."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError


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


class OnlineReadout(Readout, Protocol):
    """A readout that can go on learning while it answers."""

    def predict_then_update(
        self, states: Any, targets: Any, inputs: Any = None, *, new_sequence: bool = False
    ) -> np.ndarray:
        """Outputs (batch, time, outputs), each computed before the target of its step was learned."""
        ...


class ReadoutConfig(Config):
    """What every kind of readout can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    kind: Any

    @abstractmethod
    def build(self) -> Readout:
        """Make the readout, untrained. Heavy imports belong in here."""

    @property
    def keeps_learning(self) -> bool:
        """Whether what `build` makes is an `OnlineReadout` that shall go on learning in the test."""
        return False

    def check_outputs(self, outputs: int) -> None:
        """Raise `ConfigurationError` if these settings cannot serve a task with so many outputs."""
        del outputs

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise `ConfigurationError` if these settings cannot learn targets (batch, time, outputs), NaN if unknown."""
        del targets


class LinearConfig(ReadoutConfig):
    """What every linear readout can be told.

    Each kind declares its own parameters in a class derived from this one, beside the readout. Both the section of an
    experiment file and the arguments of the constructor are checked by that class.
    """

    standardise: bool = Field(default=True, description="the penalty or the rate acts on standardised states")
    bias: bool = True
    input_connection: bool = Field(default=False, description="the readout sees the inputs too")
    washout: NonNegativeInt = Field(default=0, description="leading steps of each sequence that are not learned")

    def check_targets(self, targets: np.ndarray) -> None:
        """Targets that are not known from the first step on need a washout."""
        known = np.flatnonzero(~np.isnan(targets).any(axis=(0, 2)))
        steps = int(known[0]) if len(known) else targets.shape[1]
        if steps > self.washout:
            raise ConfigurationError(
                f"washout is {self.washout}, but the targets of the first {steps} steps are not known (they ask for "
                f"what came before the data); set readout.washout to at least {steps}"
            )

    def _arguments(self) -> dict[str, Any]:
        """Those of the readout's constructor."""
        return self.model_dump(exclude={"kind", "keep_learning"})
