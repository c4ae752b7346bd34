"""Training a model on examples: windows of a text, documents, sequences, or states that were computed beforehand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.training.examples import Examples, Order, of_corpus
from reservoir_hw.readout.training.identity import layers_of, reservoirs_of
from reservoir_hw.readout.training.loop import TrainingResult, run
from reservoir_hw.readout.training.noise import NoiseOf
from reservoir_hw.readout.training.optimizer import (
    Evaluate,
    Hooks,
    MakeOptimizer,
    Objective,
    OnProgress,
    OnRow,
    Schedule,
    Work,
)
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.shards import StoredStates, are_shards


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


def train(
    model: Any,
    corpus_train: Any,
    corpus_valid: Any = None,
    *,
    options: TrainingOptions,
    folder: str | os.PathLike[str] | None = None,
    loss: Callable[..., Tensor] | None = None,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    evaluate: Evaluate | None = None,
    on_row: OnRow | None = None,
    progress: OnProgress | None = None,
    resume: bool = True,
) -> TrainingResult:
    """Train `model` by gradients; its weights are changed in place, gradients forgotten.

    With a folder, checkpoints are written, and the same call after Ctrl-C, `kill -9` or a power failure goes on
    from the last one: on a CPU the weights in the end are bit for bit those of a training that was never
    interrupted. Under `torchrun` every process calls this with a model, and reservoirs, of its own; together they
    take the steps that one process would.

    Parameters
    ----------
    model
        Anything with `parameters()` and `loss(tokens, targets)`, the mean cross-entropy of targets (batch, time)
        after tokens (batch, time), int64, from rest; targets of -1 are not counted. If it has a `vocabulary`,
        tokens are checked against it. On shards it is a readout, states -> logits, that treats positions
        independently, such as `model.readout`.
    corpus_train, corpus_valid
        Tokens (time,), whole numbers of any width; memory-mapped arrays are read as they are needed. Or documents of
        unequal length: a list of such arrays, or `Documents`. Each document is read from rest; a row of a batch is a
        document, of at most `options.context` + 1 tokens, and every prediction counts alike in the loss of a step.
        Or examples, for a model with `loss(*batch)`: see `reservoir_hw.readout.training.on_examples`.
        Or states that were computed beforehand: `HarvestedShards`, or a list of `Shard`, of which a training holds one
        in memory, an evaluation all. Each is learned from for `options.shard_epochs` epochs, then the next, round and
        round (Köster & Uchida 2026, section III.A): `options.epochs` is a multiple of `shard_epochs`, or give `steps`.
        With one shard, windows for sequences and the same seed, this takes the steps of a training on the corpus.
    loss
        Instead of the model's own. On shards: states (rows, context, features) and targets -> the mean loss; targets
        may be numbers (rows, context, outputs) then, NaN where none is known.
    folder
        See `reservoir_hw.readout.training.folder`. Without one nothing is kept but the model.
    optimizer
        Given the trainable parameters, returns a `torch.optim.Optimizer`, instead of the AdamW of the options.
    schedule
        Given the step (from 0) and the steps of the whole training, returns the factor on the optimizer's learning
        rate, instead of the `warmup`, `hold` and `final_rate` of the options.
    evaluate
        Given the model, in evaluation mode and without gradients, and the steps done, returns metrics by name. Called
        in the first process every `evaluation_steps` and after the last step; `Row.metrics` has what it finds.
    on_row
        Given the steps done, the model and `Row.numbers`, for every row of the history; in the first process.
    progress
        Called with a `Progress` for every row of the log, in the first process.
    resume
        Go on from the checkpoint in the folder, if there is one. Otherwise what is there is removed.

    Raises
    ------
    ConfigurationError
        A corpus is empty or shorter than a window, the options do not fit, nothing is trainable; or the
        checkpoint is of another model (naming the first difference; what is frozen counts), corpus or device.
    InputRangeError
        A token lies outside the vocabulary.
    NotFinite
        The loss or a gradient is NaN or infinite. The step that met it changed nothing.
    KeyboardInterrupt
        After Ctrl-C, at the end of the step, with a checkpoint written; a second Ctrl-C does not wait.
    """
    examples = _examples_of(model, corpus_train, options, "corpus_train", learned=True)
    # Before shards of the held-out data are driven.
    steps = examples.steps(options)
    held_out = None
    if corpus_valid is not None:
        held_out = _examples_of(model, corpus_valid, options, "corpus_valid", learned=False)
    reservoirs = reservoirs_of(model)
    identity: dict[str, Any] = {
        "reservoirs": [reservoir.spec.identity.fingerprint for reservoir in reservoirs],
        "layers": layers_of(model),
    }
    if folder is not None:
        identity["corpus_train"] = examples.identity
        identity |= {} if held_out is None else {"corpus_valid": held_out.identity}
    work = Work(
        objective=Objective(model, loss or examples.loss(model)),
        examples=examples,
        held_out=held_out,
        options=options,
        steps=steps,
        identity=identity,
        noise=examples.noise or NoiseOf(reservoirs),
        hooks=Hooks(model, optimizer, schedule, evaluate, on_row, progress),
    )
    return run(work, folder, resume)


def _examples_of(model: Any, data: Any, options: TrainingOptions, name: str, *, learned: bool) -> Examples:
    if are_shards(data):
        return StoredStates(data, options.context, learned=learned)
    if are_sequences(data):
        return Sequences(data, name) if have_index(data) else Batches(data, name, options, learned=learned)
    vocabulary = getattr(model, "vocabulary", None)
    return of_corpus(data, options, vocabulary=vocabulary, name=name, learned=learned)
