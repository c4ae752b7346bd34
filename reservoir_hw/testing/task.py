"""A task on a device that is open."""

from __future__ import annotations

from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment.compare.sides import point_of
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.run.in_one_pass import InOnePass
from reservoir_hw.experiment.run.learning import trained
from reservoir_hw.experiment.states.drive import driven
from reservoir_hw.experiment.states.plan import plan_of


def task_metrics(reservoir: Reservoir, file: str | Path) -> dict[str, float]:
    """Train the readout of an experiment file on the states of an open reservoir, and judge it: metric -> value.

    The reservoir of the file is not used, and `vary`, `sweep` and `baselines` are left out.

    Raises `ConfigurationError` where the task has other channels than the reservoir, is a forecast in closed loop, or
    has a readout that is not trained in one pass over states.
    """
    point = point_of(load_document(file))
    task = point.config.task.build()
    if task.closed_loop:
        raise ConfigurationError(f"{file}: a forecast in closed loop is no task for a test; set `closed_loop: false`")
    if task.inputs != reservoir.spec.inputs:
        raise ConfigurationError(
            f"{file}: the task has {task.inputs} input channels, but {reservoir.name} takes {reservoir.spec.inputs}; "
            "`inputs:` of the reservoir's file says how many it takes"
        )
    for section in ("readout", "training"):
        InOnePass().check(section, point.config, task)
    bursts = plan_of(point, task, max_batch=reservoir.spec.max_batch)
    states = driven(reservoir, bursts, lambda steps: None, repetitions=point.config.training.repetitions)
    return task.evaluate(trained([point], task, states)[0][1]).metrics
