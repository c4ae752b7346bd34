"""What a reservoir is driven with, and how its readout's answers are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Config, Document, validate
from reservoir_hw.core.documents import Corpus
from reservoir_hw.core.errors import InputRangeError, ShapeError
from reservoir_hw.core.series_format import SeriesFormat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from reservoir_hw.core.tokenizer import Tokenizer

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
    """

    inputs: np.ndarray
    targets: np.ndarray
    symbols: np.ndarray | None = None
    lengths: np.ndarray | None = None
    at_end: bool = False

    @property
    def ends(self) -> np.ndarray:
        """(batch,), the last step of each sequence."""
        batch, steps = self.targets.shape[:2]
        return (np.full(batch, steps) if self.lengths is None else np.asarray(self.lengths)) - 1

    def steps_of(self, rows: slice) -> int:
        """How far these sequences are driven: all steps, or to the last end where the ends alone count."""
        return int(self.ends[rows].max()) + 1 if self.at_end else self.inputs.shape[1]

    @property
    def valid(self) -> np.ndarray:
        """(batch, time), True where there is no padding."""
        batch, steps = self.targets.shape[:2]
        if self.lengths is None:
            return np.ones((batch, steps), dtype=bool)
        return np.arange(steps) < np.asarray(self.lengths)[:, None]


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

    def evaluation_of(
        self, cross_entropy: float, accuracy: float, arrays: Mapping[str, np.ndarray] | None = None
    ) -> Evaluation:
        """The metrics of a model with this mean cross-entropy (nats per token) and accuracy."""
        ...


class Report(Protocol):
    """What makes tables and figures from the rows of a result."""

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """As `Task.tables`."""
        ...

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """As `Task.figures`."""
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
    series: SeriesFormat | None = None
    """What the user's numbers are, if inputs and targets are scaled or have names; None: they are as they are."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """Of which data it is made, for the provenance: sha256, rows. A run is judged and exported on the same alone."""
    piece_steps: int = 1
    """A test is judged in pieces of so many steps, and holds a whole number of them."""
    report: Report | None = None
    """Makes the tables and figures: the module `report` beside the task. A task can also override the two methods."""

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

    @abstractmethod
    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (batch, time, outputs) for the test split.

        `scale` says what they are: scores of a readout, or probabilities (the n-gram baselines), ...
        """

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Tables beyond the plain list of metrics, for instance beside published figures."""
        return [] if self.report is None else self.report.tables(rows)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Figures by file stem. Imports matplotlib, so it needs the `report` extra."""
        return {} if self.report is None else self.report.figures(rows)


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

    @abstractmethod
    def build(self) -> Task:
        """Make the data. Heavy imports belong in here."""


def checked_outputs(outputs: np.ndarray, split: Split, *, finite: bool = True) -> np.ndarray:
    """A copy of the outputs in float64, with 0 where the split is padded.

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
