"""Experiments as functions and classes, for scripts, notebooks and the command line."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.experiment.configuration.experiment import ExperimentConfig
    from reservoir_hw.experiment.run.experiment import Experiment
    from reservoir_hw.experiment.run.result import Result

__all__ = ["Experiment", "ExperimentConfig", "Result"]

__getattr__ = lazy_names(
    __name__,
    {
        "Experiment": ".run.experiment",
        "ExperimentConfig": ".configuration.experiment",
        "Result": ".run.result",
    },
)
