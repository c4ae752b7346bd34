"""Windows of a corpus, in an order that depends on the seed and the position alone.

Row g of the endless sequence of windows is the same whichever process asks for it and whenever: so a training that
was interrupted goes on where it was, and several processes share what one would see.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.core.documents import Corpus, Documents, joined
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.seeds import generator, step_uniform
from reservoir_hw.readout.training.options import TrainingOptions

_HASHED_AT_ONCE = 1 << 20

Order: TypeAlias = Callable[[int, int], np.ndarray]
"""(first, stop) -> the items that rows first..stop - 1 of the endless sequence are, int64."""


def shuffled(items: int, seed: int, name: str) -> Order:
    """Every item once in each epoch; each epoch has an order of its own."""
    epoch, permutation = -1, np.empty(0, np.int64)

    def order(first: int, stop: int) -> np.ndarray:
        nonlocal epoch, permutation
        parts = []
        while first < stop:
            if first // items != epoch:
                epoch = first // items
                permutation = generator(seed, f"{name} epoch {epoch}").permutation(items)
            end = min(stop, (epoch + 1) * items)
            parts.append(permutation[first - epoch * items : end - epoch * items])
            first = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    return order


def drawn(items: int, seed: int, name: str) -> Order:
    """Each row is any item, independent of the others."""

    def order(first: int, stop: int) -> np.ndarray:
        numbers = step_uniform(seed, 0, first, stop - first, 1, name)[:, 0]
        return np.minimum((numbers * items).astype(np.int64), items - 1)

    return order


def in_turn(items: int) -> Order:
    """One item after the other, again and again."""
    return lambda first, stop: np.arange(first, stop) % items


class Windows:
    """Pairs of tokens and targets, cut from a corpus: the targets are the tokens one further on.

    Parameters
    ----------
    corpus
        Tokens (time,), whole numbers of any width, memory-mapped or not.
    context
        Tokens in a window; it covers one more, the last target.
    stride
        Tokens from the start of a window to that of the next.
    vocabulary
        If given, tokens are checked as they are read.
    predict
        "last": the other targets are -1, which is not counted.
    name
        What messages call the corpus.

    Raises
    ------
    ConfigurationError
        The corpus is empty, or shorter than a window.
    ShapeError
        It is not one sequence of whole numbers.
    """

    def __init__(
        self,
        corpus: Any,
        context: int,
        *,
        stride: int | None = None,
        vocabulary: int | None = None,
        predict: str = "every",
        name: str = "the corpus",
    ) -> None:
        self.corpus = checked_tokens(corpus, name)
        if len(self.corpus) <= context:
            raise ConfigurationError(
                f"{name} has {len(self.corpus):,} tokens; a window of context {context} takes {context + 1}: give more "
                "text, or a smaller context"
            )
        self.context, self.stride = context, stride or context
        self.vocabulary, self.predict, self.name = vocabulary, predict, name

    def __len__(self) -> int:
        """Consecutive windows; tokens at the end that do not fill another are left out."""
        return (len(self.corpus) - self.context - 1) // self.stride + 1

    @property
    def starts(self) -> int:
        """Tokens at which a window can begin."""
        return len(self.corpus) - self.context

    def consecutive(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The windows with these numbers: tokens and targets (windows, context), int64."""
        return self.at(numbers * self.stride)

    def at(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The windows that begin there: tokens and targets (windows, context), int64.

        Raises `InputRangeError` naming a token outside the vocabulary and its place in the corpus.
        """
        read = self.corpus[starts[:, None] + np.arange(self.context + 1)].astype(np.int64)
        if self.vocabulary is not None and read.size and not 0 <= read.min() <= read.max() < self.vocabulary:
            window, at = np.argwhere((read < 0) | (read >= self.vocabulary))[0]
            raise InputRangeError(
                f"{self.name} has token {read[window, at]} at position {starts[window] + at}, outside the model's "
                f"vocabulary of {self.vocabulary} (0 to {self.vocabulary - 1}): was it made with another tokenizer?"
            )
        targets = read[:, 1:].copy()
        if self.predict == "last":
            targets[:, :-1] = -1
        return read[:, :-1], targets


class WindowRows:
    """Rows of an endless sequence of windows of a corpus, for training or, in turn, for evaluation."""

    def __init__(self, windows: Windows, order: Order, *, anywhere: bool) -> None:
        self._windows, self._order = windows, order
        self._get = windows.at if anywhere else windows.consecutive

    def tokens(self, first: int, stop: int) -> int:
        """Tokens that the model reads in these rows."""
        return (stop - first) * self._windows.context

    def get(self, first: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens and targets (rows, context) of rows first..stop - 1, int64."""
        tokens, targets = self._get(self._order(first, stop))
        return torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device)


def training_rows(windows: Windows, options: TrainingOptions) -> WindowRows:
    """The rows that a training sees, as the options say."""
    if options.windows == "random":
        return WindowRows(windows, drawn(windows.starts, options.seed, "windows"), anywhere=True)
    return WindowRows(windows, shuffled(len(windows), options.seed, "windows"), anywhere=False)


def evaluation_rows(windows: Windows) -> WindowRows:
    """The windows in turn."""
    return WindowRows(windows, in_turn(len(windows)), anywhere=False)


def digest_of(corpus: Corpus) -> str:
    """What tells one corpus from another: its length, and a hash of all tokens, whatever their width."""
    if isinstance(corpus, Documents):
        return f"{digest_of(corpus.lengths)}:{digest_of(joined(corpus))}"
    digest = hashlib.sha256()
    for first in range(0, len(corpus), _HASHED_AT_ONCE):
        tokens = np.asarray(corpus[first : first + _HASHED_AT_ONCE])
        narrow = tokens.astype("<i4")
        digest.update((narrow if np.array_equal(narrow, tokens) else tokens.astype("<i8")).tobytes())
    return f"{len(corpus)}:{digest.hexdigest()[:16]}"


def checked_tokens(corpus: Any, name: str) -> np.ndarray:
    """Tokens (time,). Raises `ConfigurationError` where there are none, `ShapeError` for anything else."""
    array = corpus if isinstance(corpus, np.ndarray) else np.asarray(corpus)
    if array.size == 0:
        raise ConfigurationError(f"{name} is empty: there is nothing to learn from")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ShapeError(
            f"{name} must be one sequence of tokens (time,), whole numbers, not {array.shape} of {array.dtype}"
        )
    return array
