"""Driving a reservoir through a plan, and what its states are for: learning and judging, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from reservoir_hw.core.errors import NotSupported
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment.states.plan import Burst, Leg
from reservoir_hw.readout import Chunk
from reservoir_hw.readout.linear.configuration import OnlineReadout, Readout
from reservoir_hw.tasks.task import Split, Task

OnSteps: TypeAlias = Callable[[int], None]


def driven(
    reservoir: Reservoir, bursts: Sequence[Burst], on_steps: OnSteps, *, repetitions: int = 1
) -> Iterator[tuple[Leg, np.ndarray]]:
    """Every leg with its states (batch, time, nodes), as they come.

    Of several repetitions the mean is given, once all are there: a burst is then held in memory.
    """
    for first in range(0, len(bursts), repetitions):
        sums: list[np.ndarray] = []
        for burst in bursts[first : first + repetitions]:
            reservoir.reset(burst.batch)
            for number, (leg, states) in enumerate(zip(burst.legs, states_of(reservoir, burst.legs), strict=True)):
                on_steps(leg.steps)
                if repetitions == 1:
                    yield leg, states
                elif leg.repetition == 0:
                    sums.append(np.zeros(0) if leg.place is None else states.astype(np.float64))
                elif leg.place is not None:
                    sums[number] += states
        for leg, total in zip(bursts[first].legs, sums, strict=False):
            yield leg, mean_of(total, repetitions, reservoir.spec.dtype)


def mean_of(total: np.ndarray, repetitions: int, dtype: str) -> np.ndarray:
    """The mean states from their sum in float64."""
    return (total / repetitions).astype(dtype)


def states_of(reservoir: Reservoir, legs: Sequence[Leg]) -> Iterator[Any]:
    """The states of consecutive legs, the reservoir being where the first one starts."""
    chunks = [leg.inputs for leg in legs]
    try:
        stream = reservoir.stream(iter(chunks))
    except NotSupported:
        # A device that cannot be fed in chunks takes all of it in one run.
        whole = np.asarray(reservoir.run(np.concatenate(chunks, axis=1)))
        ends = np.cumsum([chunk.shape[1] for chunk in chunks])
        stream = iter(np.split(whole, ends[:-1], axis=1))
    yield from stream


def learn(readout: Readout, task: Task, leg: Leg, states: np.ndarray) -> None:
    """Hand the states of a training leg to the readout, with the targets that belong to them."""
    for chunk, _ in _pieces(task.train, leg, states, inputs=readout.input_connection):
        readout.partial_fit(chunk.states, chunk.targets, chunk.inputs, new_sequence=chunk.new_sequence)


def judge(readout: Readout, leg: Leg, states: np.ndarray, outputs: np.ndarray) -> None:
    """Put the readout's answers to a test leg where they belong in `outputs` (batch, time, outputs)."""
    if leg.place is not None:
        answers = readout.predict(states, leg.inputs if readout.input_connection else None)
        outputs[leg.place.rows, leg.place.start : leg.place.stop] = answers


def follow(
    readout: OnlineReadout, task: Task, leg: Leg, states: np.ndarray, outputs: np.ndarray, *, continues: bool = False
) -> None:
    """As `judge`, but the readout learns the target of each step as soon as it has answered.

    `continues`: the test goes on with the sequences of the training, so that no washout begins with it.
    """
    for chunk, (rows, times) in _pieces(task.test, leg, states, inputs=readout.input_connection):
        answers = readout.follow(
            chunk.states, chunk.targets, chunk.inputs, new_sequence=chunk.new_sequence and not continues
        )
        outputs[rows, times] = answers


def _pieces(split: Split, leg: Leg, states: np.ndarray, *, inputs: bool) -> Iterator[tuple[Chunk, tuple[slice, slice]]]:
    """What of a leg can be learned from, without padding, and where in the split it lies (sequences, steps)."""
    place = leg.place
    if place is None:
        return
    targets = split.targets[place.rows, place.start : place.stop]
    given = leg.inputs if inputs else None
    if split.lengths is None:
        times = slice(place.start, place.stop)
        yield Chunk(states, targets, given, new_sequence=place.start == 0), (place.rows, times)
        return
    for row, length in enumerate(split.lengths[place.rows]):
        one = slice(row, row + 1)
        piece = Chunk(states[one, :length], targets[one, :length], None if given is None else given[one, :length], True)
        number = place.rows.start + row
        yield piece, (slice(number, number + 1), slice(0, length))
