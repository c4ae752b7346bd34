"""Steps that a device is driven beside those of its inputs: openings, resets, and what it has to repeat."""

from __future__ import annotations

from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.reset import ResetByCommand, ResetPolicy
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.closed_loop import warmup_calls
from reservoir_hw.experiment.states.plan import plan_of
from reservoir_hw.tasks.task import Task


def steps_of_opening(config: ReservoirConfig) -> int:
    """The first reset, and what measures it."""
    return _reset(config).opening_steps(config.played_steps)


def steps_beside(point: Point, task: Task, declared: ReservoirSpec | None = None, *, forecasts: bool = True) -> int:
    """Resets and repeated inputs of training and test, and of the `forecasts` of a closed loop.

    `declared` is what the device said when it was opened. Without that replays count as far as the configuration tells.
    """
    config = point.config.reservoir
    continuity = config.declared_continuity if declared is None else declared.continuity
    replayed = continuity == "replayed"
    memory = (getattr(config, "memory_steps", 0) if declared is None else declared.memory_steps) if replayed else 0
    reset = config.played_steps(_reset(config).length)

    def first(steps: int) -> int:
        return reset + config.played_steps(steps) - steps

    def further(steps: int) -> int:
        return config.played_steps(memory + steps) - steps + reset * replayed

    total = 0
    for burst in plan_of(point, task):
        lengths = [chunk.inputs.shape[1] for chunk in burst.chunks]
        total += burst.batch * (first(lengths[0]) + sum(map(further, lengths[1:])))
    if task.closed_loop and forecasts:
        starts, warmup = task.test.inputs.shape[:2]
        # Every step of a forecast is a call of its own.
        steps = task.test.targets.shape[1] - 1
        total += starts * (first(warmup) + (warmup_calls(warmup) - 1) * further(0) + steps * further(1))
    return total


def _reset(config: ReservoirConfig) -> ResetPolicy:
    """Kinds that cannot be told have a reset of their own."""
    return getattr(config, "reset", None) or ResetByCommand()
