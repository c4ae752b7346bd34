"""Readouts that learn from the chunks of a drive, and answer those of its test, as they come."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.text_training import gradient_of
from reservoir_hw.experiment.states.drive import gathers, in_whole, learn, predict_into, predict_then_update_into
from reservoir_hw.experiment.states.plan import DriveChunk, goes_on
from reservoir_hw.readout.configuration import GradientReadoutConfig, Readout, StateReadoutConfig
from reservoir_hw.readout.linear.online import OnlineReadout
from reservoir_hw.tasks.task import Evaluation, Task

States: TypeAlias = Iterable[tuple[DriveChunk, Any]]
"""The chunks of a plan, each with its states, of one drive (batch, time, nodes): an array, or a tensor anywhere."""


Prepare: TypeAlias = Callable[[Point, Readout], None]
"""Tells the untrained readout of a point what it needs for its training."""


def trained(
    points: Sequence[Point], task: Task, states: States, prepare: Prepare | None = None
) -> list[tuple[Readout, np.ndarray]]:
    """For each point a readout, trained on the chunks of the training, and its outputs for those of the test."""
    return _taught([_Learner(point, task, prepare=prepare) for point in points], states)


def judged(
    point: Point, task: Task, readout: Readout, states: States, *, refit: bool = False
) -> list[tuple[Readout, np.ndarray]]:
    """A trained readout with its outputs for the chunks of the test; behind it one that was trained on these states.

    A readout that keeps learning begins the test as its training left it.
    """
    learners = [_Learner(point, task, copy.deepcopy(readout)), *([_Learner(point, task)] if refit else [])]
    return _taught(learners, states)


def _taught(learners: Sequence[_Learner], states: States) -> list[tuple[Readout, np.ndarray]]:
    """The readouts with their outputs, after a whole drive."""
    for chunk, answer in states:
        for learner in learners:
            learner.take(chunk, answer)
    return [learner.finish() for learner in learners]


class _Learner:
    """A readout of a point, and its outputs (batch, time, outputs) for the test. One that is given learns no more."""

    def __init__(
        self, point: Point, task: Task, trained: Readout | None = None, prepare: Prepare | None = None
    ) -> None:
        self._point, self._task = point, task
        self._readout = trained or untrained(point)
        self._outputs = np.zeros(task.test.targets.shape, dtype=np.float32)
        self._learns_last = trained is None and gathers(self._readout)
        if prepare is not None:
            prepare(point, self._readout)
        self._left = 0 if trained else len(task.train.inputs)
        self._waiting: list[tuple[DriveChunk, Any]] = []

    def take(self, chunk: DriveChunk, states: Any) -> None:
        """Learn from a chunk of the training, or answer one of the test."""
        if chunk.split == "train" and not self._left:
            return
        if chunk.split == "train":
            learn(self._readout, self._task, chunk, states)
            place = chunk.place
            if place is not None and place.stop == self._task.train.steps_of(place.rows):
                self._left -= place.rows.stop - place.rows.start
            if self._left == 0 and not self._learns_last:
                self._readout.solve()
        elif self._left or gathers(self._readout):
            # Groups of sequences that are tested in one go with their training: more training is to come.
            self._waiting.append((chunk, states))
        else:
            _test(self._point, self._task, self._readout, chunk, states, self._outputs)

    def finish(self) -> tuple[Readout, np.ndarray]:
        """After the last chunk."""
        if self._learns_last:
            self._readout.solve()
        chunks: States = self._waiting
        if gathers(self._readout) and self._readout.mixes_positions:
            chunks = in_whole(self._task.test, chunks)
        for chunk, states in chunks:
            _test(self._point, self._task, self._readout, chunk, states, self._outputs)
        return self._readout, self._outputs


def evaluations(
    point: Point, task: Task, trainings: Iterable[States], tests: Iterable[States]
) -> list[list[Evaluation]]:
    """A readout for each of `trainings`, judged on each of `tests`: [training][test].

    Each item is a whole drive of the plan; of a training the test chunks are passed over, and of a test those of the
    training. A readout that keeps learning begins every test as its training left it.
    """
    readouts: list[Readout] = []
    for states in trainings:
        learned_from = ((chunk, answer) for chunk, answer in states if chunk.split == "train")
        readouts.append(trained([point], task, learned_from)[0][0])
    judged: list[list[Evaluation]] = [[] for _ in readouts]
    for states in tests:
        learners = [_Learner(point, task, copy.deepcopy(readout)) for readout in readouts]
        for found, (_, outputs) in zip(judged, _taught(learners, states), strict=True):
            found.append(task.evaluate(outputs, "scores"))
    return judged


def untrained(point: Point) -> Readout:
    """The readout of a point, as its settings say."""
    readout = state_readout(point.config).build()
    readout.repetitions_ = point.config.training.repetitions
    if isinstance(point.config.readout, GradientReadoutConfig):
        cast(Any, readout).options = gradient_of(point.config).options
    return readout


def _test(point: Point, task: Task, readout: Readout, chunk: DriveChunk, states: Any, outputs: np.ndarray) -> None:
    """Put the readout's answers to a test chunk into `outputs` (batch, time, outputs)."""
    if not state_readout(point.config).keeps_learning:
        predict_into(readout, chunk, states, outputs)
        return
    # Groups of sequences are tested after all of them have trained: what came last is not theirs.
    alone = chunk.place is not None and chunk.place.rows == slice(0, len(task.train.inputs))
    whole = task.train.in_one_piece and task.test.in_one_piece
    continues = goes_on(task, point.config.training) and alone and whole
    predict_then_update_into(cast(OnlineReadout, readout), task, chunk, states, outputs, continues=continues)


def state_readout(config: ExperimentConfig) -> StateReadoutConfig:
    """The readout of an experiment that learns in one pass."""
    return cast(StateReadoutConfig, config.readout)
