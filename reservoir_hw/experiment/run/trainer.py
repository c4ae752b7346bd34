"""What an experiment asks of a way to train a readout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.point_run import PointRun
from reservoir_hw.tasks.task import Task


@dataclass(frozen=True)
class Cost:
    """What a point takes, as far as the configuration tells.

    `device_steps` are time steps of all sequences over all layers, in `chunks` where they are driven so.
    `state_bytes` are None where the number of nodes is not known. `training_steps` are updates of the weights.
    `progress_steps` are what the progress of a run counts: device steps, or the tokens that a model reads.
    """

    device_steps: int
    progress_steps: int
    state_bytes: int | None
    chunks: int = 0
    training_steps: int = 0


class Trainer(ABC):
    """Checks, estimates and runs the points of an experiment whose readouts it trains."""

    resumes: ClassVar[bool]
    """Whether an interrupted training is gone on with (`run.resume`)."""

    @abstractmethod
    def check(self, section: str, config: ExperimentConfig, task: Task) -> None:
        """Raise `ConfigurationError` where this section does not fit the others, as far as it can be known."""

    @abstractmethod
    def check_harvest(self, config: ExperimentConfig) -> None:
        """Raise `ConfigurationError` where states cannot be harvested before a run."""

    @abstractmethod
    def metrics(self, config: ExperimentConfig, task: Task) -> list[str]:
        """Names of the metrics that a row on this task has."""

    @abstractmethod
    def cost(self, point: Point, task: Task, *, harvest: bool = False) -> Cost:
        """What the point, or its harvest, will take; opens nothing."""

    @abstractmethod
    def run(self, run: PointRun) -> None:
        """Train, judge and keep the point's readout."""
