"""Bigram and trigram models with add-one smoothing (Tong et al. 2007, section 3.1)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tokenizer import Corpus, Documents
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.tasks.task import Evaluation, Task


class NGramConfig(BaselineConfig):
    """The next symbol given those before it (symbolic tasks)."""

    order: ClassVar[Literal[2, 3]]
    smoothing: PositiveFloat = Field(
        default=1.0,
        description="added to every count, so that a context which training never showed has probabilities",
    )

    def check_task(self, task: Task) -> None:
        """As `BaselineConfig`, and there must be symbols; every text can be counted."""
        if task.tokens is None or task.tokens.judged_by_outputs:
            super().check_task(task)
            if task.train.symbols is None:
                raise ConfigurationError(
                    "an n-gram counts symbols, and this task has none. Leave the baseline out, or use a symbolic "
                    "task such as elman_grammar."
                )

    def evaluate(self, task: Task) -> Evaluation:
        """Of a text the tokens are counted, whatever the size of the vocabulary; one-hot vectors are not made."""
        text = task.tokens
        if text is None or text.judged_by_outputs:
            assert task.train.symbols is not None
            assert task.test.symbols is not None
            model = NGram(Documents.of(list(task.train.symbols)), task.outputs, self.order, self.smoothing)
            return task.evaluate(model.probabilities(task.test.symbols), "probabilities")
        model = NGram(text.tokens_train, text.vocabulary, self.order, self.smoothing)
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
    """The next token's probability given the last one (`order=2`) or the last two (`order=3`).

    P(a | context) = (smoothing + count(context, a)) / sum over i of (smoothing + count(context, i)),
    which with `smoothing=1` are the paper's formulas. Where the trigram's context is cut off, at the
    first step of a sequence, the bigram of the same training tokens stands in for it.

    Nothing is counted from one document to the next. Memory and time are those of sorting the tokens, whatever the
    size of the vocabulary.
    """

    def __init__(self, tokens: Corpus, vocabulary: int, order: Literal[2, 3], smoothing: float = 1.0) -> None:
        self._vocabulary, self._order, self._smoothing = vocabulary, order, smoothing
        self._known, self._counts = np.unique(self._codes(tokens, order), return_counts=True)
        contexts = self._known // vocabulary
        self._contexts, first = np.unique(contexts, return_index=True)
        self._totals = np.add.reduceat(self._counts, first) if len(first) else first
        # Of each context the token that followed most often, the first of several.
        order_of = np.lexsort((self._known, -self._counts, contexts))
        self._likely = self._known[order_of[first]] % vocabulary
        self._shorter = NGram(tokens, vocabulary, 2, smoothing) if order == 3 else None

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

    def probabilities(self, symbols: np.ndarray) -> np.ndarray:
        """Probabilities (batch, time, vocabulary) of symbol t + 1 given symbols (batch, time) up to t."""
        size = self._vocabulary
        contexts = symbols if self._shorter is None else symbols[:, :-1] * size + symbols[:, 1:]
        different, which = np.unique(contexts, return_inverse=True)
        smoothed = _looked_up(different[:, None] * size + np.arange(size), self._known, self._counts) + self._smoothing
        found = (smoothed / smoothed.sum(axis=1, keepdims=True))[which.reshape(contexts.shape)]
        if self._shorter is None:
            return found
        return np.concatenate([self._shorter.probabilities(symbols[:, :1]), found], axis=1)

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
        return np.zeros(wanted.shape, np.int64)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, values[at], 0)
