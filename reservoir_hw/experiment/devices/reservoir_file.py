"""The reservoir of a file, where no experiment is run: to be served, or to be looked at."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import parse_experiment


def config_from_file(path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None) -> ReservoirConfig:
    """The configuration of the reservoir of a reservoir or experiment file.

    The number of input channels is that of the experiment's task; of a reservoir file, what it says itself, or
    `inputs`.
    """
    document = load_document(path, set=list(set))
    if "task" in document.data:
        experiment = parse_experiment(document)
        channels = experiment.readout.input_channels(experiment.task.build())
        if inputs is not None and inputs != channels:
            raise ConfigurationError(f"{path}: its task has {channels} input channels, not {inputs}")
        return experiment.reservoir.for_inputs(channels)
    config = parse_reservoir(document)
    return config if inputs is None else config.for_inputs(inputs)


def reservoir_from_file(
    path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None
) -> tuple[ReservoirConfig, Reservoir]:
    """`config_from_file`, and its reservoir, not yet open.

    Raises `ConfigurationError` where neither file nor `inputs` says what the kind needs to know.
    """
    config = config_from_file(path, set=set, inputs=inputs)
    try:
        return config, build_reservoir(config)
    except ConfigurationError as error:
        if inputs is None and (config.inputs is None or config.input_mask is not None):
            raise ConfigurationError(f"{path}: {error} (--inputs N says it here)") from error
        raise
