"""What a reservoir is driven with, and how its readout's answers are judged."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, get_args

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Config, Document, validate
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.series_format import SeriesFormat
from reservoir_hw.core.tokenizer import Corpus

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from reservoir_hw.core.tokenizer import Tokenizer


_ROWS = 1_000_000
"""That points within the ends are taken of, at most."""


Figures: TypeAlias = "dict[str, Figure]"
"""By file stem."""

OutputScale = Literal["scores", "probabilities", "activations"]
"""Scores are on the scale of the targets, as a regression gives them. Probabilities sum to 1. Activations lie between 0
and 1, each for itself, as logistic outputs do."""


@dataclass(frozen=True)
class Split:
    """Inputs with their targets.

    `inputs` is (batch, time, inputs) and `targets` (batch, time, outputs), both float32 (a recording's inputs: as
    recorded).
    `symbols` (batch, time) holds the token numbers of symbolic tasks: symbol t is what inputs[:, t] encode.
    `lengths` (batch,) are the steps of each sequence where they differ: what lies beyond is padding, neither
    learned from nor judged. `at_end`: of each sequence only the last step is learned from and judged.
    `counted` (batch, time) is False where a step is neither learned from nor judged; None: all count.
    `continues`: of several sequences without `lengths` in a test, each goes on where the one beside it in the training
    ended. A single one does so in any case; others begin at rest.

    Raises `ShapeError` for arrays that do not fit together.
    """

    inputs: np.ndarray
    targets: np.ndarray
    symbols: np.ndarray | None = None
    lengths: np.ndarray | None = None
    at_end: bool = False
    counted: np.ndarray | None = None
    continues: bool = False

    def __post_init__(self) -> None:
        shapes = f"inputs {self.inputs.shape} and targets {self.targets.shape}"
        if self.inputs.ndim != 3 or self.targets.ndim != 3 or len(self.inputs) != len(self.targets):
            raise ShapeError(f"{shapes} are not (batch, time, channels) of as many sequences")
        if self.lengths is not None:
            steps = min(self.inputs.shape[1], self.targets.shape[1])
            lengths = np.asarray(self.lengths)
            if lengths.shape != (len(self.inputs),) or lengths.min(initial=1) < 1 or lengths.max(initial=1) > steps:
                raise ShapeError(f"lengths must be {len(self.inputs)} numbers from 1 to {steps}: {shapes}")
        if self.counted is not None and self.counted.shape != self.targets.shape[:2]:
            raise ShapeError(f"counted is {self.counted.shape}, and needs (batch, time) of targets: {shapes}")

    @property
    def ends(self) -> np.ndarray:
        """(batch,), the last step of each sequence."""
        batch, steps = self.targets.shape[:2]
        return (np.full(batch, steps) if self.lengths is None else np.asarray(self.lengths)) - 1

    def steps_of(self, rows: slice) -> int:
        """How far these sequences are driven: to the end of the longest."""
        return int(self.ends[rows].max()) + 1 if self.lengths is not None else self.inputs.shape[1]

    @property
    def in_one_piece(self) -> bool:
        """Whether all sequences have the same steps, and all steps count."""
        return self.lengths is None and self.counted is None

    @property
    def valid(self) -> np.ndarray:
        """(batch, time), True where a step counts and is no padding."""
        batch, steps = self.targets.shape[:2]
        counted = np.ones((batch, steps), dtype=bool) if self.counted is None else self.counted
        return counted if self.lengths is None else counted & (np.arange(steps) <= self.ends[:, None])

    def counted_at(self, row: int, steps: np.ndarray) -> np.ndarray:
        """(steps,), whether these of a sequence count."""
        return np.ones(len(steps), dtype=bool) if self.counted is None else self.counted[row, steps]

    def of(self, rows: Any, steps: Any = slice(None)) -> Split:
        """Some of the sequences, and of their steps; the lengths are those of whole sequences."""
        return replace(
            self,
            inputs=self.inputs[rows][:, steps],
            targets=self.targets[rows][:, steps],
            symbols=None if self.symbols is None else self.symbols[rows][:, steps],
            lengths=None if self.lengths is None else np.asarray(self.lengths)[rows],
            counted=None if self.counted is None else self.counted[rows][:, steps],
        )


@dataclass(frozen=True)
class Evaluation:
    """The judgement of one set of outputs.

    `metrics` are single numbers; `arrays` are whatever the task's figures need (curves, counts).
    """

    metrics: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One line of a result: which model (`label`), at which point of `vary`, judged how.

    `details` are further facts for `metrics.json`: the settings of the readout, and what it took.
    """

    label: str
    point: Mapping[str, Any]
    evaluation: Evaluation
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A titled table of text cells for the terminal and the report."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Tokens(Protocol):
    """A text in numbers, which language models learn from: three parts, each (time,) or documents.

    A model is judged by its cross-entropy over windows or documents of the test (`evaluation_of`), or with
    `judged_by_outputs` by its outputs for the whole test as one sequence (`Task.evaluate`).
    """

    tokenizer: Tokenizer
    vocabulary: int
    tokens_train: Corpus
    tokens_validation: Corpus
    tokens_test: Corpus

    @property
    def judged_by_outputs(self) -> bool:
        """Which of the two."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Tokens (time,) of a text, such as a prompt. Raises `InputRangeError` for what has no token."""
        ...

    def evaluation_of(self, cross_entropy: float, accuracy: float) -> Evaluation:
        """The metrics of a model with this mean cross-entropy (nats per token) and accuracy."""
        ...


class Task(ABC):
    """A train and a test split and the measures of success.

    In a task with `closed_loop` the readout learns to say the next inputs, u(t + 1) from u(t), and is then fed with
    its own answers: `test.inputs` (starts, warmup, inputs) are the true series up to each start, and `test.targets`
    (starts, steps, outputs) how it truly goes on.
    """

    train: Split
    test: Split
    input_range: tuple[float, float] | None = None
    """Between these all inputs lie, by the definition of the task; None where it does not say."""
    one_hot: bool = False
    """Whether one channel has the upper end of `input_range`, and all others the lower one."""
    input_length: float | None = None
    """The most that the vector of all inputs of a step measures, where that is known."""
    closed_loop: bool = False
    score: str = ""
    """The metric that stands for all where a figure has room for one."""
    larger_is_better: bool = False
    """Of this metric."""
    larger: tuple[str, ...] = ()
    smaller: tuple[str, ...] = ()
    """Other metrics that are better when larger, and when smaller. A name also stands for those behind it: r2, r2/1."""
    held_out: Split | None = None
    """What is neither learned from nor judged: a training by gradients may look at it to know when to stop."""
    own_validation: str = ""
    """How a task that `kind: validation` does not split is told to be judged on what it holds out."""
    goes_on: bool = False
    """Whether training and test are one recording, which is driven without a reset between them."""
    piece_steps: int = 1
    """A test is judged in pieces of so many steps, and holds a whole number of them."""
    series: SeriesFormat | None = None
    """What the numbers are for the user, where they are not what the splits hold."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """What the data are, for the provenance: an evaluation or an export of a run finds the same here."""
    inputs_digest: str = ""
    """Of all inputs, where the configuration of the task does not tell them."""
    remarks: Sequence[str] = ()
    """What casts doubt on the data, a sentence each."""

    def direction_of(self, metric: str) -> Literal["minimize", "maximize"] | None:
        """Which way a metric gets better, as far as the task says."""
        name = metric.partition("/")[0]
        if name in self.larger or (name == self.score.partition("/")[0] and self.larger_is_better):
            return "maximize"
        return "minimize" if name in (*self.smaller, self.score.partition("/")[0]) else None

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return self.train.inputs.shape[2]

    @cached_property
    def ranges(self) -> dict[str, Any]:
        """Ends of each channel of inputs and targets in training, and the points 0.1 % from them.

        They are in the user's numbers. Padding and steps that are not valid are left out.
        """
        found, valid, series = {}, self.train.valid, self.series
        for name, values, to_user in (
            ("inputs", self.train.inputs, series and series.user_inputs),
            ("targets", self.train.targets, series and series.user_outputs),
        ):
            rows = values[:, : valid.shape[1]][valid[:, : values.shape[1]]]
            most = rows[:: max(1, -(-len(rows) // _ROWS))]
            # Numbers that occur, inwards: of few rows the one at each end is left out all the same.
            low = np.quantile(most, 0.001, axis=0, method="higher")
            high = np.quantile(most, 0.999, axis=0, method="lower")
            ends = np.array([rows.min(axis=0), rows.max(axis=0), low, high], np.float64)
            keys = ("low", "high", "low_point", "high_point")
            found[name] = dict(zip(keys, (ends if to_user is None else to_user(ends)).tolist(), strict=True))
        return found

    @property
    def test_follows(self) -> bool:
        """Whether the training is the past of the test: of one sequence, and of several that say so."""
        one = len(self.train.inputs) == len(self.test.inputs) == 1
        return self.train.lengths is None and self.test.lengths is None and (one or self.test.continues)

    @property
    def channels(self) -> Channels:
        """What a reservoir is driven with, as far as the task declares it."""
        return Channels(self.inputs, self.input_range, self.one_hot, self.input_length)

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        return self.train.targets.shape[2]

    @property
    def tokens(self) -> Tokens | None:
        """What language models learn from; None for a task that is no text."""
        return None

    def place_of(self, split: str, row: int, step: int) -> str:
        """Where a step stands in the user's data, for messages."""
        return f"{split} sequence {row}, step {step}"

    def validation(self, share: float) -> Task:
        """The same, judged on the last `share` of its training data.

        Of several sequences a share is chosen at random, of each class as many as it has, where the targets are
        classes. In a closed loop the forecasts begin at places that are equally far apart in the part that is judged,
        as many as in the task, if there are so many places. What is scaled stays as it is: a task that scales by its
        training data overrides this.

        Raises `ConfigurationError` for a text, and where the part is too short.
        """
        if self.tokens is not None:
            raise ConfigurationError("a text has a validation part of its own")
        if self.own_validation:
            raise ConfigurationError(f"this task has a validation of its own: {self.own_validation}")
        found, train = copy.copy(self), self.train
        if len(train.inputs) > 1:
            judged = stratified(_labels_of(train), share, 0)
            found.train, found.test = train.of(~judged), train.of(judged)
            return found
        steps = train.inputs.shape[1]
        judged_steps = int(steps * share) // self.piece_steps * self.piece_steps
        cut = steps - judged_steps
        needed = self.test.inputs.shape[1] + self.test.targets.shape[1] if self.closed_loop else 2
        if cut < 1 or judged_steps < needed:
            raise ConfigurationError(
                f"a share of {share:g} of {steps} training steps is {judged_steps} steps, but at least {needed} are "
                "needed; take a larger share or more training steps"
            )
        found.train, found.test = train.of([0], slice(0, cut)), train.of([0], slice(cut, steps))
        if self.closed_loop:
            found.test = _forecasts_in(train.inputs[0, cut:], self.test)
        return found

    @abstractmethod
    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (batch, time, outputs) for the test split.

        `scale` says what they are: scores of a readout, or probabilities (the n-gram baselines), ...
        """

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Tables beyond the plain list of metrics, for instance beside published figures."""
        return []

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Figures by file stem. Imports matplotlib, so it needs the `report` extra."""
        return {}


def _labels_of(split: Split) -> list[Any]:
    """The class of each sequence, where its targets are 1 for one output and 0 for the others; else None for each."""
    answers = split.targets[np.arange(len(split.ends)), split.ends]
    one_hot = answers.shape[1] > 1 and np.isin(answers, (0, 1)).all() and (answers.sum(axis=1) == 1).all()
    return answers.argmax(axis=1).tolist() if one_hot else [None] * len(answers)


def stratified(labels: Sequence[Any], share: float, seed: int) -> np.ndarray:
    """True for a share of the sequences, chosen at random, at least one of each label that several have.

    Raises `ConfigurationError` where nothing would be left on either side.
    """
    rng = generator(seed, "sequences that are judged")
    chosen = np.zeros(len(labels), dtype=bool)
    for label in dict.fromkeys(labels):
        members = rng.permutation([number for number, own in enumerate(labels) if own == label])
        count = round(share * len(members))
        chosen[members[: min(max(count, 1), len(members) - 1)]] = True
    if not chosen.any():
        raise ConfigurationError(f"of {len(labels)} sequences none can be held back: each is the only one of its class")
    return chosen


def _forecasts_in(series: np.ndarray, test: Split) -> Split:
    """Warm-up and continuation of forecasts in `series` (time, channels), as long as those of `test`."""
    starts, warmup = test.inputs.shape[:2]
    window = warmup + test.targets.shape[1]
    first = np.unique(np.linspace(0, len(series) - window, starts).astype(int))
    pieces = np.stack([series[begin : begin + window] for begin in first])
    return Split(pieces[:, :warmup], pieces[:, warmup:])


def in_two(inputs: np.ndarray, targets: np.ndarray, train_steps: int) -> tuple[Split, Split]:
    """Training and test of one sequence, from (time,) or (time, channels) each: the first steps, and the rest."""
    u, y = (series.reshape(1, len(inputs), -1).astype(np.float32) for series in (inputs, targets))
    return Split(u[:, :train_steps], y[:, :train_steps]), Split(u[:, train_steps:], y[:, train_steps:])


class TaskConfig(Config):
    """What every kind of task can be told. A kind adds `kind: Literal["..."]` and its own fields.

    The fields are the only declaration of a task's settings. They check an experiment file, and the keywords that a
    task takes in Python.
    """

    kind: Any

    @classmethod
    def of(cls, config: Self | None, settings: Mapping[str, Any]) -> Self:
        """`config`, or the defaults, with `settings` for some of the fields.

        Raises `ConfigurationError` that names each setting that is unknown or out of range.
        """
        if config is not None and not settings:
            return config
        (kind,) = get_args(cls.model_fields["kind"].annotation)
        given = {"kind": kind, **dict(config or ()), **settings}
        plain = {name: value.model_dump() if isinstance(value, Config) else value for name, value in given.items()}
        return validate(cls, Document.from_mapping(plain, ""))

    @property
    def fold_count(self) -> int:
        """Into how many points of `task.fold` the task divides itself."""
        return 1

    def for_readout(self, readout: Config) -> Self:
        """The same for what a readout counts."""
        return self

    def keep(self, folder: Path) -> None:
        """Write there what was given in memory, so that the configuration in that folder finds it."""

    @abstractmethod
    def build(self) -> Task:
        """Make the data. Heavy imports belong in here."""


class RepeatedConfig(TaskConfig):
    """Settings of a task that draws its data."""

    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0


# A probability below this is taken for it, so that one impossible guess does not make the loss infinite.
_FLOOR = {"scores": 1e-4, "probabilities": 1e-12, "activations": 1e-12}


def cross_entropy_of(outputs: np.ndarray, following: np.ndarray, scale: OutputScale) -> float:
    """Nats per token of outputs (time, vocabulary) for the tokens that follow (time,).

    Outputs are taken for probabilities after they were clipped to at least 1e-4 (scores) or 1e-12, and divided by
    their sum.
    """
    level = np.maximum(outputs, _FLOOR[scale])
    return float(-np.log(level[np.arange(len(following)), following] / level.sum(axis=1)).mean())


def checked_outputs(outputs: np.ndarray, split: Split, *, finite: bool = True) -> np.ndarray:
    """A copy of the outputs in float64, with 0 where a step does not count.

    Raises `ShapeError` where their shape is not that of the targets, and `InputRangeError` for NaN or infinity, unless
    `finite` is False.
    """
    outputs = np.asarray(as_numpy(outputs))
    expected = split.targets.shape
    if outputs.shape != expected:
        raise ShapeError(
            f"outputs have shape {outputs.shape}; the test split needs (batch, time, outputs) = {expected}."
        )
    outputs = outputs.astype(np.float64)
    outputs[~split.valid] = 0.0
    broken = outputs.size - np.count_nonzero(np.isfinite(outputs))
    if finite and broken:
        raise InputRangeError(
            f"{broken} of {outputs.size} outputs are not finite, so they cannot be judged. Check the "
            "states that the readout was given and its regularisation."
        )
    return outputs
