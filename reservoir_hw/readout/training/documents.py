"""Documents of unequal length as what a training learns from: each from rest, those of like length side by side."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.core.documents import Documents
from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.models.softmax import IGNORED
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.windows import Order, in_turn

# Batches among whose documents those of like length are brought together.
_POOL = 64


def by_length(lengths: np.ndarray, batch: int, seed: int) -> Order:
    """Every document once in each epoch; those of a batch have like lengths, and batches come in random order.

    Row g depends on g and the seed alone. Batches begin at multiples of `batch`, also where an epoch does not.
    """
    epoch, order = -1, np.empty(0, np.int64)

    def rows(first: int, stop: int) -> np.ndarray:
        nonlocal epoch, order
        parts = []
        while first < stop:
            if first // len(lengths) != epoch:
                epoch = first // len(lengths)
                order = _epoch(lengths, batch, -epoch * len(lengths) % batch, seed, epoch)
            begin = epoch * len(lengths)
            end = min(stop, begin + len(lengths))
            parts.append(order[first - begin : end - begin])
            first = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    return rows


def _epoch(lengths: np.ndarray, batch: int, begun: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch whose first `begun` documents fill up the last batch of the one before."""
    random = generator(seed, f"documents epoch {epoch}")
    mixed = random.permutation(len(lengths))
    for first in range(0, len(mixed), batch * _POOL):
        pool = mixed[first : first + batch * _POOL]
        mixed[first : first + batch * _POOL] = pool[np.argsort(lengths[pool], kind="stable")]
    begun = min(begun, len(mixed))
    whole = (len(mixed) - begun) // batch * batch
    batches = mixed[begun : begun + whole].reshape(-1, batch)
    return np.concatenate([mixed[:begun], random.permutation(batches).ravel(), mixed[begun + whole :]])


class DocumentRows:
    """Rows of an endless sequence of documents: a row reads all tokens of one but the last, and predicts the next."""

    def __init__(self, documents: Documents, order: Order, *, vocabulary: int | None, name: str) -> None:
        self._documents, self._order = documents, order
        self._vocabulary, self._name = vocabulary, name
        self._read = documents.lengths - 1
        self._total = int(self._read.sum())

    def tokens(self, first: int, stop: int) -> int:
        """Tokens that are read in these rows."""
        number = len(self._read)
        begin = min(stop, -(-first // number) * number)
        # From there on whole epochs, which have all of them.
        epochs = (stop - begin) // number
        rest = np.concatenate([self._order(first, begin), self._order(begin + epochs * number, stop)])
        return epochs * self._total + int(self._read[rest].sum())

    def get(self, first: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens and targets (rows, longest) of rows first..stop - 1, int64; behind the end of a document -1 as target.

        Raises `InputRangeError` naming a token outside the vocabulary.
        """
        chosen = self._order(first, stop)
        starts, read = self._documents.starts[chosen], self._read[chosen]
        steps = np.arange(read.max(initial=0) + 1)
        inside = steps <= read[:, None]
        tokens = np.where(inside, self._documents.tokens[starts[:, None] + np.minimum(steps, read[:, None])], 0)
        tokens = tokens.astype(np.int64)
        if self._vocabulary is not None and tokens.size and not 0 <= tokens.min() <= tokens.max() < self._vocabulary:
            row, at = np.argwhere((tokens < 0) | (tokens >= self._vocabulary))[0]
            raise InputRangeError(
                f"{self._name} has token {tokens[row, at]} at position {at} of document {chosen[row]}, outside the "
                f"model's vocabulary of {self._vocabulary}: was it made with another tokenizer?"
            )
        targets = np.where(inside[:, 1:], tokens[:, 1:], IGNORED)
        return torch.from_numpy(tokens[:, :-1]).to(device), torch.from_numpy(targets).to(device)


def training_rows_of(documents: Documents, options: TrainingOptions, vocabulary: int | None) -> DocumentRows:
    """The rows that a training sees."""
    order = by_length(documents.lengths, options.batch, options.seed)
    return DocumentRows(documents, order, vocabulary=vocabulary, name="corpus_train")


def evaluation_rows_of(documents: Documents, vocabulary: int | None, name: str) -> DocumentRows:
    """The documents by their length."""
    sorted_ = documents.chosen(np.argsort(documents.lengths, kind="stable"))
    return DocumentRows(sorted_, in_turn(len(sorted_)), vocabulary=vocabulary, name=name)
