"""Training a model on examples: a data set with an index, or an iterable of batches.

A data set is whatever has `__len__` and `__getitem__`, such as `torch.utils.data.Dataset`. An item is a tuple of
arrays, tensors or numbers: what `model.loss` takes, for one example, targets in the second place. Items whose first
tensors differ in length are padded with 0 behind, and `loss` gets their lengths (batch,) as one argument more. They
stand in batches of like length. The order depends on the seed and the position alone. Every item is read once before
the training, for its length.

An iterable gives batches as `model.loss` takes them, and the same ones each time that it is asked. Each is a batch of a
step, whatever `batch` of the options says.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.training.identity import layers_of, reservoirs_of
from reservoir_hw.readout.training.loop import Evaluation, Work
from reservoir_hw.readout.training.noise import NoiseOf
from reservoir_hw.readout.training.optimizer import Objective
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.windows import Order, by_length, drawn


class Examples(Protocol):
    """A data set with an index."""

    def __len__(self) -> int:
        """Examples."""
        ...

    def __getitem__(self, index: int, /) -> Sequence[Any]:
        """What the loss takes, for one example."""
        ...


def are_examples(data: Any) -> bool:
    """Whether this is a data set or an iterable of batches, and no corpus of tokens."""
    if isinstance(data, np.ndarray | Tensor):
        return False
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return len(data) > 0 and isinstance(data[0], tuple)
    return hasattr(data, "__iter__")


def work_on_examples(
    model: Any,
    training: Any,
    validation: Any,
    options: TrainingOptions,
    folder: str | os.PathLike[str] | None,
) -> Work:
    """What `train` does with examples. Raises `ConfigurationError` for empty examples, and for what no tensor holds."""
    rows = _rows(training, "corpus_train", options, learned=True)
    held_out = None if validation is None else _rows(validation, "corpus_valid", options, learned=False)
    reservoirs = reservoirs_of(model)
    identity: dict[str, Any] = {}
    if folder is not None:
        identity["corpus_train"] = rows.digest()
        if held_out is not None:
            identity["corpus_valid"] = held_out.digest()
    identity["reservoirs"] = [reservoir.spec.identity.fingerprint for reservoir in reservoirs]
    identity["layers"] = layers_of(model)
    return Work(
        objective=Objective(model, model.loss),
        rows=rows,
        evaluation=None if held_out is None else Evaluation(held_out, held_out.count, counted=_labels_in),
        # Counting the rows of an iterable means to read it.
        steps=options.steps or options.steps_for(rows.count),
        identity=identity,
        noise=NoiseOf(reservoirs),
    )


def _labels_in(tensors: Sequence[Tensor]) -> int:
    """The targets are in the second place, if there is one; those of -1 are not counted."""
    targets = tensors[min(1, len(tensors) - 1)]
    return targets.numel() if targets.is_floating_point() else int((targets >= 0).sum())


def _rows(data: Any, name: str, options: TrainingOptions, *, learned: bool) -> _Indexed | _Batches:
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _Indexed(data, name, options, learned=learned)
    return _Batches(data, name, options, learned=learned)


class _Indexed:
    """Rows of a data set with an index. Those to be evaluated are in the order of their lengths."""

    def __init__(self, examples: Examples, name: str, options: TrainingOptions, *, learned: bool) -> None:
        self._examples, self._name = examples, name
        self.count = len(examples)
        if not learned and options.evaluation_windows is not None:
            self.count = min(self.count, options.evaluation_windows)
        if not self.count:
            raise ConfigurationError(f"{name} is empty: there is nothing to learn from")
        self._lengths = np.array([_length_of(self._item(index)) for index in range(self.count)])
        self._differ = bool((self._lengths != self._lengths[0]).any())
        if not learned:
            sorted_ = np.argsort(self._lengths, kind="stable")
            self._order: Order = lambda first, stop: sorted_[first:stop]
        elif options.windows == "random":
            self._order = drawn(self.count, options.seed, "examples")
        else:
            self._order = by_length(self._lengths, options.batch, options.seed)

    def tokens(self, first: int, stop: int) -> int:
        """Steps, as many for each row as it has in the mean: every example counts alike in the loss."""
        return (stop - first) * max(1, round(float(self._lengths.mean())))

    def get(self, first: int, stop: int, device: torch.device) -> list[Tensor]:
        """The tensors of the loss for rows first..stop - 1."""
        chosen = self._order(first, stop)
        if not len(chosen):
            # A process's share of a last batch that is smaller than their number.
            return [torch.empty(0, device=device)] * 2
        fields = list(zip(*(self._item(int(index)) for index in chosen), strict=True))
        found = [pad_sequence(list(fields[0]), batch_first=True) if self._differ else torch.stack(fields[0])]
        found += [torch.stack(field) for field in fields[1:]]
        if self._differ:
            found.append(torch.from_numpy(self._lengths[chosen]))
        return [tensor.to(device) for tensor in found]

    def digest(self) -> str:
        """What tells these examples from others: their number, and a hash of their shapes and values."""
        # All of them, however many are evaluated: that may change.
        found, number = hashlib.sha256(), len(self._examples)
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


class _Batches:
    """Rows that come in batches, again and again. Only the last one is held: going back means to begin again."""

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
        windows = None if learned else options.evaluation_windows
        self._most = None if windows is None else -(-windows // options.batch)
        self._endless: Iterator[Sequence[Tensor]] = iter(())
        self._held: tuple[int, Sequence[Tensor]] = -1, ()

    @property
    def count(self) -> int:
        """Rows, with as many in each batch as the options say."""
        whole, most = self._batches, self._most
        number = len(whole) if isinstance(whole, Sized) else sum(1 for _ in islice(whole, most))
        return self._batch * (number if most is None else min(number, most))

    def tokens(self, first: int, stop: int) -> int:
        """Rows: what they stand for is not known."""
        return stop - first

    def get(self, first: int, stop: int, device: torch.device) -> list[Tensor]:
        """A process's share of the batch that rows first..stop - 1 are of."""
        number = first // self._batch
        tensors = [torch.as_tensor(tensor) for tensor in self._number(number)]
        rows, begin, end = len(tensors[0]), first - number * self._batch, stop - number * self._batch
        if self._learned and (rows * begin % self._batch or rows * end % self._batch):
            raise ConfigurationError(
                f"{self._name}: batch {number} has {rows} rows, which the processes cannot share equally: leave it "
                "out, or fill it up"
            )
        return [tensor[rows * begin // self._batch : rows * end // self._batch].to(device) for tensor in tensors]

    def digest(self) -> str:
        """Of what an iterable gives nothing is known."""
        return "batches"

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


def _length_of(item: Sequence[Tensor]) -> int:
    return len(item[0]) if item[0].ndim else 1
