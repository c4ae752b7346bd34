"""How many steps of a slow device make a chunk: states are safe, and progress moves, about every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Continuity, ReservoirSpec
from reservoir_hw.experiment.states.plan import Burst

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
    if may_be_frozen(spec):
        return most
    return paced_steps(spec.continuity, spec.memory_steps, spec.step_period_s, most)


def begin(reservoir: Reservoir, bursts: Sequence[Burst], most: int) -> tuple[int, np.ndarray | None]:
    """Steps of a chunk, `most` at most, and the states of the steps that were driven to find it out, if any were.

    A held device that declares no period is driven with the first inputs of the plan, from rest, until a call takes
    half a second. No step of this is lost: the states (1, time, nodes) are those with which the plan begins.
    """
    spec, first = reservoir.spec, bursts[0].chunks[0].inputs
    declared = spec.continuity != "held" or spec.snapshot or spec.step_period_s
    if declared or len(first) > 1:
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
    pace = begun[-1].shape[1] / taken
    return max(done, min(most, int(CHUNK_S * pace))), np.concatenate(begun, axis=1)


def may_be_frozen(spec: ReservoirSpec) -> bool:
    """Whether it goes on from a snapshot as if nothing had been between: a simulation, or a design with a clock."""
    return spec.continuity == "held" and spec.snapshot


def about_progress(reservoir: Reservoir, bursts: Sequence[Burst]) -> str:
    """A sentence where chunks cannot follow the pace, or nothing."""
    if reservoir.spec.continuity != "free_running" or reservoir.streams:
        return ""
    longest = max(sum(chunk.inputs.shape[1] for chunk in burst.chunks) for burst in bursts)
    return (
        "this device runs freely and takes a whole sequence in one call: progress moves, and states are safe, after up "
        f"to {longest:,} steps"
    )
