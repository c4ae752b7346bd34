"""Steps that a device is driven for a plan, to the last one: openings, resets, inputs, and what it has to repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.reset import ResetByCommand, ResetPolicy
from reservoir_hw.core.spec import Continuity, ReservoirSpec
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.closed_loop import warmup_calls
from reservoir_hw.experiment.states.pace import paced_by, paced_steps
from reservoir_hw.experiment.states.plan import Burst, plan_of
from reservoir_hw.tasks.task import Task


@dataclass(frozen=True)
class Driven:
    """What decides how many steps a device is driven: how it is brought to rest, and what it repeats.

    `memory_steps` are those that each further call begins with; `played` says how many steps one run of so many takes.
    """

    reset: ResetPolicy
    memory_steps: int
    continuity: Continuity
    played: Callable[[int], int]

    @property
    def opening(self) -> int:
        """The first reset, and what measures it."""
        return self.reset.opening_steps(self.played)

    @property
    def is_replayed(self) -> bool:
        """Whether each call begins with a reset."""
        return self.continuity == "replayed"

    @property
    def _reset(self) -> int:
        return self.played(self.reset.length)

    def from_rest(self, steps: int) -> int:
        """A reset, and the first call after it."""
        return self._reset + self.played(steps)

    def further(self, steps: int) -> int:
        """A call that goes on from others."""
        return self.played(self.memory_steps + steps) + self._reset * self.is_replayed

    def bursts(self, bursts: Sequence[Burst]) -> int:
        """All chunks of a plan."""
        total = 0
        for burst in bursts:
            first, *others = [chunk.inputs.shape[1] for chunk in burst.chunks]
            if self.continuity == "free_running":
                # However many chunks there are, it is one run.
                first, others = first + sum(others), []
            total += burst.batch * (self.from_rest(first) + sum(map(self.further, others)))
        return total

    def forecasts(self, task: Task) -> int:
        """The forecasts of a closed loop, of which every step is a call of its own."""
        starts, warmup = task.test.inputs.shape[:2]
        steps = task.test.targets.shape[1] - 1
        calls = warmup_calls(warmup)
        repeated = (calls - 1) * (self.further(0) if self.is_replayed else 0)
        return starts * (self.from_rest(warmup) + repeated + steps * self.further(1))


def driven_by(config: ReservoirConfig, declared: ReservoirSpec | None = None) -> Driven:
    """What a configuration tells, and what its device `declared` when it was opened.

    Without that replays count as far as the configuration tells.
    """
    continuity = config.declared_continuity if declared is None else declared.continuity
    memory = getattr(config if declared is None else declared, "memory_steps", 0)
    reset = getattr(config, "reset", None) or ResetByCommand()
    return Driven(reset, memory if continuity == "replayed" else 0, continuity, config.played_steps)


def driven_on(reservoir: Reservoir) -> Driven:
    """That of an open device."""
    spec = reservoir.spec
    memory = spec.memory_steps if spec.continuity == "replayed" else 0
    return Driven(reservoir.reset_policy, memory, spec.continuity, reservoir.played_steps)


def steps_of_opening(config: ReservoirConfig) -> int:
    """The first reset, and what measures it."""
    return driven_by(config).opening


def steps_driven(point: Point, task: Task, declared: ReservoirSpec | None = None, *, forecasts: bool = True) -> int:
    """Steps of training and test, and of the `forecasts` of a closed loop, without the opening.

    `declared` is what the device said when it was opened.
    """
    config = point.config.reservoir
    driven = driven_by(config, declared)
    total = driven.bursts(planned(point, task, declared))
    return total + driven.forecasts(task) if task.closed_loop and forecasts else total


def planned(point: Point, task: Task, declared: ReservoirSpec | None = None) -> list[Burst]:
    """The plan of a point, with chunks as its device gets them as far as that can be told before it is driven."""
    config, most = point.config.reservoir, point.config.run.chunk_steps
    if declared is not None:
        return plan_of(point, task, chunk_steps=paced_by(declared, most), max_batch=declared.max_batch)
    if not config.is_computed:
        memory, period_s = getattr(config, "memory_steps", 0), getattr(config, "step_period_s", None)
        most = paced_steps(config.declared_continuity, memory, period_s, most)
    return plan_of(point, task, chunk_steps=most, max_batch=config.most_at_once)
