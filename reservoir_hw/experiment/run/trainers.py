"""Who trains which readout."""

from __future__ import annotations

from reservoir_hw.experiment.run.by_gradients import ByGradients
from reservoir_hw.experiment.run.in_one_pass import InOnePass
from reservoir_hw.experiment.run.trainer import Trainer
from reservoir_hw.readout.configuration import ReadoutConfig

_TRAINERS: dict[str, Trainer] = {"in one pass": InOnePass(), "by gradients": ByGradients()}


def trainer_of(readout: ReadoutConfig) -> Trainer:
    """The trainer that the readout names by `trained`."""
    return _TRAINERS[readout.trained]
