"""Training a language model on a text, as fast as its reservoir allows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.experiment.configuration.gradient import GradientConfig
from reservoir_hw.experiment.run.point_run import PointRun
from reservoir_hw.experiment.run.text_plan import held_out_of, shards_for, windows_in
from reservoir_hw.tasks.task import Tokens

if TYPE_CHECKING:
    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.history import Progress
    from reservoir_hw.readout.training.loop import TrainingResult

# Sequences that are driven side by side.
_AT_ONCE = 256

log = logging.getLogger(__name__)


def train_on_harvested_states(
    model: TokenModel, gradient: GradientConfig, task: Tokens, run: PointRun
) -> tuple[TrainingResult, str]:
    """Train the readout on states that are computed beforehand; what happened, and what was driven, in words."""
    from reservoir_hw.readout.training.on_states import train_on_states
    from reservoir_hw.readout.training.shards import HarvestedShards

    options = gradient.options
    windows = windows_in(task.tokens_train, options)
    (layer,) = model.reservoir_layers
    count = shards_for(gradient, windows, 1 if options.predict == "last" else options.context, layer.nodes)
    if count == 1:
        # All of it is there all the time: the epochs need not be a multiple of anything.
        epochs = options.epochs or math.ceil(options.steps_for(windows) * options.windows_per_step / windows)
        options = options.model_copy(update={"shard_epochs": epochs})

    def harvested(tokens: np.ndarray, name: str, shards: int) -> HarvestedShards:
        return HarvestedShards(
            model,
            tokens,
            options=options,
            shards=shards,
            at_once=max(options.batch, _AT_ONCE),
            folder=run.files.training / f"states-{name}" if gradient.keep_states else None,
            name=f"the {name} part of the text",
        )

    shards = harvested(task.tokens_train, "training", count)
    drive = shards.estimate()
    run.say(f"{drive}; driving")
    begun = (run.files.training / "checkpoint.safetensors").exists()
    spec = layer.reservoir.spec
    if begun and not gradient.keep_states and not (spec.deterministic or spec.identity.simulated):
        log.warning(
            "the states are driven again, and have other noise than before the training was interrupted "
            "(training.gradient.keep_states keeps them)"
        )
    held_out = held_out_of(task, options)
    with layer.reservoir.observed_by(_Steps(run.add)):
        result = train_on_states(
            model.readout,
            shards,
            None if held_out is None else harvested(held_out, "validation", 1),
            options=options,
            folder=run.files.training,
            progress=_told(run),
        )
        # The test sees the noise that follows, also if all states were there already.
        shards.take_up_noise()
    return result, str(drive)


def train_on_tokens(
    model: TokenModel, gradient: GradientConfig, task: Tokens, run: PointRun
) -> tuple[TrainingResult, str]:
    """Train the model, whose reservoirs are driven in every step; what happened, and what was driven, in words."""
    from reservoir_hw.readout.training.estimate import estimate_training
    from reservoir_hw.readout.training.on_corpus import train

    options = gradient.options
    held_out = held_out_of(task, options)
    drive = estimate_training(model, task.tokens_train, held_out, options=options)
    run.say(str(drive))
    result = train(model, task.tokens_train, held_out, options=options, folder=run.files.training, progress=_told(run))
    return result, str(drive)


@dataclass(frozen=True)
class _Steps:
    """Sees what a reservoir is driven with, and counts it."""

    add: Callable[[int], None]

    def was_reset(self, *, from_rest: bool) -> None:
        """Nothing to count."""
        del from_rest

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        """Time steps of all sequences."""
        del states, seconds
        self.add(inputs.shape[0] * inputs.shape[1])


def _told(run: PointRun) -> Callable[[Progress], None]:
    seen = 0

    def told(now: Progress) -> None:
        nonlocal seen
        run.say(str(now))
        run.add(now.row.tokens - seen)
        seen = now.row.tokens

    return told
