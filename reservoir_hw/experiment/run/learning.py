"""Readouts that learn from the chunks of a drive, and answer those of its test, as they come, in bounded memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeGuard, cast

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.store import Region
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.text_training import gradient_of
from reservoir_hw.experiment.states.plan import DriveChunk, goes_on
from reservoir_hw.readout import Chunk
from reservoir_hw.readout.configuration import GradientReadoutConfig, Readout, StateReadoutConfig
from reservoir_hw.readout.linear.online import OnlineReadout
from reservoir_hw.readout.own.gathered import GatheredReadout
from reservoir_hw.tasks.task import Evaluation, Split, Task

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
            for piece, _ in _pieces(self._readout, self._task.train, chunk, taken_by(self._readout, states)):
                self._readout.partial_fit(piece.states, piece.targets, piece.inputs, new_sequence=piece.new_sequence)
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
    learned_from = (((chunk, answer) for chunk, answer in states if chunk.split == "train") for states in trainings)
    readouts = [trained([point], task, states)[0][0] for states in learned_from]
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
    """Put the readout's answers to a test chunk into `outputs` (batch, time, outputs).

    One that keeps learning learns the target of each step as soon as it has answered.
    """
    if not state_readout(point.config).keeps_learning:
        predict_into(readout, chunk, states, outputs)
        return
    # Groups of sequences are tested after all of them have trained: what came last is not theirs.
    alone = chunk.place is not None and chunk.place.rows == slice(0, len(task.train.inputs))
    # The test goes on with the sequences of the training, so that no washout begins with it.
    continues = goes_on(task, point.config.training) and alone and task.train.in_one_piece and task.test.in_one_piece
    learning = cast(OnlineReadout, readout)
    for piece, (rows, times) in _pieces(readout, task.test, chunk, taken_by(readout, states)):
        answers = learning.predict_then_update(
            piece.states, piece.targets, piece.inputs, new_sequence=piece.new_sequence and not continues
        )
        outputs[rows, times] = as_numpy(answers)


def state_readout(config: ExperimentConfig) -> StateReadoutConfig:
    """The readout of an experiment that learns in one pass."""
    return cast(StateReadoutConfig, config.readout)


# ---- States of a chunk to the readout, and its answers to where they belong.


def predict_into(readout: Readout, chunk: DriveChunk, states: Any, outputs: np.ndarray) -> None:
    """Put the readout's answers to a test chunk where they belong in `outputs` (batch, time, outputs)."""
    if chunk.place is not None:
        answers = readout.predict(taken_by(readout, states), chunk.inputs if readout.input_connection else None)
        outputs[chunk.place.rows, chunk.place.start : chunk.place.stop] = as_numpy(answers)


def taken_by(readout: Readout, states: Any) -> Any:
    """The states as the readout takes them: where they are, or as a numpy array."""
    return states if getattr(readout, "takes_tensors", False) else as_numpy(states)


def gathers(readout: Readout) -> TypeGuard[GatheredReadout]:
    """Whether the readout learns when it has the states of all sequences, each of them whole."""
    return getattr(readout, "gathers", False)


def in_whole(split: Split, chunks: Iterable[tuple[DriveChunk, Any]]) -> Iterator[tuple[DriveChunk, np.ndarray]]:
    """The chunks of each sequence as one, with its states, without the padding behind its end."""
    groups: dict[tuple[int, int], list[tuple[DriveChunk, np.ndarray]]] = {}
    for chunk, states in chunks:
        if chunk.place is not None:
            groups.setdefault((chunk.place.rows.start, chunk.place.rows.stop), []).append((chunk, as_numpy(states)))
    for (first, stop), parts in groups.items():
        inputs = np.concatenate([chunk.inputs for chunk, _ in parts], axis=1)
        states = np.concatenate([found for _, found in parts], axis=1)
        lengths = split.ends[first:stop] + 1
        alike = [slice(0, len(lengths))] if len(set(lengths)) == 1 else [slice(i, i + 1) for i in range(len(lengths))]
        for rows in alike:
            steps = int(lengths[rows][0])
            place = Region(slice(first + rows.start, first + rows.stop), 0, steps)
            yield replace(parts[0][0], inputs=inputs[rows, :steps], place=place), states[rows, :steps]


def _pieces(readout: Readout, split: Split, chunk: DriveChunk, states: Any) -> Iterator[tuple[Chunk, tuple[Any, Any]]]:
    """What of a chunk can be learned from, without padding, and where in the split it lies (sequences, steps).

    Steps that do not count are left out behind the washout, which counts all. Who gathers whole sequences gets all
    steps, with NaN for the targets of those that do not count, or are not the end where that alone does.
    """
    place, inputs, whole = chunk.place, readout.input_connection, gathers(readout)
    if place is None:
        return
    if split.at_end and not whole:
        yield from _ends(split, chunk, states, place, inputs=inputs)
        return
    given = chunk.inputs if inputs else None
    if split.in_one_piece and not split.at_end:
        times = slice(place.start, place.stop)
        yield Chunk(states, split.targets[place.rows, times], given, new_sequence=place.start == 0), (place.rows, times)
        return
    washout = getattr(readout, "washout", 0)
    for row, number in enumerate(range(place.rows.start, place.rows.stop)):
        stop = min(place.stop, int(split.ends[number]) + 1)
        here = np.arange(place.start, max(place.start, stop))
        counts = here == split.ends[number] if split.at_end else split.counted_at(number, here)
        targets = split.targets[number : number + 1, here]
        taken: Any = slice(0, len(here))
        if whole:
            targets = np.where(counts[:, None], targets, np.nan)
        elif not counts.all():
            taken = np.flatnonzero(counts | (here < washout))
            here, targets = here[taken], np.nan_to_num(targets[:, taken])
        one = slice(row, row + 1)
        piece = Chunk(
            states[one, taken], targets, None if given is None else given[one, taken], new_sequence=place.start == 0
        )
        yield piece, (slice(number, number + 1), here)


def _ends(
    split: Split, chunk: DriveChunk, states: Any, place: Region, *, inputs: bool
) -> Iterator[tuple[Chunk, tuple[np.ndarray, np.ndarray]]]:
    """The last steps of the sequences that end in this chunk, as sequences of one step."""
    ends = split.ends[place.rows]
    (rows,) = np.nonzero((place.start <= ends) & (ends < place.stop))
    if len(rows):
        at = (rows[:, None], (ends[rows] - place.start)[:, None])
        there = (place.rows.start + at[0], ends[rows][:, None])
        yield Chunk(states[at], split.targets[there], chunk.inputs[at] if inputs else None, True), there
