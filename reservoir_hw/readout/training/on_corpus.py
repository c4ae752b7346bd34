"""Training a model on a corpus."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from reservoir_hw.core.documents import Corpus, Documents
from reservoir_hw.readout.training.documents import evaluation_rows_of, training_rows_of
from reservoir_hw.readout.training.hooks import Evaluate, Hooks, MakeOptimizer, OnRow, Schedule
from reservoir_hw.readout.training.identity import layers_of, reservoirs_of
from reservoir_hw.readout.training.loop import Evaluation, OnProgress, Rows, TrainingResult, Work, run
from reservoir_hw.readout.training.noise import NoiseOf
from reservoir_hw.readout.training.objective import Objective
from reservoir_hw.readout.training.on_examples import are_examples, work_on_examples
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.windows import Windows, checked_tokens, digest_of, evaluation_rows, training_rows


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
