"""Steps of a device: how many make a chunk, so that it takes about ten seconds, and how many a plan takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import Continuity, ReservoirSpec, ResetByCommand, ResetPolicy
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.drive import warmup_calls
from reservoir_hw.experiment.states.plan import Burst, plan_of
from reservoir_hw.tasks.task import Task

CHUNK_S = 10.0
_ENOUGH_S = 0.5
# A replayed device is driven with its memory again for each chunk: at most a fifth of the time goes there.
_MEMORIES = 4


def paced_steps(continuity: Continuity, memory_steps: int, step_period_s: float | None, most: int) -> int:
    """Steps of a chunk, `most` at most, as the declared step period wants them; `most` where none is declared."""
    if continuity == "free_running" or not step_period_s:
        return most
    steps = CHUNK_S / step_period_s
    if continuity == "replayed":
        steps = max(steps, _MEMORIES * memory_steps)
    return max(1, min(most, int(steps)))


def paced_by(spec: ReservoirSpec, most: int) -> int:
    """The same of a declaration. A device that can be frozen (`held`, with snapshot) is a simulation, or fast."""
    if spec.continuity == "held" and spec.snapshot:
        return most
    return paced_steps(spec.continuity, spec.memory_steps, spec.step_period_s, most)


def begin(reservoir: Reservoir, bursts: Sequence[Burst], most: int) -> tuple[int, np.ndarray | None]:
    """Steps of a chunk, `most` at most, and the states of the steps that were driven to find it out, if any were.

    A held device that declares no period is driven with the first inputs of the plan, from rest, until a call takes
    half a second. No step of this is lost: the states (1, time, nodes) are those with which the plan begins.
    """
    spec, first = reservoir.spec, bursts[0].chunks[0].inputs
    if spec.continuity != "held" or spec.snapshot or spec.step_period_s or len(first) > 1:
        return paced_by(spec, most), None
    begun: list[np.ndarray] = []
    steps, done = 1, 0
    reservoir.reset(1)
    while True:
        started = time.perf_counter()
        begun.append(np.asarray(reservoir.run(first[:, done : done + steps])))
        taken = max(time.perf_counter() - started, 1e-9)
        done += steps
        left = first.shape[1] - done
        if taken >= _ENOUGH_S or not left:
            break
        steps = min(left, 4 * steps, max(steps + 1, int(2 * steps * _ENOUGH_S / taken)))
    return max(done, min(most, int(CHUNK_S * begun[-1].shape[1] / taken))), np.concatenate(begun, axis=1)


def about_progress(reservoir: Reservoir, bursts: Sequence[Burst]) -> str:
    """A sentence where chunks cannot follow the pace, or nothing."""
    if reservoir.spec.continuity != "free_running" or reservoir.streams:
        return ""
    longest = max(sum(chunk.inputs.shape[1] for chunk in burst.chunks) for burst in bursts)
    return (
        "this device runs freely and takes a whole sequence in one call: progress moves, and states are safe, after up "
        f"to {longest:,} steps"
    )


# ---- Steps that a device is driven for a plan, to the last one: openings, resets, inputs, and what it has to repeat.


@dataclass(frozen=True)
class Driven:
    """What decides how many steps a device is driven: how it is brought to rest, and what it repeats.

    `memory_steps` are those that each further call of a replayed one begins with; `played` says how many steps one run
    of so many takes.
    """

    reset: ResetPolicy
    memory_steps: int
    continuity: Continuity
    played: Callable[[int], int]

    @property
    def opening(self) -> int:
        """The first reset, and what measures it."""
        return self.reset.opening_steps(self.played)

    def from_rest(self, steps: int) -> int:
        """A reset, and the first call after it."""
        return self.played(self.reset.length) + self.played(steps)

    def further(self, steps: int) -> int:
        """A call that goes on from others. That of a replayed device begins with a reset."""
        return self.from_rest(self.memory_steps + steps) if self.continuity == "replayed" else self.played(steps)

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
        """The forecasts of a task in closed loop, of which every step is a call of its own; 0 of others."""
        if not task.closed_loop:
            return 0
        starts, warmup = task.test.inputs.shape[:2]
        steps = task.test.targets.shape[1] - 1
        repeated = (warmup_calls(warmup) - 1) * self.further(0) if self.continuity == "replayed" else 0
        return starts * (self.from_rest(warmup) + repeated + steps * self.further(1))


def driven_by(config: ReservoirConfig, declared: ReservoirSpec | None = None) -> Driven:
    """What a configuration tells, and what its device `declared` when it was opened.

    Without that replays count as far as the configuration tells.
    """
    continuity = config.declared_continuity if declared is None else declared.continuity
    memory = getattr(config if declared is None else declared, "memory_steps", 0)
    return Driven(getattr(config, "reset", None) or ResetByCommand(), memory, continuity, config.played_steps)


def driven_on(reservoir: Reservoir) -> Driven:
    """That of an open device."""
    spec = reservoir.spec
    return Driven(reservoir.reset_policy, spec.memory_steps, spec.continuity, reservoir.played_steps)


def steps_driven(point: Point, task: Task, declared: ReservoirSpec | None = None, *, forecasts: bool = True) -> int:
    """Steps of training and test, and of the `forecasts` of a closed loop, without the opening.

    `declared` is what the device said when it was opened.
    """
    driven = driven_by(point.config.reservoir, declared)
    total = driven.bursts(planned(point, task, declared))
    return total + driven.forecasts(task) if forecasts else total


def planned(point: Point, task: Task, declared: ReservoirSpec | None = None) -> list[Burst]:
    """The plan of a point, with chunks as its device gets them as far as that can be told before it is driven."""
    config, most = point.config.reservoir, point.config.run.chunk_steps
    if declared is not None:
        return plan_of(point, task, chunk_steps=paced_by(declared, most), max_batch=declared.max_batch)
    if not config.is_computed:
        memory, period_s = getattr(config, "memory_steps", 0), getattr(config, "step_period_s", None)
        most = paced_steps(config.declared_continuity, memory, period_s, most)
    return plan_of(point, task, chunk_steps=most, max_batch=config.most_at_once)
