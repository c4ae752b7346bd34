"""The reservoir of a file, where no experiment is run: to be served, or to be looked at."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reservoir_hw.core.axes import refuse_vary
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import parse_experiment


def config_from_file(path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None) -> ReservoirConfig:
    """The configuration of the reservoir of a reservoir or experiment file.

    The number of input channels is that of the experiment's task; of a reservoir file, what it says itself, or
    `inputs`.
    """
    config, channels, _ = _read(path, set, inputs)
    return config if channels is None else config.for_inputs(channels)


def reservoir_from_file(
    path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None
) -> tuple[ReservoirConfig, Reservoir]:
    """`config_from_file`, and its reservoir, not yet open.

    Raises `ConfigurationError` where neither file nor `inputs` says what the kind needs to know.
    """
    config = config_from_file(path, set=set, inputs=inputs)
    return config, _built(path, config, inputs)


def reservoirs_from_file(path: str | Path, *, set: Iterable[str] = (), inputs: int | None = None) -> list[Reservoir]:
    """The reservoirs of all layers of a model (`kind: layers`, `kind: laerc_layers`), or the only one; not yet open.

    Raises `ConfigurationError` as `reservoir_from_file`, and for `laerc_layers` without an experiment.
    """
    config, channels, layers = _read(path, set, inputs)
    found = config.for_layers(None if channels is None else channels.count, layers)
    return [_built(path, one if channels is None else one.for_inputs(channels), inputs) for one in found]


def _read(
    path: str | Path, set: Iterable[str], inputs: int | None
) -> tuple[ReservoirConfig, Channels | None, int | None]:
    """The section, what it is driven with, and how many layers there are; None where the file does not say."""
    document = load_document(path, set=list(set))
    if "task" not in document.data:
        return parse_reservoir(document), None if inputs is None else Channels(inputs), None
    refuse_vary(document, ("reservoir",))
    experiment = parse_experiment(document)
    channels = experiment.readout.channels(experiment.task.build())
    if inputs is not None and inputs != channels.count:
        raise ConfigurationError(f"{path}: its task has {channels.count} input channels, not {inputs}")
    return experiment.reservoir, channels, experiment.readout.layers_of_reservoirs


def _built(path: str | Path, config: ReservoirConfig, inputs: int | None) -> Reservoir:
    try:
        return build_reservoir(config)
    except ConfigurationError as error:
        if inputs is None and (config.inputs is None or isinstance(config.input_mask, MaskConfig)):
            raise ConfigurationError(f"{path}: {error} (--inputs N says it here)") from error
        raise
