"""What a reservoir is driven with, from the first reset to the last step, in the order in which it happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.store import Region
from reservoir_hw.experiment.configuration.experiment import Point, TrainingConfig
from reservoir_hw.tasks.task import Split, Task

SplitName: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True)
class DriveChunk:
    """Inputs that are driven at once, (batch, time, inputs).

    Its states are those of `place` in a split; without a place they only bring the reservoir where it should be.
    """

    inputs: np.ndarray
    split: SplitName = "train"
    place: Region | None = None
    repetition: int = 0

    @property
    def dataset(self) -> str:
        """Where a store keeps its states: "train", and for further repetitions "train.1" and so on."""
        return f"{self.split}.{self.repetition}" if self.repetition else self.split

    @property
    def steps(self) -> int:
        """Device steps: time steps of all sequences."""
        return self.inputs.shape[0] * self.inputs.shape[1]


@dataclass(frozen=True)
class Burst:
    """Chunks that follow each other without a gap, from a reset on."""

    chunks: tuple[DriveChunk, ...]

    @property
    def batch(self) -> int:
        """Sequences side by side."""
        return self.chunks[0].inputs.shape[0]


def plan(
    task: Task,
    training: TrainingConfig,
    *,
    chunk_steps: int,
    max_batch: int | None = None,
    splits: Sequence[SplitName] = ("train", "test"),
) -> list[Burst]:
    """All bursts of the training split, then of the test split.

    Training inputs are driven `priming_passes` times before the pass that counts; the test starts from rest with the
    last training inputs as a warm-up, unless it goes on with the training or is one of several sequences. At most
    `max_batch` sequences are driven side by side; with `guard_steps` one after the other in a single burst, so many
    rest inputs (0) between them.
    Sequences of different lengths are driven to the end of the longest of their group: whole, or alone and in chunks.
    The repetitions of a burst follow each other.
    """
    together = goes_on(task, training)
    if together and len(task.train.inputs) != len(task.test.inputs):
        raise ConfigurationError(
            f"training.continuous: the test continues the training, but there are {len(task.train.inputs)} sequences "
            f"to train with and {len(task.test.inputs)} to test"
        )
    parts: list[tuple[SplitName, ...]] = [tuple(splits)] if together else [(split,) for split in splits]
    bursts: list[Burst] = []
    for names in parts:
        split = task.train if names[0] == "train" else task.test
        sequences, length = split.inputs.shape[:2]
        size = min(sequences, max_batch or sequences)
        if not split.in_one_piece:
            # Chunks of several sequences cannot be told apart by a readout that counts their steps.
            size = min(size, max(1, chunk_steps // length))
        if training.guard_steps is None:
            groups = slices(sequences, size)
            bursts += [Burst(tuple(_chunks(task, training, names, rows, chunk_steps))) for rows in groups]
        else:
            guard = DriveChunk(np.zeros((1, training.guard_steps, task.inputs), split.inputs.dtype))
            chunks: list[DriveChunk] = []
            for row in range(sequences):
                chunks += [guard] * (row > 0 and training.guard_steps > 0)
                chunks += _chunks(task, training, names, slice(row, row + 1), chunk_steps)
            bursts.append(Burst(tuple(chunks)))
    return [
        Burst(tuple(replace(chunk, repetition=number) for chunk in burst.chunks))
        for burst in bursts
        for number in range(training.repetitions)
    ]


def kept(bursts: Sequence[Burst]) -> list[DriveChunk]:
    """The chunks of which states are kept, in their order."""
    return [chunk for burst in bursts for chunk in burst.chunks if chunk.place is not None]


def goes_on(task: Task, training: TrainingConfig) -> bool:
    """Whether the test is driven behind the training, without a reset."""
    return training.continuous or task.goes_on


def plan_of(point: Point, task: Task, *, chunk_steps: int | None = None, max_batch: int | None = None) -> list[Burst]:
    """The plan of one point of an experiment. A task in closed loop forecasts its test, which is not planned."""
    config = point.config
    if task.closed_loop and config.training.repetitions > 1:
        raise ConfigurationError("training.repetitions: a forecast in closed loop cannot be repeated and averaged")
    return plan(
        task,
        config.training,
        chunk_steps=chunk_steps or config.run.chunk_steps,
        max_batch=max_batch,
        splits=("train",) if task.closed_loop or not task.test.targets.shape[1] else ("train", "test"),
    )


def steps_of(bursts: Sequence[Burst]) -> int:
    """Device steps of a plan."""
    return sum(chunk.steps for burst in bursts for chunk in burst.chunks)


def _chunks(
    task: Task, training: TrainingConfig, names: tuple[SplitName, ...], rows: slice, chunk_steps: int
) -> Iterator[DriveChunk]:
    """One group of sequences through one split, or through both."""
    if "train" in names:
        inputs = task.train.inputs[rows]
        for _ in range(training.priming_passes):
            yield from (DriveChunk(inputs[:, part]) for part in slices(inputs.shape[1], chunk_steps))
        yield from _kept("train", task.train, rows, chunk_steps)
    if "test" in names:
        if "train" not in names:
            # The last training inputs are the past of the test, where that is not another sequence.
            past = task.train.inputs[rows] if task.test_follows else task.test.inputs[rows, :0]
            warmup = past[:, max(0, past.shape[1] - training.test_warmup_steps) :]
            yield from (DriveChunk(warmup[:, part]) for part in slices(warmup.shape[1], chunk_steps))
        yield from _kept("test", task.test, rows, chunk_steps)


def _kept(name: SplitName, split: Split, rows: slice, chunk_steps: int) -> Iterator[DriveChunk]:
    for part in slices(split.steps_of(rows), chunk_steps):
        yield DriveChunk(split.inputs[rows, part], name, Region(rows, part.start, part.stop))


def slices(length: int, size: int) -> list[slice]:
    """Consecutive parts of at most `size` items."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
