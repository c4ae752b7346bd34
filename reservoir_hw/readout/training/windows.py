"""Windows of a corpus, in an order that depends on the seed and the position alone.

Row g of the endless sequence of windows is the same whichever process asks for it and whenever: so a training that
was interrupted goes on where it was, and several processes share what one would see.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.seeds import generator, step_uniform
from reservoir_hw.core.tokenizer import Corpus, Documents, joined
from reservoir_hw.readout.models.softmax import IGNORED
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


# ---- Documents of unequal length as what a training learns from: each from rest, those of like length side by side.


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


# ---- What a training asks of its reservoirs, said before it starts.


@dataclass(frozen=True)
class DriveEstimate:
    """Device time of a training.

    `layers` reservoirs are driven with `steps_per_layer` time steps each (sequences that go side by side count once).
    `seconds` is Σ over the layers of steps × `step_period_s` and of the resets; None where a device
    declares no step period (a simulation).
    """

    training_steps: int
    layers: int
    steps_per_layer: int
    resets_per_layer: int
    step_period_s: tuple[float | None, ...]
    seconds: float | None

    @property
    def device_steps(self) -> int:
        """Time steps over all layers."""
        return self.layers * self.steps_per_layer

    def __str__(self) -> str:
        time = "no step period is declared" if self.seconds is None else f"{_time(self.seconds)} of device time"
        what = f"{self.training_steps:,} training steps" if self.training_steps else "harvest"
        return (
            f"{what}: {self.steps_per_layer:,} time steps × {self.layers} reservoir layers = {self.device_steps:,} "
            f"device steps, {time}"
        )


def estimate_training(
    model: Any, corpus_train: Any, corpus_valid: Any = None, *, options: TrainingOptions
) -> DriveEstimate:
    """What `train` will ask of the model's reservoirs, which are driven in every step and evaluation.

    Documents count with their mean length.
    """
    steps = options.steps_for(_sequences(corpus_train, options))
    length = options.context
    if isinstance(corpus_train, Documents):
        length = round(float(corpus_train.lengths.mean())) - 1
    calls = [options.batch] * (steps * options.accumulate)
    if corpus_valid is not None:
        held_out = _sequences(corpus_valid, options)
        held_out = min(held_out, options.evaluation_windows or held_out)
        every = options.evaluation_steps or steps
        evaluations = steps // every + (steps % every > 0)
        full, rest = divmod(held_out, options.batch)
        calls += ([options.batch] * full + [rest] * (rest > 0)) * evaluations
    return _estimate(model, calls, length, steps)


def _sequences(corpus: Any, options: TrainingOptions) -> int:
    """Documents, or windows of a text."""
    if isinstance(corpus, Documents):
        return len(corpus)
    return len(Windows(corpus, options.context, stride=options.stride))


def estimate_harvest(model: Any, groups: Sequence[int], length: int) -> DriveEstimate:
    """The cost of driving the model's reservoirs once with groups of so many sequences, side by side."""
    return _estimate(model, groups, length, 0)


def _estimate(model: Any, calls: Sequence[int], length: int, training_steps: int) -> DriveEstimate:
    specs = [layer.reservoir.spec for layer in model.reservoir_layers]
    drives = {spec.max_batch: sum(math.ceil(batch / (spec.max_batch or batch)) for batch in calls) for spec in specs}
    periods = tuple(spec.step_period_s for spec in specs)
    seconds = sum(drives[s.max_batch] * (length * (s.step_period_s or 0.0) + s.reset_time_s) for s in specs)
    most = max(drives.values(), default=0)
    return DriveEstimate(
        training_steps=training_steps,
        layers=len(specs),
        steps_per_layer=most * length,
        resets_per_layer=most,
        step_period_s=periods,
        seconds=None if None in periods else seconds,
    )


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
