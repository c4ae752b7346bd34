"""Training a model on a corpus."""

from __future__ import annotations

import os
from typing import Any

from reservoir_hw.readout.training.identity import former_fingerprints, layers_of, reservoirs_of
from reservoir_hw.readout.training.loop import Evaluation, OnProgress, TrainingResult, Work, run
from reservoir_hw.readout.training.noise import NoiseOf
from reservoir_hw.readout.training.objective import Objective
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.readout.training.windows import Windows, digest_of, evaluation_rows, training_rows


def train(
    model: Any,
    corpus_train: Any,
    corpus_valid: Any = None,
    *,
    options: TrainingOptions,
    folder: str | os.PathLike[str] | None = None,
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
        Tokens (time,), whole numbers of any width; memory-mapped arrays are read as they are needed.
    folder
        See `reservoir_hw.readout.training.folder`. Without one nothing is kept but the model.
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
    vocabulary = getattr(model, "vocabulary", None)
    identity: dict[str, Any] = {}

    def windows(corpus: Any, name: str) -> Windows:
        made = Windows(
            corpus,
            options.context,
            stride=options.stride,
            vocabulary=vocabulary,
            predict=options.predict,
            name=name,
        )
        if folder is not None:
            identity[name] = digest_of(made.corpus)
        return made

    training = windows(corpus_train, "corpus_train")
    evaluation = None
    if corpus_valid is not None:
        held_out = windows(corpus_valid, "corpus_valid")
        count = min(len(held_out), options.evaluation_windows or len(held_out))
        evaluation = Evaluation(evaluation_rows(held_out), count)
    reservoirs = reservoirs_of(model)
    identity["reservoirs"] = [reservoir.spec.identity.fingerprint for reservoir in reservoirs]
    identity["layers"] = layers_of(model)
    work = Work(
        objective=Objective(model, model.loss),
        rows=training_rows(training, options),
        evaluation=evaluation,
        steps=options.steps_for(len(training)),
        identity=identity,
        noise=NoiseOf(reservoirs),
        names=former_fingerprints(reservoirs),
    )
    return run(work, options, folder, progress, resume)
