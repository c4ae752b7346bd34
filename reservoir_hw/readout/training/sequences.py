"""Examples of somebody's own: a data set with an index, or an iterable of batches.

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
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.training.examples import Examples, Order
from reservoir_hw.readout.training.options import TrainingOptions


def are_sequences(data: Any) -> bool:
    """Whether this is a data set or an iterable of batches, and no corpus of tokens."""
    if isinstance(data, np.ndarray | Tensor):
        return False
    if have_index(data):
        return len(data) > 0 and isinstance(data[0], tuple)
    return hasattr(data, "__iter__")


def have_index(data: Any) -> bool:
    """Whether this is a data set."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


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
