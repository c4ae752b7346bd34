"""Experiments as functions and classes, for scripts, notebooks and the command line."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.experiment.configuration.experiment import ExperimentConfig as ExperimentConfig
    from reservoir_hw.experiment.deploy.load import load_model as load_model
    from reservoir_hw.experiment.run.experiment import Experiment as Experiment
    from reservoir_hw.experiment.run.result import Result as Result

__getattr__, __dir__ = lazy_names(__name__)
