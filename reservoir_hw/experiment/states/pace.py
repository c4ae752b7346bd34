"""How many steps of a slow device make a chunk: states are safe, and progress moves, about every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.states.plan import Burst

CHUNK_S = 10.0
_ENOUGH_S = 0.5
# A replayed device is driven with its memory again for each chunk: at most a fifth of the time goes there.
_MEMORIES = 4


def chunk_steps(reservoir: Reservoir, bursts: Sequence[Burst], most: int) -> int:
    """Steps of a chunk, `most` at most.

    The pace is that of the declared step period, or else measured: the device is driven with the first inputs, from
    rest, for about a second. A device that can be frozen (`held`, with snapshot) is a simulation, or fast, and its
    noise may depend on every drive: it is not measured.
    """
    spec = reservoir.spec
    if spec.continuity == "free_running" or may_be_frozen(spec):
        return most
    pace = 1 / spec.step_period_s if spec.step_period_s else measured_pace(reservoir, bursts[0].chunks[0].inputs)
    steps = CHUNK_S * pace
    if spec.continuity == "replayed":
        steps = max(steps, _MEMORIES * spec.memory_steps)
    return max(1, min(most, int(steps)))


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


def measured_pace(reservoir: Reservoir, inputs: np.ndarray) -> float:
    """Steps per second of an open reservoir, of runs of `inputs` (batch, time, inputs) from rest.

    They grow until one takes half a second. The counters of the reservoir stay as they were.
    """
    counted = replace(reservoir.counters)
    steps = 1
    while True:
        reservoir.reset(len(inputs))
        started = time.perf_counter()
        reservoir.run(inputs[:, :steps])
        taken = max(time.perf_counter() - started, 1e-9)
        if taken >= _ENOUGH_S or steps == inputs.shape[1]:
            break
        steps = min(inputs.shape[1], 4 * steps, max(steps + 1, int(2 * steps * _ENOUGH_S / taken)))
    # These drives are no part of the harvest.
    vars(reservoir.counters).update(vars(counted))
    return steps / taken
