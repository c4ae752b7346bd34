"""Bigram and trigram models with add-one smoothing (Tong et al. 2007, section 3.1)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat

from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import ConfigurationError, NotOpen, ShapeError
from reservoir_hw.core.tokenizer import Corpus, Documents
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.tasks.task import Evaluation, Task


class NGramConfig(BaselineConfig):
    """The next symbol given those before it (symbolic tasks). `NGram` checks its arguments by it, too."""

    order: ClassVar[Literal[2, 3]]
    smoothing: PositiveFloat = Field(
        default=1.0,
        description="added to every count, so that a context which training never showed has probabilities",
    )

    def build(self) -> NGramBaseline:
        """An `NGramBaseline` of this order."""
        return NGramBaseline(self.order, self.smoothing)

    def check_task(self, task: Task) -> None:
        """As `BaselineConfig`; every text can be counted."""
        if task.tokens is None or task.tokens.judged_by_outputs:
            super().check_task(task)

    def evaluate(self, task: Task) -> Evaluation:
        """Of a text the tokens are counted, whatever the size of the vocabulary; one-hot vectors are not made."""
        text = task.tokens
        if text is None or text.judged_by_outputs:
            return super().evaluate(task)
        model = TokenCounts(text.tokens_train, text.vocabulary, self.order, self.smoothing)
        chosen, right = model.judged(text.tokens_test)
        return text.evaluation_of(float(-np.log(chosen).mean()), float(right.mean()))


class BigramConfig(NGramConfig):
    """The next symbol given the present one (symbolic tasks)."""

    kind: Literal["bigram"]
    order = 2


class TrigramConfig(NGramConfig):
    """The next symbol given the present and the last one (symbolic tasks)."""

    kind: Literal["trigram"]
    order = 3


class NGram:
    """The next symbol's probability given the last one (`order=2`) or the last two (`order=3`).

    P(a | context) = (smoothing + count(context, a)) / sum over i of (smoothing + count(context, i)),
    which with `smoothing=1` are the paper's formulas. Where the trigram's context is cut off, at the
    first step of a sequence, the bigram of the same training symbols stands in for it.

    Memory is vocabulary_size ** order numbers of 8 bytes.
    """

    def __init__(self, order: Literal[2, 3], smoothing: float = 1.0) -> None:
        if order not in (2, 3):
            raise ConfigurationError(f"order is {order!r}; a bigram has order 2, a trigram order 3.")
        given = Document({"kind": "n-gram", "smoothing": smoothing}, {(): "NGram"})
        self.order = order
        self.smoothing = validate(NGramConfig, given).smoothing
        self._bigram: np.ndarray | None = None
        self._trigram: np.ndarray | None = None

    def fit(self, symbols: np.ndarray, vocabulary_size: int) -> Self:
        """Count the pairs or triplets in `symbols` (batch, time), integers from 0 to vocabulary_size - 1.

        Nothing is counted across the sequences of a batch. Raises `ShapeError` for other shapes and
        `ConfigurationError` for symbols outside the vocabulary.
        """
        symbols = _checked(symbols, vocabulary_size)
        size = vocabulary_size
        pairs = symbols[:, :-1] * size + symbols[:, 1:]
        self._bigram = self._probabilities(pairs, (size, size))
        if self.order == 3:
            triplets = pairs[:, :-1] * size + symbols[:, 2:]
            self._trigram = self._probabilities(triplets, (size, size, size))
        return self

    def predict(self, symbols: np.ndarray) -> np.ndarray:
        """Probabilities (batch, time, vocabulary) of symbol t + 1 given symbols (batch, time) up to t.

        Raises `NotOpen` before `fit`, otherwise as `fit`.
        """
        if self._bigram is None:
            raise NotOpen("NGram.predict was called before fit: call fit(symbols, vocabulary_size) first.")
        symbols = _checked(symbols, len(self._bigram))
        if self._trigram is None:
            return self._bigram[symbols]
        first = self._bigram[symbols[:, :1]]
        return np.concatenate([first, self._trigram[symbols[:, :-1], symbols[:, 1:]]], axis=1)

    def _probabilities(self, codes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        counts = np.bincount(codes.ravel(), minlength=int(np.prod(shape))).reshape(shape)
        smoothed = counts + self.smoothing
        return smoothed / smoothed.sum(axis=-1, keepdims=True)


class TokenCounts:
    """The counts of an `NGram` for a vocabulary of any size: of those pairs or triplets alone that a text has.

    Nothing is counted from one document to the next. Memory and time are those of sorting the tokens.
    """

    def __init__(self, tokens: Corpus, vocabulary: int, order: Literal[2, 3], smoothing: float = 1.0) -> None:
        self._vocabulary, self._order, self._smoothing = vocabulary, order, smoothing
        codes = self._codes(tokens, order)
        self._known, self._counts = np.unique(codes, return_counts=True)
        contexts = self._known // vocabulary
        self._contexts, first = np.unique(contexts, return_index=True)
        self._totals = np.add.reduceat(self._counts, first) if len(first) else first
        # Of each context the token that followed most often, the first of several.
        order_of = np.lexsort((self._known, -self._counts, contexts))
        self._likely = self._known[order_of[first]] % vocabulary
        self._shorter = TokenCounts(tokens, vocabulary, 2, smoothing) if order == 3 else None

    def judged(self, tokens: Corpus) -> tuple[np.ndarray, np.ndarray]:
        """Of each token after the first of a text: its probability, and whether no other one is more probable.

        Those of a trigram begin with the second tokens, which a bigram judges.
        """
        codes = self._codes(tokens, self._order)
        counts = _looked_up(codes, self._known, self._counts)
        contexts = codes // self._vocabulary
        totals = _looked_up(contexts, self._contexts, self._totals)
        chosen = (self._smoothing + counts) / (self._smoothing * self._vocabulary + totals)
        right = _looked_up(contexts, self._contexts, self._likely) == codes % self._vocabulary
        if self._shorter is None:
            return chosen, right
        first = self._shorter.judged(_beginnings(tokens, 2))
        return np.append(first[0], chosen), np.append(first[1], right)

    def _codes(self, tokens: Corpus, order: int) -> np.ndarray:
        """A number for each run of `order` tokens."""
        if isinstance(tokens, Documents):
            numbers, places = tokens.tokens, tokens.places(order)
        else:
            numbers, places = tokens, np.arange(max(0, len(tokens) - order + 1))
        codes = np.zeros(len(places), np.int64)
        for place in range(order):
            codes = codes * self._vocabulary + numbers[places + place].astype(np.int64)
        return codes


def _beginnings(tokens: Corpus, size: int) -> Corpus:
    """The first tokens of each text."""
    if isinstance(tokens, Documents):
        return Documents(tokens.tokens, tokens.starts, np.minimum(tokens.starts + size, tokens.stops))
    return tokens[:size]


def _looked_up(wanted: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The value of each, 0 for what is not known; `known` is sorted."""
    if not len(known):
        return np.zeros(len(wanted), np.int64)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, values[at], 0)


class NGramBaseline:
    """An `NGram` that is trained and asked like a readout, with whole splits of a symbolic task."""

    scale: Literal["scores", "probabilities"] = "probabilities"

    def __init__(self, order: Literal[2, 3], smoothing: float = 1.0) -> None:
        self.model = NGram(order, smoothing)

    def fit(self, inputs: np.ndarray, targets: np.ndarray, symbols: np.ndarray | None) -> Self:
        """Count in `symbols` (batch, time); the last axis of `targets` is as long as the vocabulary.

        Raises `ConfigurationError` where the task has no symbols, otherwise as `NGram.fit`.
        """
        del inputs
        self.model.fit(_present(symbols), targets.shape[-1])
        return self

    def predict(self, inputs: np.ndarray, symbols: np.ndarray | None) -> np.ndarray:
        """Probabilities (batch, time, vocabulary), as `NGram.predict`."""
        del inputs
        return self.model.predict(_present(symbols))


def _present(symbols: np.ndarray | None) -> np.ndarray:
    if symbols is None:
        raise ConfigurationError(
            "an n-gram counts symbols, and this task has none. Leave the baseline out, or use a symbolic "
            "task such as elman_grammar."
        )
    return symbols


def _checked(symbols: np.ndarray, vocabulary_size: int) -> np.ndarray:
    symbols = np.asarray(symbols)
    if symbols.ndim != 2 or symbols.shape[1] == 0:
        raise ShapeError(f"symbols have shape {symbols.shape}; (batch, time) with at least one step is needed.")
    if not np.issubdtype(symbols.dtype, np.integer):
        raise ConfigurationError(f"symbols are {symbols.dtype}; token numbers are integers.")
    if symbols.size and (symbols.min() < 0 or symbols.max() >= vocabulary_size):
        raise ConfigurationError(
            f"symbols lie between {symbols.min()} and {symbols.max()}, outside a vocabulary of "
            f"{vocabulary_size}: they go from 0 to {vocabulary_size - 1}. Was the model fitted on the same task?"
        )
    return symbols.astype(np.int64)
