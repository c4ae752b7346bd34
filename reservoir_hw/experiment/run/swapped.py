"""What another reservoir changes in an experiment, before anything is opened."""

from __future__ import annotations

from reservoir_hw.core.axes import Grid, Rows
from reservoir_hw.core.channels import about_mask
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.experiment import Experiment


def swapped(before: Experiment, after: Experiment) -> list[tuple[str, str, str]]:
    """The table of a swap: what, before, after. Makes the tasks' data; opens no device."""
    own, other = _facts(before), _facts(after)
    return [(what, own[what], other[what]) for what in own]


def points_text(config: ExperimentConfig) -> str:
    """What varies, for people: "3 seed × 10 dataset"."""
    axes = [*_axes(config.reservoir.vary), *_axes(config.vary)]
    axes += [f"{config.run.draws} draws"] if config.run.draws > 1 else []
    return " × ".join(axes) if axes else "1 point"


def mask_text(point: Point, experiment: Experiment) -> str:
    """How the channels meet the device, as far as it is known before it is opened; nothing where they fit."""
    config, readout = point.config.reservoir, point.config.readout
    if not readout.layers_of_reservoirs:
        return ""
    channels = readout.channels(experiment.task_of(point))
    if config.declares_inputs:
        return f"{channels.count} channels; the device says when it is opened how many inputs it has"
    told = config.for_inputs(channels)
    mask = None if config.input_mask is not None else told.planned_mask()
    return "" if mask is None or told.inputs is None else about_mask(mask, channels.count, told.inputs, config.name)


def _facts(experiment: Experiment) -> dict[str, str]:
    cost, point = experiment.estimate(), experiment.points[0]
    nodes = getattr(point.config.reservoir, "nodes", None)
    return {
        "kind": point.config.reservoir.name,
        "inputs": mask_text(point, experiment) or str(point.config.readout.channels(experiment.task_of(point)).count),
        "nodes": "as it says when it is opened" if nodes is None else str(nodes),
        "points": points_text(experiment.config),
        "device steps": f"{cost.device_steps:,}",
        "device time": "unknown" if cost.hours is None else f"{cost.hours:.2g} h",
    }


def _axes(vary: Grid | Rows) -> list[str]:
    if isinstance(vary, list):
        return [f"{len(vary)} rows"]
    return [f"{len(values)} {key.rpartition('.')[2]}" for key, values in vary.items()]
