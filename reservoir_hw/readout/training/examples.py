"""What a training learns from, or is judged on: items with a number, and their order.

Row g of the endless sequence that a training sees is the same whichever process asks for it and whenever: it depends on
the seed and the position alone. So a training that was interrupted goes on where it was, and several processes share
what one would see.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reservoir_hw.core.arrays import first_true
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.seeds import generator, step_uniform
from reservoir_hw.core.tokenizer import Corpus, Documents, joined
from reservoir_hw.readout.models.softmax import IGNORED
from reservoir_hw.readout.training.noise import NoiseOf
from reservoir_hw.readout.training.options import TrainingOptions

_HASHED_AT_ONCE = 1 << 20
# Batches among whose items those of like length are brought together.
_POOL = 64

Order: TypeAlias = Callable[[int, int], np.ndarray]
"""(first, stop) -> the items that rows first..stop - 1 of the endless sequence are, int64."""


def in_epochs(items: int, arranged: Callable[[int], np.ndarray]) -> Order:
    """Every item once in each epoch, whose order is `arranged(epoch)`."""
    # Rows are asked for one after the other.
    held = functools.lru_cache(maxsize=1)(arranged)

    def order(first: int, stop: int) -> np.ndarray:
        parts = [np.empty(0, np.int64)]
        while first < stop:
            epoch, place = divmod(first, items)
            end = min(stop, (epoch + 1) * items)
            parts.append(held(epoch)[place : place + end - first])
            first = end
        return np.concatenate(parts)

    return order


def shuffled(items: int, seed: int, name: str) -> Order:
    """Every item once in each epoch; each epoch has an order of its own."""
    return in_epochs(items, lambda epoch: generator(seed, f"{name} epoch {epoch}").permutation(items))


def drawn(items: int, seed: int, name: str) -> Order:
    """Each row is any item, independent of the others."""

    def order(first: int, stop: int) -> np.ndarray:
        numbers = step_uniform(seed, 0, first, stop - first, 1, name)[:, 0]
        return np.minimum((numbers * items).astype(np.int64), items - 1)

    return order


def by_length(lengths: np.ndarray, batch: int, seed: int) -> Order:
    """Every item once in each epoch; those of a batch have like lengths, and batches come in random order.

    Batches begin at multiples of `batch`, also where an epoch does not.
    """

    def arranged(epoch: int) -> np.ndarray:
        random = generator(seed, f"documents epoch {epoch}")
        mixed = random.permutation(len(lengths))
        for first in range(0, len(mixed), batch * _POOL):
            pool = mixed[first : first + batch * _POOL]
            mixed[first : first + batch * _POOL] = pool[np.argsort(lengths[pool], kind="stable")]
        # Those that fill up the last batch of the epoch before.
        begun = min(-epoch * len(lengths) % batch, len(mixed))
        whole = (len(mixed) - begun) // batch * batch
        batches = mixed[begun : begun + whole].reshape(-1, batch)
        return np.concatenate([mixed[:begun], random.permutation(batches).ravel(), mixed[begun + whole :]])

    return in_epochs(len(lengths), arranged)


class Examples(ABC):
    """Items by their number, each what a loss takes."""

    lengths: int | np.ndarray
    """Steps of each item (items,), or one number where all have as many."""
    drawn_as: str = "windows"
    """The name of the random numbers by which items are drawn."""
    noise: NoiseOf | None = None
    """The noise of the devices that are driven when an item is asked for."""

    @abstractmethod
    def __len__(self) -> int:
        """Items."""

    @abstractmethod
    def items(self, numbers: np.ndarray, device: torch.device) -> Sequence[Tensor]:
        """The tensors (items, ...) that the loss takes for these, on this device; for no items, too."""

    @property
    @abstractmethod
    def identity(self) -> Any:
        """What tells them from others, as JSON holds it."""

    @property
    def weights(self) -> int | np.ndarray:
        """The steps that each counts for in the loss of several batches (items,), or one number for all."""
        return self.lengths

    def order(self, options: TrainingOptions) -> Order:
        """The items that a training sees."""
        if options.windows == "random":
            return drawn(len(self), options.seed, self.drawn_as)
        if isinstance(self.lengths, int):
            return shuffled(len(self), options.seed, "windows")
        return by_length(self.lengths, options.batch, options.seed)

    def steps(self, options: TrainingOptions) -> int:
        """Steps of the whole training."""
        return options.steps or options.steps_for(len(self))

    def evaluated(self, most: int | None) -> np.ndarray:
        """The first `most` items, those of like length side by side."""
        if isinstance(self.lengths, int):
            return np.arange(len(self))[:most]
        return np.argsort(self.lengths[:most], kind="stable")

    def loss(self, model: Any) -> Callable[..., Tensor]:
        """The tensors of items -> the mean loss of a model over their targets; by default the model's own."""
        return model.loss

    def counted(self, tensors: Sequence[Tensor]) -> int:
        """How many targets the loss of these items is the mean over."""
        return counted_targets(tensors[-1])


@dataclass(frozen=True)
class Rows:
    """The endless sequence of rows that a training sees."""

    examples: Examples
    order: Order

    def tokens(self, first: int, stop: int) -> int:
        """Steps that rows first..stop - 1 stand for; a row counts in the mean loss as it has steps."""
        weights = self.examples.weights
        if isinstance(weights, int):
            return (stop - first) * weights
        number = len(weights)
        begin = min(stop, -(-first // number) * number)
        # From there on whole epochs, which have all of them.
        epochs = (stop - begin) // number
        rest = np.concatenate([self.order(first, begin), self.order(begin + epochs * number, stop)])
        return epochs * int(weights.sum()) + int(weights[rest].sum())

    def get(self, first: int, stop: int, device: torch.device) -> Sequence[Tensor]:
        """Tensors (stop - first, ...) on this device."""
        return self.examples.items(self.order(first, stop), device)


class Windows(Examples):
    """Pairs of tokens and targets, cut from a corpus: the targets are the tokens one further on.

    Tokens at the end that do not fill another window are left out.

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
        self.lengths = self.context = context
        self.stride = stride or context
        self.vocabulary, self.predict, self.name = vocabulary, predict, name

    def __len__(self) -> int:
        return (len(self.corpus) - self.context - 1) // self.stride + 1

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The windows with these numbers: tokens and targets (windows, context), int64.

        Raises `InputRangeError` naming a token outside the vocabulary and its place in the corpus.
        """
        starts = numbers * self.stride
        read = self.corpus[starts[:, None] + np.arange(self.context + 1)].astype(np.int64)
        _check_vocabulary(read, self.vocabulary, self.name, lambda window, at: f"{starts[window] + at}")
        targets = read[:, 1:].copy()
        if self.predict == "last":
            targets[:, :-1] = IGNORED
        return read[:, :-1], targets

    def items(self, numbers: np.ndarray, device: torch.device) -> list[Tensor]:
        """Tokens and targets (windows, context), int64."""
        return [torch.from_numpy(array).to(device) for array in self.read(numbers)]

    def steps(self, options: TrainingOptions) -> int:
        """Those that may begin at any token are as many in an epoch as lie side by side."""
        side_by_side = -(-len(self) // self.context) if options.windows == "random" else len(self)
        return options.steps_for(side_by_side)

    @property
    def identity(self) -> str:
        """The corpus."""
        return digest_of(self.corpus)


class WholeDocuments(Examples):
    """Documents, each from rest: all its tokens but the last are read, and each time the next is predicted."""

    def __init__(self, documents: Documents, *, vocabulary: int | None, name: str) -> None:
        self._documents, self._vocabulary, self._name = documents, vocabulary, name
        self.lengths = self._read = documents.lengths - 1

    def __len__(self) -> int:
        return len(self._documents)

    def items(self, numbers: np.ndarray, device: torch.device) -> list[Tensor]:
        """Tokens and targets (documents, longest), int64; behind the end of a document -1 as target.

        Raises `InputRangeError` naming a token outside the vocabulary.
        """
        starts, read = self._documents.starts[numbers], self._read[numbers]
        steps = np.arange(read.max(initial=0) + 1)
        inside = steps <= read[:, None]
        tokens = np.where(inside, self._documents.tokens[starts[:, None] + np.minimum(steps, read[:, None])], 0)
        tokens = tokens.astype(np.int64)
        _check_vocabulary(tokens, self._vocabulary, self._name, lambda row, at: f"{at} of document {numbers[row]}")
        targets = np.where(inside[:, 1:], tokens[:, 1:], IGNORED)
        return [torch.from_numpy(array).to(device) for array in (tokens[:, :-1], targets)]

    @property
    def identity(self) -> str:
        """All of them, however many are evaluated: that may change."""
        return digest_of(self._documents)


def of_corpus(
    given: Any, options: TrainingOptions, *, vocabulary: int | None, name: str, learned: bool = False
) -> Examples:
    """Windows of one text, or documents from a list of texts, as the options say.

    Raises `ConfigurationError` for a text shorter than a window, and where documents and options do not fit;
    `ShapeError` for anything else.
    """
    corpus: Corpus
    if isinstance(given, list | tuple) and given and np.ndim(given[0]) == 1:
        corpus = Documents.of([checked_tokens(one, f"document {number} of {name}") for number, one in enumerate(given)])
    else:
        corpus = given if isinstance(given, Documents) else checked_tokens(given, name)
    if isinstance(corpus, Documents):
        options.check_documents(corpus.lengths[: None if learned else options.evaluation_windows], name)
        return WholeDocuments(corpus, vocabulary=vocabulary, name=name)
    # Random ones begin at any token.
    stride = 1 if learned and options.windows == "random" else options.stride
    return Windows(corpus, options.context, stride=stride, vocabulary=vocabulary, predict=options.predict, name=name)


# ---- Examples of somebody's own: what a loss takes, one by one or in batches.


class _OfLoss(Examples):
    """What a loss takes, with the targets in the second place, if there is one; those of -1 are not counted."""

    def counted(self, tensors: Sequence[Tensor]) -> int:
        """Numbers are all counted."""
        targets = tensors[min(1, len(tensors) - 1)]
        return targets.numel() if targets.is_floating_point() else int((targets >= 0).sum())


class Sequences(_OfLoss):
    """The examples of a data set with an index."""

    drawn_as = "examples"

    def __init__(self, examples: Any, name: str) -> None:
        self._examples, self._name = examples, name
        if not len(examples):
            raise ConfigurationError(f"{name} is empty: there is nothing to learn from")
        firsts = (self._item(index)[0] for index in range(len(examples)))
        self.lengths = self._steps = np.array([len(first) if first.ndim else 1 for first in firsts])
        self._differ = bool((self._steps != self._steps[0]).any())

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def weights(self) -> int:
        """The mean: every example counts alike."""
        return max(1, round(float(self._steps.mean())))

    def items(self, numbers: np.ndarray, device: torch.device) -> list[Tensor]:
        """Their tensors, and their lengths where these differ."""
        if not len(numbers):
            # A process's share of a last batch that is smaller than their number.
            return [torch.empty(0, device=device)] * 2
        fields = list(zip(*(self._item(int(index)) for index in numbers), strict=True))
        found = [pad_sequence(list(fields[0]), batch_first=True) if self._differ else torch.stack(fields[0])]
        found += [torch.stack(field) for field in fields[1:]]
        if self._differ:
            found.append(torch.from_numpy(self._steps[numbers]))
        return [tensor.to(device) for tensor in found]

    @property
    def identity(self) -> str:
        """Their number, and a hash of their shapes and values."""
        found, number = hashlib.sha256(), len(self)
        for index in range(number):
            for tensor in self._item(index):
                array = tensor.detach().cpu().numpy()
                found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        return f"{number}:{found.hexdigest()[:16]}"

    def _item(self, index: int) -> list[Tensor]:
        try:
            return [torch.as_tensor(value) for value in self._examples[index]]
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"{self._name}: example {index} must be a tuple of arrays, tensors or numbers, what loss takes "
                f"({error})"
            ) from error


class Batches(_OfLoss):
    """What comes in batches, again and again. Only the last one is held: going back means to begin again.

    Items count as if each batch had as many as the options say; what they stand for is not known.
    """

    lengths = 1

    def __init__(
        self, batches: Iterable[Sequence[Tensor]], name: str, options: TrainingOptions, *, learned: bool
    ) -> None:
        if iter(batches) is batches:
            raise ConfigurationError(
                f"{name} can be read only once, and a training may have to begin it again: give what makes an iterator "
                "each time, such as a torch.utils.data.DataLoader, or a data set with __len__ and __getitem__"
            )
        if isinstance(batches, Sized) and not len(batches):
            raise ConfigurationError(f"{name} is empty: there is nothing to learn from")
        self._batches, self._name, self._batch, self._learned = batches, name, options.batch, learned
        self._endless: Iterator[Sequence[Tensor]] = iter(())
        self._held: tuple[int, Sequence[Tensor]] = -1, ()

    def __len__(self) -> int:
        return len(self.evaluated(None))

    @property
    def identity(self) -> str:
        """Of what an iterable gives nothing is known."""
        return "batches"

    def order(self, options: TrainingOptions) -> Order:
        """As they come."""
        return np.arange

    def evaluated(self, most: int | None) -> np.ndarray:
        """The first batches, which have at least `most` items."""
        whole, batches = self._batches, None if most is None else -(-most // self._batch)
        number = len(whole) if isinstance(whole, Sized) else sum(1 for _ in islice(whole, batches))
        return np.arange(self._batch * (number if batches is None else min(number, batches)))

    def items(self, numbers: np.ndarray, device: torch.device) -> list[Tensor]:
        """A process's share of the batch that these are of."""
        number = int(numbers[0]) // self._batch
        tensors = [torch.as_tensor(tensor) for tensor in self._number(number)]
        rows, begin = len(tensors[0]), int(numbers[0]) - number * self._batch
        end = begin + len(numbers)
        if self._learned and (rows * begin % self._batch or rows * end % self._batch):
            raise ConfigurationError(
                f"{self._name}: batch {number} has {rows} rows, which the processes cannot share equally: leave it "
                "out, or fill it up"
            )
        return [tensor[rows * begin // self._batch : rows * end // self._batch].to(device) for tensor in tensors]

    def _number(self, number: int) -> Sequence[Tensor]:
        if number < self._held[0] or self._held[0] < 0:
            self._endless, self._held = self._again_and_again(), (-1, ())
        while self._held[0] < number:
            self._held = self._held[0] + 1, next(self._endless)
        return self._held[1]

    def _again_and_again(self) -> Iterator[Sequence[Tensor]]:
        while True:
            empty = True
            for tensors in self._batches:
                empty = False
                yield tensors
            if empty:
                raise ConfigurationError(f"{self._name} is empty: there is nothing to learn from")


# ---- What the kinds of examples share.


def counted_targets(targets: Any) -> int:
    """How many steps have a target that counts: a token that is not -1, or numbers (..., outputs) without NaN."""
    counted = targets >= 0 if targets.ndim == 2 else ~(targets != targets).any(-1)
    return int(counted.sum())


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


def _check_vocabulary(tokens: np.ndarray, vocabulary: int | None, name: str, place: Callable[[int, int], str]) -> None:
    """Raise `InputRangeError` naming a token outside the vocabulary, and its `place(row, step)`."""
    if vocabulary is None or not tokens.size or 0 <= tokens.min() <= tokens.max() < vocabulary:
        return
    row, at = first_true((tokens < 0) | (tokens >= vocabulary))
    raise InputRangeError(
        f"{name} has token {tokens[row, at]} at position {place(row, at)}, outside the model's vocabulary of "
        f"{vocabulary} (0 to {vocabulary - 1}): was it made with another tokenizer?"
    )
