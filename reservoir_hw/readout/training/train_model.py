"""Training a model by gradients, on all that it can learn from."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from torch import Tensor

from reservoir_hw.readout.training.examples import Batches, Examples, Sequences, of_corpus
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
from reservoir_hw.readout.training.processes import as_computed
from reservoir_hw.readout.training.shards import StoredStates, are_shards


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
        Or examples, for a model with `loss(*batch)`: a data set of tuples, or an iterable of batches, such as a
        `torch.utils.data.DataLoader`; see `Sequences` and `Batches` of `reservoir_hw.readout.training.examples`.
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
    held_out = (
        None if corpus_valid is None else _examples_of(model, corpus_valid, options, "corpus_valid", learned=False)
    )
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
        options=as_computed(options),
        steps=steps,
        identity=identity,
        noise=examples.noise or NoiseOf(reservoirs),
        hooks=Hooks(model, optimizer, schedule, evaluate, on_row, progress),
    )
    return run(work, folder, resume)


def _examples_of(model: Any, data: Any, options: TrainingOptions, name: str, *, learned: bool) -> Examples:
    if are_shards(data):
        return StoredStates(data, options.context, learned=learned)
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if indexed and not isinstance(data, np.ndarray | Tensor) and len(data) and isinstance(data[0], tuple):
        return Sequences(data, name)
    if not indexed and hasattr(data, "__iter__"):
        return Batches(cast(Any, data), name, options, learned=learned)
    return of_corpus(data, options, vocabulary=getattr(model, "vocabulary", None), name=name, learned=learned)
