"""The trained model of a run, with its weights, in a program."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tokenizer import load_tokenizer
from reservoir_hw.experiment.deploy.export_models import model_without_devices
from reservoir_hw.experiment.deploy.job import check_devices
from reservoir_hw.experiment.deploy.trained import TrainedRow, trained_row
from reservoir_hw.experiment.run.by_gradients import model_of, opened_classifier, opened_model
from reservoir_hw.readout.configuration import StateReadoutConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig


def load_model(
    run: str | Path, row: int | None = None, *, reservoir: str | Path | None = None, offline: bool = False
) -> Any:
    """The trained model of a run folder, with its weights.

    A readout of states (`ridge`, `rls`, `lms`, `torch`, `sklearn`) answers states with `predict`. A language model or a
    classifier of sequences drives the reservoir itself: the device is opened, and is closed when the model is gone.

    Parameters
    ----------
    run, row
        A run folder, and which of its rows; by default the only one.
    reservoir
        A reservoir file that says where the device is now, in the place of the run's.
    offline
        Open no device: a language model has its weights then, and cannot be driven. Not for gates around a device.

    Raises
    ------
    ConfigurationError
        The folder is no run, or lacks the row; the device is not the one of the training; the file holds no model, as
        that of an estimator of scikit-learn that is not linear; or a class is not what it was.
    """
    found = trained_row(run, row, reservoir=reservoir)
    readout = found.point.config.readout
    if isinstance(readout, StateReadoutConfig):
        return readout.load(found.file())
    from reservoir_hw.readout.training.folder import load_weights

    with ExitStack() as stack:
        model, devices = stack.enter_context(_opened(found, offline=offline))
        if not offline:
            check_devices(found, devices)
        load_weights(model, found.file())
        weakref.finalize(model, stack.pop_all().close)
        return model


def _opened(row: TrainedRow, *, offline: bool) -> AbstractContextManager[tuple[Any, Any]]:
    """The untrained model around its devices."""
    config = row.point.config
    if isinstance(config.readout, TokenModelConfig):
        if offline:
            return model_without_devices(row, load_tokenizer(row.file("tokenizer")))
        return opened_model(row.point, model_of(config).tokens_of(config.task.build()))
    if offline and config.readout.layers_of_reservoirs:
        raise ConfigurationError(f"readout {config.readout.kind} is made around its open device: leave out offline")
    return opened_classifier(row.point, config.task.build())
