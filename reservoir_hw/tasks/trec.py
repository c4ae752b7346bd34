"""TREC: what a question asks for."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from zlib import crc32

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks import datasets
from reservoir_hw.tasks.report import by_model, counted, counted_classes, error_figure, error_table, padded
from reservoir_hw.tasks.task import (
    Evaluation,
    Figures,
    OutputScale,
    Row,
    Split,
    Table,
    Task,
    TaskConfig,
    checked_outputs,
)

# ---- What the questions were taken for, as table and figure.


# Of always answering the class that is the most frequent in training, in the test.
_GUESSING = 1 - 94 / 500


# ---- Vectors of words: random ones, or those of a file.


log = logging.getLogger(__name__)


def random_vectors(words: Iterable[str], width: int, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """A vector (width,), float32, for each word: normal numbers that depend on the word and the seed alone."""
    return {word: (scale * generator(seed, f"word {word}").standard_normal(width)).astype(np.float32) for word in words}


def word_vectors(words: Iterable[str], file: str, seed: int) -> dict[str, np.ndarray]:
    """Those of a text file for the words that it has, random ones of the same spread for the others.

    A line is a word and its numbers, as GloVe and fastText write them; with .gz or .xz at its end the file is unpacked.
    fastText's first line, which counts words and numbers, is passed over, and so is a last line that is cut off. A word
    that the file has only in lower case gets that vector.

    Raises `ConfigurationError` where the file is not there, damaged, has other lines, or none of the words.
    """
    wanted = set(words)
    found = _found(wanted | {word.lower() for word in wanted}, datasets.found_file(file, "vectors"))
    names = {word: word if word in found else word.lower() for word in wanted}
    known = {word: found[name] for word, name in names.items() if name in found}
    if not known:
        raise ConfigurationError(f"vectors: {file} has none of the {len(wanted):,} words of the questions")
    if len(known) < len(wanted):
        has = f"{len(known):,} of the {len(wanted):,} words of the questions"
        log.warning("vectors: %s has %s; the others are random", file, has)
    spread = float(np.std(list(known.values())))
    width = len(next(iter(known.values())))
    return {**random_vectors(sorted(wanted - set(known)), width, seed, spread), **known}


def _found(wanted: set[str], path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    width, cut = None, None
    # Some files have a few words in other encodings.
    with datasets.opened(path) as file, io.TextIOWrapper(file, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if cut is not None:
                raise ConfigurationError(f"vectors: line {cut} of {path} does not hold a word and {width} numbers")
            fields = line.rstrip().split(" ")
            if number == 1 and len(fields) == 2:
                continue
            width = width or len(fields) - 1
            if not 1 <= width < len(fields):
                cut = number
                continue
            # GloVe has words of several parts.
            word = " ".join(fields[:-width])
            if word in wanted:
                try:
                    found[word] = np.array(fields[-width:], np.float32)
                except ValueError:
                    cut = number
    return found


# ---- What a question asks for: one of six classes (Li & Roth 2002).


CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
"""Abbreviation, description, entity, human being, location, number."""

WIDTH = 300
"""Of random vectors: that of the fastText vectors of Di Sarli et al. 2022."""


@dataclass(frozen=True)
class Question:
    """The words of a question as the file has them, and the number of its class."""

    words: tuple[str, ...]
    label: int


def questions(data: bytes) -> list[Question]:
    """The questions in a file of the data set, latin-1: `CLASS:fine word word ...` in each line.

    Raises `ConfigurationError` for anything else.
    """
    found = []
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        label, *words = line.split()
        coarse = label.partition(":")[0]
        if coarse not in CLASSES or not words:
            raise ConfigurationError(f"this is no file of TREC questions: line {number} is {line!r}")
        found.append(Question(tuple(words), CLASSES.index(coarse)))
    return found


class TrecConfig(TaskConfig):
    """Say what a question asks for: six classes (Li & Roth 2002)."""

    kind: Literal["trec"]
    judge: Literal["test", "validation"] = Field(
        default="test", description="on the 500 questions of the test, or on those that are held out"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.2, description="share of the 5452 questions that is held out; 0: all are learned from"
    )
    seed: NonNegativeInt = Field(default=0, description="decides which are held out")
    limit: PositiveInt | None = Field(default=None, description="learn from so many of the others; null: from all")
    vectors: str | None = Field(
        default=None, description="a text file of word vectors (GloVe, fastText), also .gz or .xz; null: random ones"
    )
    width: PositiveInt | None = Field(default=None, description=f"of random vectors; null: {WIDTH}")
    vector_seed: NonNegativeInt = Field(default=0, description="of random vectors, and of words that the file lacks")

    def build(self) -> Trec:
        """A `Trec`."""
        return Trec(self)


class Trec(Task):
    """Say which of six things a question asks for, at its end.

    There are 5452 questions to learn from and 500 for the test. Some are held out for validation, chosen by `seed`:
    `judge` says whether they are the test, or only what a training by gradients may look at (`held_out`). Inputs are
    the vectors of the words, (questions, words, width), sorted by length and padded with 0 behind the `lengths`;
    targets are 1 for the class and 0 for the five others. Only the last step counts.

    `evaluate` takes the class with the largest output and gives `accuracy` with the ends of its 95 % interval,
    `accuracy/low` and `/high` (Wilson 1927), and `accuracy/unseen`, without the questions that are learned from word by
    word: 10 of the test if all are learned from.

    Raises `ConfigurationError` for settings that do not fit, and what `datasets.contents` raises.
    """

    score = "accuracy"
    own_validation = "give it `judge: validation`"
    larger_is_better = True

    def __init__(self, config: TrecConfig | None = None, **settings: Any) -> None:
        config = TrecConfig.of(config, settings)
        if config.vectors is not None and config.width is not None:
            raise ConfigurationError("width belongs to random vectors; those of a file have their own")
        every = questions(datasets.contents("trec_train"))
        order = generator(config.seed, "held out").permutation(len(every))
        held = round(config.validation * len(every))
        if config.judge == "validation" and not held:
            raise ConfigurationError("judge: validation needs questions that are held out: validation is 0")
        learned = order[held:][: config.limit]
        splits = [[every[i] for i in part] for part in (learned, order[:held])]
        splits.append(questions(datasets.contents("trec_test")))
        words = {word for split in splits for question in split for word in question.words}
        if config.vectors is None:
            width = config.width or WIDTH
            # Normal numbers: one vector in a million is longer.
            self.input_length = math.sqrt(width) + 5.0
            vectors = random_vectors(words, width, config.vector_seed)
        else:
            vectors = word_vectors(words, config.vectors, config.vector_seed)
        train, held_out, test = (sorted(split, key=lambda question: len(question.words)) for split in splits)
        judged = test if config.judge == "test" else held_out
        self.train, self.test = (_split(split, vectors) for split in (train, judged))
        self.held_out = _split(held_out, vectors) if held else None
        known = {question.words for question in train}
        self._seen = np.array([question.words in known for question in judged])
        self._judged = crc32(repr([question.words for question in judged]).encode())

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (questions, words, 6) for the questions that are judged, by those at the ends.

        `arrays` are `errors` and `trials` (), `confusion` (class, answer), counts, and `test` (), a checksum of the
        questions.

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        ends = np.arange(len(self.test.ends)), self.test.ends
        answers = checked_outputs(outputs, self.test)[ends].argmax(axis=1)
        labels = self.test.targets[ends].argmax(axis=1)
        right = answers == labels
        metrics = counted(right, "accuracy").metrics
        metrics["accuracy/unseen"] = float(right[~self._seen].mean())
        arrays = counted_classes(labels, answers, len(CLASSES)).arrays
        # The test of all seeds is the same; what is held out is not.
        return Evaluation(metrics, {**arrays, "test": np.array(self._judged)})

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Error rates by model."""
        return [error_table(by_model(rows), "TREC questions", "questions", ["accuracy/unseen"])]

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Error rates by model."""
        return {"error_rate": error_figure(by_model(rows), "questions", _GUESSING)}


def _split(found: Sequence[Question], vectors: dict[str, np.ndarray]) -> Split:
    sequences = [np.array([vectors[word] for word in question.words]) for question in found]
    return padded(sequences, [question.label for question in found], len(CLASSES), at_end=True)
