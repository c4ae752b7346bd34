"""Driving a reservoir through a task: settle, learn, judge, in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from reservoir_hw.errors import NotSupported
from reservoir_hw.experiment.configuration import TrainingConfig
from reservoir_hw.readout.configuration import Readout
from reservoir_hw.reservoir import Reservoir
from reservoir_hw.tasks.task import Task

OnSteps = Callable[[int], None]


def steps_needed(task: Task, training: TrainingConfig) -> int:
    """Time steps that `train` and `judge` drive, summed over the sequences."""
    learned = task.train.inputs.shape[1] * (training.settle_passes + 1)
    warmup = min(training.test_warmup_steps, task.train.inputs.shape[1])
    return task.train.inputs.shape[0] * learned + task.test.inputs.shape[0] * (warmup + task.test.inputs.shape[1])


def train(
    reservoir: Reservoir, readout: Readout, task: Task, training: TrainingConfig, chunk_steps: int, on_steps: OnSteps
) -> None:
    """Settle the reservoir on the training inputs, then fit the readout to one more pass over them."""
    inputs, targets = task.train.inputs, task.train.targets
    slices = _slices(inputs.shape[1], chunk_steps)
    plan = slices * (training.settle_passes + 1)
    reservoir.reset(inputs.shape[0])
    for index, states in enumerate(_states(reservoir, [inputs[:, part] for part in plan])):
        if index >= len(plan) - len(slices):
            part = plan[index]
            readout.partial_fit(states, targets[:, part], inputs[:, part] if readout.input_connection else None)
        on_steps(states.shape[0] * states.shape[1])
    readout.solve()


def judge(
    reservoir: Reservoir, readout: Readout, task: Task, training: TrainingConfig, chunk_steps: int, on_steps: OnSteps
) -> np.ndarray:
    """The readout's outputs for the test split: (batch, time, outputs).

    The reservoir starts from rest and is first driven with the end of the training inputs, which works for
    every class of continuity; how the training left it does not matter.
    """
    inputs = task.test.inputs
    warmup = min(training.test_warmup_steps, task.train.inputs.shape[1])
    before = task.train.inputs[:, task.train.inputs.shape[1] - warmup :]
    if before.shape[0] != inputs.shape[0]:
        before = np.repeat(before[:1], inputs.shape[0], axis=0)
    driven = np.concatenate([before, inputs], axis=1)
    outputs = np.empty((*inputs.shape[:2], task.outputs), dtype=np.float32)
    reservoir.reset(inputs.shape[0])
    slices = _slices(driven.shape[1], chunk_steps)
    for part, states in zip(slices, _states(reservoir, [driven[:, p] for p in slices]), strict=True):
        skip = max(0, warmup - part.start)
        if skip < states.shape[1]:
            at = slice(part.start + skip - warmup, part.stop - warmup)
            u = driven[:, part][:, skip:] if readout.input_connection else None
            outputs[:, at] = readout.predict(states[:, skip:], u)
        on_steps(states.shape[0] * states.shape[1])
    return outputs


def _states(reservoir: Reservoir, chunks: Sequence[np.ndarray]) -> Iterator[Any]:
    try:
        stream = reservoir.stream(iter(chunks))
    except NotSupported:
        # A device that cannot be fed in chunks takes all of it in one run.
        whole = np.asarray(reservoir.run(np.concatenate(chunks, axis=1)))
        ends = np.cumsum([chunk.shape[1] for chunk in chunks])
        stream = iter(np.split(whole, ends[:-1], axis=1))
    yield from stream


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
