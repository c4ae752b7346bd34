"""What every linear readout can be told in an experiment file."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.configuration import StateReadoutConfig
from reservoir_hw.tasks.task import Task


class LinearConfig(StateReadoutConfig):
    """What every linear readout can be told.

    Each kind declares its parameters in a class derived from this one, beside the readout. Experiment files and
    the constructor are both checked by that class.
    """

    standardise: bool = Field(default=True, description="the penalty or the rate acts on standardised states")
    bias: bool = True
    input_connection: bool = Field(default=False, description="the readout sees the inputs too")
    washout: NonNegativeInt = Field(default=0, description="leading steps of each sequence that are not learned")

    def check_task(self, task: Task) -> None:
        """As for every readout; and something must be left to learn from behind the washout."""
        super().check_task(task)
        split = task.train
        longest = 1 if split.at_end else int(np.max(split.ends)) + 1
        if self.washout >= longest:
            raise ConfigurationError(
                f"washout is {self.washout}, and the longest sequence of the training has {longest} steps that count: "
                "nothing is left to learn from"
            )

    def check_targets(self, targets: np.ndarray) -> None:
        """Targets that are not known from the first step on need a washout."""
        known = np.flatnonzero(~np.isnan(targets).any(axis=(0, 2)))
        steps = int(known[0]) if len(known) else targets.shape[1]
        if steps > self.washout:
            raise ConfigurationError(
                f"washout is {self.washout}, but the targets of the first {steps} steps are not known (they ask for "
                f"what came before the data); set readout.washout to at least {steps}"
            )

    def samples(self, task: Task) -> int:
        """How many steps of the training are learned from."""
        if task.train.at_end:
            return len(task.train.inputs)
        return int(np.maximum(task.train.ends + 1 - self.washout, 0).sum())

    def arguments(self) -> dict[str, Any]:
        """Those of the readout's constructor."""
        return self.model_dump(exclude={"kind", "keep_learning"})
