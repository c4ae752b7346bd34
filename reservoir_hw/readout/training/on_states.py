"""Training a readout on states that were computed beforehand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.tokenizer import Corpus, Documents
from reservoir_hw.readout.models.softmax import cross_entropy
from reservoir_hw.readout.training.identity import layers_of, reservoirs_of
from reservoir_hw.readout.training.loop import Evaluation, OnProgress, Rows, TrainingResult, Work, run
from reservoir_hw.readout.training.noise import NoiseOf, inside
from reservoir_hw.readout.training.on_examples import are_examples, work_on_examples
from reservoir_hw.readout.training.optimizer import Evaluate, Hooks, MakeOptimizer, Objective, OnRow, Schedule
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.shards import GivenShards, Shard, Shards, counted_targets
from reservoir_hw.readout.training.windows import (
    Order,
    Windows,
    checked_tokens,
    digest_of,
    drawn,
    evaluation_rows,
    evaluation_rows_of,
    shuffled,
    training_rows,
    training_rows_of,
)


def train_on_states(
    readout: nn.Module,
    shards_train: Shards | Sequence[Shard],
    shards_valid: Shards | Sequence[Shard] | None = None,
    *,
    options: TrainingOptions,
    folder: str | os.PathLike[str] | None = None,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    evaluate: Evaluate | None = None,
    on_row: OnRow | None = None,
    progress: OnProgress | None = None,
    resume: bool = True,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> TrainingResult:
    """Train a readout, states -> logits, to predict the targets of shards; its weights are changed in place.

        shards = HarvestedShards(model, corpus, options=options, shards=5)
        train_on_states(model.readout, shards, options=options)

    Each shard is learned from for `options.shard_epochs` epochs, then the next, round and round (Köster & Uchida 2026,
    section III.A): `options.epochs` is a multiple of `shard_epochs`, or give `steps`. A row is a window of `context`
    successive steps, or a whole sequence where that is shorter; steps at the end of a sequence that do not fill a
    window are left out. The last step on a shard is filled up with rows of a further epoch on it. With one
    shard, windows for sequences and the seed of `train`, this takes the steps that `train` takes.

    Parameters
    ----------
    readout
        A module that treats positions independently, such as `model.readout`.
    shards_train
        `HarvestedShards`, or a list of `Shard`. One is held in memory.
    shards_valid
        Evaluated in full; all of them are held in memory.
    loss
        States (rows, context, features) and targets -> the mean loss, instead of the cross-entropy of tokens. Targets
        may be numbers (rows, context, outputs) then, NaN where none is known.

    Further parameters, files and errors are those of `train`. With several processes each takes its share of
    the rows: give them shards of the same states.
    """
    shards_train = _filled(shards_train, "to learn from")
    if shards_valid is not None:
        shards_valid = _filled(shards_valid, "to validate with")
    rows = _ShardRows(shards_train, options)
    evaluation, identity = None, {}
    if folder is not None:
        identity = {"shards": shards_train.identity}
        if shards_valid is not None:
            identity["shards_valid"] = shards_valid.identity
    if shards_valid is not None:
        held = _AllRows([_windowed(shards_valid[i], options.context) for i in range(len(shards_valid))])
        evaluation = Evaluation(held, len(held), lambda tensors: counted_targets(tensors[-1]))
    work = Work(
        objective=Objective(readout, loss or partial(_loss, readout)),
        rows=rows,
        evaluation=evaluation,
        steps=rows.steps,
        identity=identity,
        noise=rows,
    )
    hooks = Hooks(readout, optimizer, schedule, evaluate, on_row)
    return run(work, options, folder, progress, resume, hooks)


def _loss(readout: nn.Module, states: Tensor, targets: Tensor) -> Tensor:
    parameter = next(readout.parameters())
    expected = getattr(readout, "features", states.shape[-1])
    if states.shape[-1] != expected:
        raise ShapeError(f"the states of the shards have {states.shape[-1]} features, the readout takes {expected}")
    return cross_entropy(readout, states.to(parameter.dtype), targets)


class _ShardRows:
    """Rows of visits: a visit is one shard for some epochs, and whole steps."""

    def __init__(self, shards: Shards, options: TrainingOptions) -> None:
        self._shards, self._options = shards, options
        shapes = [shards.shape(number) for number in range(len(shards))]
        self._counts = [_count(steps, sequences, options.context) for sequences, steps in shapes]
        self._context = min(options.context, shapes[0][1])
        per_step = options.windows_per_step
        self._steps_of = [-(-count * options.shard_epochs // per_step) for count in self._counts]
        self.steps = self._total_steps()
        self._noise = shards.noise
        # A shard, and where the noise was before it was driven: the one held, and one that an interruption has lost.
        self._driven: tuple[int, dict[str, np.ndarray]] | None = None
        self._lost: tuple[int, dict[str, np.ndarray]] | None = None
        self._loaded: tuple[int, tuple[Tensor, Tensor]] | None = None
        self._ordered: tuple[int, Order] | None = None

    def tokens(self, first: int, stop: int) -> int:
        """Time steps in these rows."""
        return (stop - first) * self._context

    def get(self, first: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """States (rows, context, features) and targets (rows, context, ...). Rows of one step are of one visit."""
        per_step = self._options.windows_per_step
        visit, begin = self._visit(first // per_step)
        number = visit % len(self._counts)
        if self._loaded is None or self._loaded[0] != number:
            self._loaded = None
            self._begin_driving(number)
            states, targets = _windowed(self._shards[number], self._options.context)
            # A shard lies where it is learned from: it is read many times.
            self._loaded = number, (states.to(device), targets.to(device))
        if self._ordered is None or self._ordered[0] != visit:
            make = drawn if self._options.windows == "random" else shuffled
            # The first visit has the order of a training on windows.
            name = "windows" if visit == 0 else f"windows visit {visit}"
            self._ordered = visit, make(self._counts[number], self._options.seed, name)
        chosen = torch.from_numpy(self._ordered[1](first - begin * per_step, stop - begin * per_step)).to(device)
        states, targets = self._loaded[1]
        return states[chosen], targets[chosen]

    @property
    def noisy(self) -> bool:
        """Whether shards that are driven again have noise."""
        return self._noise is not None and self._noise.noisy

    def kept(self) -> dict[str, np.ndarray]:
        """Where the noise is, and where it was before the shard that is held was driven."""
        now = {} if self._noise is None else self._noise.kept()
        shard, before = self._driven or (0, {})
        # A device that did not know its state when it was driven has no noise to go back to.
        if not now or not before:
            return {}
        found = {f"now/{name}": array for name, array in now.items()}
        return {"shard": np.array([shard]), **{f"before/{name}": array for name, array in before.items()}, **found}

    def take_up(self, kept: Mapping[str, np.ndarray]) -> None:
        """Bring the noise to where it was; the shard that was held will be driven with the noise that it had."""
        if self._noise is not None:
            self._noise.take_up(inside(kept, "now"))
            self._lost = int(kept["shard"][0]), inside(kept, "before")

    def _begin_driving(self, number: int) -> None:
        if self._noise is None:
            return
        if self._lost is not None and self._lost[0] == number:
            self._noise.take_up(self._lost[1])
        self._driven, self._lost = (number, self._noise.kept()), None

    def _visit(self, step: int) -> tuple[int, int]:
        """The visit that a step belongs to, and the first step of it."""
        round_, rest = divmod(step, sum(self._steps_of))
        begin = step - rest
        for number, steps in enumerate(self._steps_of):
            if step < begin + steps:
                return round_ * len(self._steps_of) + number, begin
            begin += steps
        raise AssertionError("a step lies within its round")

    def _total_steps(self) -> int:
        options = self._options
        if options.steps is not None:
            return options.steps
        assert options.epochs is not None
        rounds, rest = divmod(options.epochs, options.shard_epochs)
        if rest:
            raise ConfigurationError(
                f"epochs {options.epochs} must be a multiple of shard_epochs {options.shard_epochs}, the epochs on one "
                "shard before the next"
            )
        return rounds * sum(self._steps_of)


class _AllRows:
    """The rows of several shards one after the other."""

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(targets) for _, targets in self._parts)

    def tokens(self, first: int, stop: int) -> int:
        """Time steps in these rows, as the first shard has them."""
        return (stop - first) * self._parts[0][1].shape[1]

    def get(self, first: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """States and targets of rows first..stop - 1."""
        chosen = list(self._pieces(first, stop))
        states, targets = (torch.cat(parts).to(device) for parts in zip(*chosen, strict=True))
        return states, targets

    def _pieces(self, first: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        begin = 0
        for states, targets in self._parts:
            part = slice(max(first - begin, 0), max(stop - begin, 0))
            if part.start < min(part.stop, len(targets)):
                yield states[part], targets[part]
            begin += len(targets)


def _filled(shards: Shards | Sequence[Shard], purpose: str) -> Shards:
    """Raise `ConfigurationError` where there is nothing."""
    found = cast(Shards, shards) if hasattr(shards, "identity") else GivenShards(cast(Sequence[Shard], shards))
    if not len(found):
        raise ConfigurationError(f"there are no shards {purpose}")
    for number in range(len(found)):
        sequences, steps = found.shape(number)
        if not sequences or not steps:
            raise ConfigurationError(
                f"shard {number} {purpose} is empty: it has {sequences} sequences of {steps} steps"
            )
    return found


def _count(steps: int, sequences: int, context: int) -> int:
    return sequences * (steps // min(context, steps))


def _windowed(shard: Shard, context: int) -> tuple[Tensor, Tensor]:
    """States (windows, context, features) and targets (windows, context, ...)."""
    states, targets = torch.as_tensor(shard.states), torch.as_tensor(shard.targets)
    _, steps, features = states.shape
    context = min(context, steps)
    kept = steps // context * context
    return (
        states[:, :kept].reshape(-1, context, features),
        targets[:, :kept].reshape(-1, context, *targets.shape[2:]),
    )


# ---- Training a model on a corpus.


def train(
    model: Any,
    corpus_train: Any,
    corpus_valid: Any = None,
    *,
    options: TrainingOptions,
    folder: str | os.PathLike[str] | None = None,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    evaluate: Evaluate | None = None,
    on_row: OnRow | None = None,
    progress: OnProgress | None = None,
    resume: bool = True,
) -> TrainingResult:
    """Train `model` to predict the next token of a corpus; its weights are changed in place, gradients forgotten.

    With a folder, checkpoints are written, and the same call after Ctrl-C, `kill -9` or a power failure goes on
    from the last one: on a CPU the weights in the end are bit for bit those of a training that was never
    interrupted. Under `torchrun` every process calls this with a model, and reservoirs, of its own; together they
    take the steps that one process would.

    Parameters
    ----------
    model
        Anything with `parameters()` and `loss(tokens, targets)`, the mean cross-entropy of targets (batch, time)
        after tokens (batch, time), int64, from rest; targets of -1 are not counted. If it has a `vocabulary`,
        tokens are checked against it.
    corpus_train, corpus_valid
        Tokens (time,), whole numbers of any width; memory-mapped arrays are read as they are needed. Or documents of
        unequal length: a list of such arrays, or `Documents`. Each document is read from rest; a row of a batch is a
        document, of at most `options.context` + 1 tokens, and every prediction counts alike in the loss of a step.
        Or examples, for a model with `loss(*batch)`: see `reservoir_hw.readout.training.on_examples`.
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
    hooks = Hooks(model, optimizer, schedule, evaluate, on_row)
    if are_examples(corpus_train):
        work = work_on_examples(model, corpus_train, corpus_valid, options, folder)
        return run(work, options, folder, progress, resume, hooks)
    vocabulary = getattr(model, "vocabulary", None)
    training = as_corpus(corpus_train, "corpus_train")
    held_out = None if corpus_valid is None else as_corpus(corpus_valid, "corpus_valid")
    reservoirs = reservoirs_of(model)
    identity: dict[str, Any] = {
        "reservoirs": [reservoir.spec.identity.fingerprint for reservoir in reservoirs],
        "layers": layers_of(model),
    }
    if folder is not None:
        identity["corpus_train"] = digest_of(training)
        identity |= {} if held_out is None else {"corpus_valid": digest_of(held_out)}
    rows, items = _training_rows(training, options, vocabulary)
    work = Work(
        objective=Objective(model, model.loss),
        rows=rows,
        evaluation=None if held_out is None else _evaluation(held_out, options, vocabulary),
        steps=options.steps_for(items),
        identity=identity,
        noise=NoiseOf(reservoirs),
    )
    return run(work, options, folder, progress, resume, hooks)


def as_corpus(given: Any, name: str) -> Corpus:
    """One text, or documents from a list of texts. Raises `ShapeError` for anything else."""
    if isinstance(given, Documents):
        return given
    if isinstance(given, list | tuple) and given and np.ndim(given[0]) == 1:
        return Documents.of([checked_tokens(one, f"document {number} of {name}") for number, one in enumerate(given)])
    return checked_tokens(given, name)


def _training_rows(corpus: Corpus, options: TrainingOptions, vocabulary: int | None) -> tuple[Rows, int]:
    """The rows, and how many an epoch has."""
    if isinstance(corpus, Documents):
        options.check_documents(corpus.lengths, "corpus_train")
        return training_rows_of(corpus, options, vocabulary), len(corpus)
    windows = _windows(corpus, options, vocabulary, "corpus_train")
    return training_rows(windows, options), len(windows)


def _evaluation(corpus: Corpus, options: TrainingOptions, vocabulary: int | None) -> Evaluation:
    most = options.evaluation_windows
    if isinstance(corpus, Documents):
        some = corpus.chosen(slice(most))
        options.check_documents(some.lengths, "corpus_valid")
        return Evaluation(evaluation_rows_of(some, vocabulary, "corpus_valid"), len(some))
    windows = _windows(corpus, options, vocabulary, "corpus_valid")
    return Evaluation(evaluation_rows(windows), min(len(windows), most or len(windows)))


def _windows(corpus: np.ndarray, options: TrainingOptions, vocabulary: int | None, name: str) -> Windows:
    return Windows(
        corpus, options.context, stride=options.stride, vocabulary=vocabulary, predict=options.predict, name=name
    )
