"""What every readout says about itself in an experiment file: the classical ones, language models, classifiers."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError, ReservoirError
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.tasks.task import Task


class NamedConfig(Config):
    """What has a short name for tables and figures. A kind adds `kind: Literal["..."]` and its own fields."""

    kind: Any
    named: ClassVar[str] = ""
    """A short name for tables and figures, with fields in braces; empty where that of the reservoir says enough."""

    @property
    def label(self) -> str:
        """`named`, with the values of this one."""
        return self.named.format_map(dict(self))


class ReadoutConfig(NamedConfig):
    """The base of all readouts. A kind adds `kind: Literal["..."]` and its own fields.

    Derive from `StateReadoutConfig` for a readout that learns from states, from `readout.models.configuration.
    ModelConfig` for a language model, from `ClassifierConfig` beside it for a classifier of sequences.
    """

    trained: ClassVar[Literal["in one pass", "by gradients", "on labels"]]
    """How an experiment trains it: in one pass over the states of the task's series, by gradients on its tokens, or by
    gradients on its sequences and their labels."""
    needs_reservoir: ClassVar[bool] = True
    """Whether an experiment has to name one."""

    @property
    def layers_of_reservoirs(self) -> int:
        """How many layers drive a reservoir: the same one, or each its own."""
        return int(self.needs_reservoir)

    def channels(self, task: Task) -> Channels:
        """What the reservoir is driven with."""
        return task.channels


class GradientReadoutConfig(ReadoutConfig):
    """A model that is trained by gradients, as `training.gradient` says."""

    seed: NonNegativeInt = Field(default=0, description="of the weights before the training")
    training: dict[str, Any] = Field(
        default={}, description="keys of training.gradient that have other values for this model"
    )

    def reservoirs(self, reservoir: ReservoirConfig, channels: Channels) -> list[ReservoirConfig]:
        """The reservoirs to open for a model that drives them with these channels.

        Raises `ConfigurationError` where the section `reservoir` does not fit.
        """
        return []

    def twins(self, channels: Channels) -> list[ReservoirConfig]:
        """The twin to open, or nothing."""
        return []

    def check_gradient(self, reservoir: ReservoirConfig, channels: Channels) -> None:
        """Raise `ConfigurationError` where no gradient can pass, as far as the configuration tells."""


class NotSolved(ReservoirError, RuntimeError):
    """The readout has no weights yet; the message says which method computes them."""


class Readout(Protocol):
    """What an experiment asks of a readout. States are (batch, time, nodes), targets (batch, time, outputs)."""

    input_connection: bool
    repetitions_: int
    takes_tensors: bool
    """Whether states may be torch tensors on any device. A readout that does not say so gets numpy arrays."""

    @property
    def report_(self) -> dict[str, Any]:
        """What to know about the last fit, for the provenance."""
        ...

    def partial_fit(self, states: Any, targets: Any, inputs: Any = None, *, new_sequence: bool = False) -> Any:
        """Learn from one more chunk, of the same sequences or of new ones; `inputs` come if `input_connection`."""

    def solve(self) -> Any:
        """Finish learning."""

    def predict(self, states: Any, inputs: Any = None) -> Any:
        """Outputs (batch, time, outputs); a tensor where the states are one."""
        ...

    def save(self, path: str | Path) -> None:
        """Write the trained weights to a safetensors file."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The trained readout from a file that `save` wrote."""
        ...


class StateReadoutConfig(ReadoutConfig):
    """A readout that learns in one pass over the states of a task's series."""

    trained = "in one pass"
    gathers: ClassVar[bool] = False
    """Whether its readout holds the states of the whole training in memory (a `GatheredReadout`)."""

    @abstractmethod
    def build(self) -> Readout:
        """Make the readout, untrained. Heavy imports belong in here."""

    def load(self, path: str | Path) -> Readout:
        """The trained readout from a file that it saved itself."""
        return type(self.build()).load(path)

    @property
    def keeps_learning(self) -> bool:
        """Whether what `build` makes is an `OnlineReadout` that shall go on learning in the test."""
        return False

    def check_outputs(self, outputs: int) -> None:
        """Raise `ConfigurationError` if these settings cannot serve a task with so many outputs."""

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise `ConfigurationError` if these settings cannot learn targets (batch, time, outputs), NaN if unknown."""

    def check_features(self, nodes: int, task: Task) -> None:
        """Raise `ConfigurationError` if these settings cannot learn from so many nodes on this task."""

    def about_export(self, nodes: int, task: Task) -> list[str]:
        """What stands against an export of what will be trained, a sentence each."""
        return []

    def check_task(self, task: Task) -> None:
        """Raise `ConfigurationError` if these settings cannot serve this task."""
        self.check_outputs(task.outputs)
        self.check_targets(task.train.targets)
        if self.keeps_learning:
            if task.closed_loop:
                raise ConfigurationError(
                    "keep_learning: a forecast in closed loop has no targets to learn from; set it to false"
                )
            self.check_targets(task.test.targets)
