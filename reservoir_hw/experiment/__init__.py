"""Experiments as functions and classes, for scripts, notebooks and the command line."""

from reservoir_hw.experiment.configuration import ExperimentConfig
from reservoir_hw.experiment.experiment import Experiment
from reservoir_hw.experiment.result import Result

__all__ = ["Experiment", "ExperimentConfig", "Result"]
