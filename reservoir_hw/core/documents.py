"""Documents of unequal length as tokens, in one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeAlias

import numpy as np


class Documents:
    """Sequences of tokens of unequal length: document i is `tokens[starts[i]:stops[i]]`.

    `tokens` (total,) may be mapped into memory; `starts` and `stops` are (documents,) int64.
    """

    def __init__(self, tokens: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
        self.tokens, self.starts, self.stops = tokens, starts, stops

    @classmethod
    def of(cls, documents: Sequence[Any]) -> Self:
        """From one sequence of tokens for each document."""
        arrays = [np.asarray(document) for document in documents]
        stops = np.cumsum([len(array) for array in arrays], dtype=np.int64)
        return cls(np.concatenate(arrays), stops - [len(array) for array in arrays], stops)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> np.ndarray:
        """The tokens (time,) of a document."""
        return self.tokens[self.starts[number] : self.stops[number]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document (documents,)."""
        return self.stops - self.starts

    def chosen(self, which: np.ndarray | slice) -> Self:
        """Those that an index of numpy chooses."""
        return type(self)(self.tokens, self.starts[which], self.stops[which])

    def places(self, size: int) -> np.ndarray:
        """Where in `tokens` each run of `size` tokens within a document begins, document by document (runs,)."""
        counts = np.maximum(self.lengths - size + 1, 0)
        first = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(self.starts - first, counts)


Corpus: TypeAlias = np.ndarray | Documents
"""One text (time,), or documents."""


def joined(corpus: Corpus) -> np.ndarray:
    """All tokens, one document after the other (time,)."""
    return corpus.tokens[corpus.places(1)] if isinstance(corpus, Documents) else corpus
