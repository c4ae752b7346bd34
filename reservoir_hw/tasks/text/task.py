"""Say how a text goes on."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.figure_style import colours, one_panel
from reservoir_hw.core.tokenizer import BpeTokenizer, CharTokenizer, Corpus, Documents, Tokenizer, WordTokenizer
from reservoir_hw.tasks.report import about_spread, by_label, mean_and_spread, metric_values
from reservoir_hw.tasks.task import (
    Evaluation,
    Figures,
    OutputScale,
    Row,
    Split,
    Table,
    Task,
    TaskConfig,
    Tokens,
    checked_outputs,
    cross_entropy_of,
)
from reservoir_hw.tasks.text.corpus import (
    LINE,
    SPACE,
    cut,
    encoded,
    encoded_lines,
    one_a_line,
    read_text,
    trained_byte_pairs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_COLUMNS = {
    "parameters": "trained weights",
    "cross_entropy": "nats per token",
    "bits_per_character": "bits per character",
    "perplexity": "perplexity",
    "accuracy": "accuracy",
}
_SAMPLE_WIDTH = 90
_SAMPLE_SHOWN = 600
# Characters in a line: the legend stands beside the axes, and leaves them room.
_LEGEND_WIDTH = 30
_VALIDATION: dict[str, Any] = {
    "marker": "o", "linestyle": "--", "markersize": 4, "linewidth": 1, "markerfacecolor": "white",
}  # fmt: skip


def _cell(rows: Sequence[Row], name: str) -> str:
    values = metric_values(rows, name)
    if name == "parameters" and len(values):
        return f"{values.mean():,.0f}"
    return mean_and_spread(rows, name, ".2f" if name == "perplexity" else ".4f")


def _note(rows: Sequence[Row], unit: str | None) -> str:
    if unit is not None:
        return f"Each {unit} of the test is read from rest."
    lengths = sorted({int(row.evaluation.arrays["context"]) for row in rows if "context" in row.evaluation.arrays})
    if not lengths:
        return ""
    return (
        f"Language models begin at rest with every {' or '.join(map(str, lengths))} tokens, as in training; other "
        "models and baselines read the test as one sequence."
    )


def _beginning(sample: str) -> str:
    if (left := len(sample) - _SAMPLE_SHOWN) > 0:
        sample = f"{sample[:_SAMPLE_SHOWN]}… (and {left:,} characters more in its file)"
    lines = (textwrap.wrap(line, _SAMPLE_WIDTH, drop_whitespace=False) or [""] for line in sample.split("\n"))
    return "\n".join(part for parts in lines for part in parts)


def _training_figure(labels: dict[str, list[Row]]) -> Figure:
    figure, axes = one_panel(8.5, 4.4)
    for (label, rows), colour in zip(labels.items(), colours(len(labels)), strict=True):
        for number, row in enumerate(rows):
            arrays = row.evaluation.arrays
            name = textwrap.fill(label, _LEGEND_WIDTH) if number == 0 else None
            axes.plot(arrays["training/step"], arrays["training/loss"], color=colour, linewidth=1.2, label=name)
            if len(arrays["validation/step"]):
                axes.plot(arrays["validation/step"], arrays["validation/loss"], color=colour, **_VALIDATION)
    if any(len(row.evaluation.arrays["validation/step"]) for rows in labels.values() for row in rows):
        axes.plot([], [], color="0.4", label="validation", **_VALIDATION)
    axes.set(xlabel="step", ylabel="cross-entropy (nats per token)", title="Loss over the training")
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _weights_figure(trained: dict[str, list[Row]], others: dict[str, list[Row]]) -> Figure:
    figure, axes = one_panel(8.5, 4.4)
    for (label, rows), colour in zip(trained.items(), colours(len(trained)), strict=True):
        weights, losses = metric_values(rows, "parameters"), metric_values(rows, "cross_entropy")
        axes.plot(weights, losses, "o", color=colour, markersize=7, label=textwrap.fill(label, _LEGEND_WIDTH))
    for (label, rows), style in zip(others.items(), [":", "--", "-.", "-"] * len(others), strict=False):
        loss = metric_values(rows, "cross_entropy").mean()
        axes.axhline(loss, color="0.5", linewidth=1, linestyle=style, label=label)
    title = "Test loss by the number of trained weights"
    axes.set(xscale="log", xlabel="trained weights", ylabel="cross-entropy of the test (nats per token)", title=title)
    figure.legend(loc="outside right center", frameon=False)
    return figure


# ---- How much of what a model writes stands in a text (Köster & Uchida 2026, eq. 8).


def ngram_overlap(written: np.ndarray, reference: np.ndarray, n: int) -> float:
    """|G ∩ R| / |G|: of the different n-grams of tokens `written` (time,), the share that `reference` (time,) has.

    Raises `ShapeError` where one of them is shorter than n.
    """
    if min(len(written), len(reference)) < n:
        raise ShapeError(f"{n}-grams need at least {n} tokens; there are {len(written)}, and {len(reference)} to find")
    return float(np.isin(np.unique(_ngrams(written, n)), _ngrams(reference, n)).mean())


def _ngrams(tokens: np.ndarray, n: int) -> np.ndarray:
    """Every run of n tokens as one item of bytes, (time - n + 1,)."""
    runs = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, dtype=np.int32), n)
    return np.ascontiguousarray(runs).view(f"V{4 * n}").ravel()


Level = Literal["char", "word", "bpe"]

UNKNOWN: dict[Level, str] = {"char": "\ufffd", "word": "<unk>"}
"""What stands for everything that the vocabulary does not have."""

# Numbers of a split in one-hot form, 512 MiB.
_LARGEST = 1 << 27


class TextConfig(TaskConfig):
    """Say how a text goes on: characters, words or byte pairs."""

    kind: Literal["text"]
    corpus: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="path of a text (also .gz, .xz, or an archive .tar), or several; looked for in the folder of "
        "RESERVOIR_HW_DATA too"
    )
    members: str | None = Field(
        default=None, description="of archives: which files in them, by a pattern (default: *.txt)"
    )
    level: Level = Field(default="char", description="what a token is; bpe: byte pairs, GPT-2's or trained ones")
    characters: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="level char: the vocabulary; null: the characters of the training part"
    )
    vocabulary: Annotated[int, Field(ge=257, le=1 << 20)] | None = Field(
        default=None, description="level bpe: train so many byte pairs on the training part; null: GPT-2's"
    )
    unit: Literal["sentence"] | None = Field(
        default=None,
        description="sentence: those of English prose, each from rest (level bpe); null: one text",
    )
    shortest: Annotated[int, Field(ge=3)] | None = Field(
        default=None, description="tokens of a sentence, <|endoftext|> before and behind it counted (default: 3)"
    )
    longest: Annotated[int, Field(ge=3)] | None = Field(
        default=None, description="the same; sentences with fewer or more tokens are left out (default: no limit)"
    )
    lower: bool = Field(default=False, description="turn the text to lower case")
    offset: NonNegativeInt | None = Field(
        default=None, description="characters that are skipped at the beginning (default: 0)"
    )
    limit: PositiveInt | None = Field(default=None, description="characters that are read, from `offset` on")
    most: PositiveInt | None = Field(default=None, description="level word: how many of the most frequent words")
    unknown: Literal["error", "token"] = Field(
        default="error", description="what the training part does not have: refuse it, or give it a token of its own"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.05, description="share of the text")
    test: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.05, description="share of the text, its end")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation:g} and test {self.test:g} leave nothing for training")
        for name, level in (("most", "word"), ("characters", "char"), ("vocabulary", "bpe")):
            if getattr(self, name) is not None and self.level != level:
                raise ValueError(f"{name} belongs to level {level}, not to {self.level}")
        if self.unit == "sentence" and self.level != "bpe":
            raise ValueError("unit: sentence needs level: bpe, whose <|endoftext|> stands before and behind a sentence")
        for name in ("shortest", "longest"):
            if getattr(self, name) is not None and self.unit is None:
                raise ValueError(f"{name} belongs to unit: sentence")
        if self.longest is not None and self.longest < (self.shortest or 3):
            raise ValueError(f"longest {self.longest} is less than shortest {self.shortest or 3}")
        if self.most is not None and self.unknown == "error":
            raise ValueError("most leaves words without a token: it needs unknown: token")
        return self

    def build(self) -> Text:
        """A `Text` with these settings."""
        return Text(self)


class Text(Task):
    """Say which token of a text comes next.

    The text is cut into three contiguous parts, for training, validation and, last, the test. `tokens_train`,
    `tokens_validation` and `tokens_test` hold the numbers of their tokens (time,), with `unit: sentence` those of each
    sentence (`Documents`); the vocabulary is that of the training part, or is given (`characters`, GPT-2's byte
    pairs). A language model learns from them.

    For every other readout, and for the n-gram baselines, `train` and `test` are made when they are asked for: one
    sequence each of one-hot inputs and, as targets, the one-hot tokens that follow, (1, time, vocabulary).

    `evaluate` returns, of the test tokens after the first:

    - `cross_entropy`, nats per token. Scores are taken for probabilities after they were clipped to at least 1e-4
      and divided by their sum.
    - `bits_per_character` (`level` char), `perplexity`, its exponential, and `accuracy`, the share of tokens that the
      largest output hits.

    Takes a configuration, or the fields of `TextConfig` as keywords. With `unknown: token`, all tokens that the
    training part does not have share one token of their own, which is part of the vocabulary in any case.

    Raises
    ------
    ConfigurationError
        A setting is out of range; a file is missing, damaged, empty or no text; a part is too short.
    InputRangeError
        A token is not in the vocabulary.
    """

    score = "cross_entropy"
    input_range = (0.0, 1.0)
    one_hot = True
    larger, smaller = ("accuracy",), ("perplexity", "bits_per_character")
    judged_by_outputs = False

    def __init__(self, config: TextConfig | None = None, /, **settings: Any) -> None:
        config = TextConfig.of(config, settings)
        self.level, self.unit = config.level, config.unit
        self.lower = config.lower
        files = [config.corpus] if isinstance(config.corpus, str) else config.corpus
        self.corpus = ", ".join(files)
        text = read_text(files, config.offset or 0, config.limit, config.members or "*.txt")
        at = None if config.level == "char" else SPACE
        if self.unit == "sentence":
            text, at = one_a_line(text), LINE
        train, held_out, last = cut(text, (config.validation, config.test), at)
        del text  # Of a large corpus one copy is enough.
        self.tokenizer = _tokenizer(train.lower() if config.lower else train, config)
        self.vocabulary = self.tokenizer.vocabulary
        self._whose = "of the training part" if config.characters is None else "of task.characters"
        self._lengths = (config.shortest or 3, config.longest or math.inf) if self.unit == "sentence" else None
        self.tokens_train = self._encoded("training", train)
        self.tokens_validation = self._encoded("validation", held_out)
        self.tokens_test = self._encoded("test", last)
        for part, tokens in (("training", self.tokens_train), ("test", self.tokens_test)):
            if len(tokens) < 2:
                what, but = "tokens", ""
                if self._lengths is not None:
                    what = "sentences of {} to {} tokens".format(*self._lengths)
                    but = ", other lengths (shortest, longest)"
                raise ConfigurationError(
                    f"corpus: the {part} part of {self.corpus} has {len(tokens)} {what}; give more text{but}, or "
                    f"another share for the test than {config.test:g}"
                )

    def encode(self, text: str) -> np.ndarray:
        """Tokens (time,) of a text, such as a prompt. Raises `InputRangeError` for what has no token."""
        return self.tokenizer.encode(text.lower() if self.lower else text)

    @property
    def tokens(self) -> Tokens:
        """This text."""
        return self

    @property
    def inputs(self) -> int:
        """One channel for each token of the vocabulary."""
        return self.vocabulary

    @property
    def outputs(self) -> int:
        """One for each token of the vocabulary."""
        return self.vocabulary

    @cached_property
    def train(self) -> Split:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The training part, one-hot. Raises `ConfigurationError` where it would be too large."""
        return self._split(self.tokens_train, "training")

    @cached_property
    def test(self) -> Split:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The test part, one-hot. Raises `ConfigurationError` where it would be too large."""
        return self._split(self.tokens_test, "test")

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, vocabulary) for the test split; the class describes the metrics."""
        following = cast(np.ndarray, self.tokens_test)[1:].astype(np.int64)
        values = checked_outputs(outputs, self.test)[0]
        accuracy = float((values.argmax(axis=1) == following).mean())
        return self.evaluation_of(cross_entropy_of(values, following, scale), accuracy)

    def evaluation_of(self, cross_entropy: float, accuracy: float) -> Evaluation:
        """The metrics of a model with this mean cross-entropy (nats per token) and accuracy."""
        metrics = {"cross_entropy": cross_entropy}
        if self.level == "char":
            metrics["bits_per_character"] = cross_entropy / math.log(2)
        # Beyond 700 nats the exponential overflows.
        return Evaluation(metrics | {"perplexity": math.exp(min(cross_entropy, 700.0)), "accuracy": accuracy})

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Losses on the test beside the number of trained weights, by label, and the first sample of each."""
        labels = by_label(rows)
        known = {name for row in rows for name in row.evaluation.metrics}
        overlaps = sorted((name for name in known if name.startswith("overlap/")), key=lambda name: int(name[8:]))
        columns = {**_COLUMNS, **{name: f"{name[8:]}-gram overlap" for name in overlaps}}
        shown = {name: title for name, title in columns.items() if name in known}
        repeated = any(len(same) > 1 for same in labels.values())
        body = [
            [label, *([str(len(same))] if repeated else []), *(_cell(same, name) for name in shown)]
            for label, same in labels.items()
        ]
        what = {"char": "characters", "word": "words", "bpe": "byte pairs"}[self.level]
        header = ["model", *(["runs"] if repeated else []), *shown.values()]
        note = _note(rows, self.unit) + (" " + about_spread(rows) if repeated else "")
        found = [Table(f"The next of the test's {what}", header, body, note)]
        samples = [
            [_beginning(str(same[0].evaluation.arrays["sample"])), label]
            for label, same in labels.items()
            if "sample" in same[0].evaluation.arrays
        ]
        if samples:
            found.append(Table("What they write", ["⟦prompt⟧ and text", "model"], samples))
        return found

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Losses over the training, and, of several trained models, of the test over the number of weights."""
        trained = by_label([row for row in rows if "training/step" in row.evaluation.arrays])
        found: Figures = {}
        if trained:
            found["training"] = _training_figure(trained)
        if len(trained) > 1:
            others = by_label([row for row in rows if "parameters" not in row.evaluation.metrics])
            found["loss_by_weights"] = _weights_figure(trained, others)
        return found

    def _encoded(self, part: str, text: str) -> Corpus:
        text = text.lower() if self.lower else text
        if self._lengths is not None:
            sentences = encoded_lines(cast(BpeTokenizer, self.tokenizer), text)
            shortest, longest = self._lengths
            return sentences.chosen((sentences.lengths >= shortest) & (sentences.lengths <= longest))
        try:
            return encoded(self.tokenizer, text)
        except InputRangeError as error:
            raise InputRangeError(
                f"corpus: the vocabulary is that {self._whose}, and in the {part} part {error}. In a file: "
                "task.unknown: token"
            ) from error

    def _split(self, tokens: Corpus, part: str) -> Split:
        if isinstance(tokens, Documents):
            raise ConfigurationError(
                "unit: sentence is for models that learn from tokens (esn_lm, linear, low_rank, attention, laerc; gpt, "
                "lstm, ... as baselines): take one of these, or leave unit out"
            )
        size = (len(tokens) - 1) * self.vocabulary
        if size > _LARGEST:
            raise ConfigurationError(
                f"the {part} part has {len(tokens):,} tokens of {self.vocabulary:,} kinds: one-hot, as this readout or "
                f"baseline needs them, that is {size:,} numbers, of which {_LARGEST:,} are allowed. Set task.limit, or "
                "take a readout that learns from tokens (linear, low_rank, attention, laerc) and no baselines"
            )
        symbols = tokens.astype(np.int64)
        inputs, targets = np.zeros((2, 1, len(symbols) - 1, self.vocabulary), dtype=np.float32)
        for vectors, shown in ((inputs, symbols[:-1]), (targets, symbols[1:])):
            vectors[0, np.arange(len(shown)), shown] = 1
        return Split(inputs, targets, symbols=symbols[np.newaxis, :-1])


def _tokenizer(text: str, config: TextConfig) -> Tokenizer:
    if config.level == "bpe" and config.vocabulary is None:
        return BpeTokenizer.gpt2()
    if not text:
        raise ConfigurationError("corpus: nothing is left for training; make the shares of validation and test smaller")
    if config.vocabulary is not None:
        return trained_byte_pairs(text, config.vocabulary)
    stand_in = UNKNOWN[config.level] if config.unknown == "token" else None
    if config.level == "word":
        return WordTokenizer.from_text(text, most=config.most, lowercase=config.lower, unknown=stand_in)
    if config.characters is not None:
        return CharTokenizer(config.characters, lowercase=config.lower, unknown=stand_in)
    return CharTokenizer.from_text(text, lowercase=config.lower, unknown=stand_in)
