"""The sentences of `ElmanGrammar` as a text in numbers, for models that learn from tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from reservoir_hw.core.documents import Corpus
from reservoir_hw.core.tokenizer import Tokenizer, WordTokenizer
from reservoir_hw.tasks.task import Evaluation


class WordsInNumbers:
    """See `Tokens`. There is no validation part, and the outputs for the whole test are judged."""

    judged_by_outputs = True

    def __init__(self, tokenizer: WordTokenizer, train: np.ndarray, test: np.ndarray) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.vocabulary = tokenizer.vocabulary
        self.tokens_train: Corpus = train
        self.tokens_validation: Corpus = train[:0]
        self.tokens_test: Corpus = test

    def encode(self, text: str) -> np.ndarray:
        """Tokens (time,) of a text. Raises `InputRangeError` for a word that the sentences do not have."""
        return self.tokenizer.encode(text)

    def evaluation_of(
        self, cross_entropy: float, accuracy: float, arrays: Mapping[str, np.ndarray] | None = None
    ) -> Evaluation:
        """The metrics that hold for every corpus, of a model with this mean cross-entropy (nats per word)."""
        bits = cross_entropy / math.log(2)
        metrics = {"cross_entropy_bits": bits, "perplexity": 2.0**bits, "accuracy": accuracy}
        return Evaluation(metrics, dict(arrays or {}))
