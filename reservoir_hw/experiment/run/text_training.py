"""Training a language model on a text as fast as its reservoir allows, judging it, and letting it write a sample."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from reservoir_hw.core.tokenizer import Corpus, joined
from reservoir_hw.experiment.configuration.experiment import SampleConfig
from reservoir_hw.experiment.configuration.gradient import GradientConfig
from reservoir_hw.experiment.run.text_plan import held_out_of, prompt_of, shards_for, windows_in
from reservoir_hw.experiment.run.trainer import PointRun
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.tasks.task import Task, Tokens
from reservoir_hw.tasks.text.report import ngram_overlap

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.history import Progress
    from reservoir_hw.readout.training.loop import TrainingResult

# Sequences that are driven side by side.
AT_ONCE = 256

log = logging.getLogger(__name__)


def train_on_harvested_states(
    model: TokenModel, gradient: GradientConfig, task: Tokens, run: PointRun, note: Callable[[], None]
) -> tuple[TrainingResult, str, float | None]:
    """Train the readout on states that are computed beforehand, those of windows of a text.

    What happened, what was driven, in words, and how long that took: seconds; None if an earlier process began it.
    `note` is called at every row of the log.
    """
    from reservoir_hw.readout.training.on_examples import train
    from reservoir_hw.readout.training.shards import HarvestedShards

    options = gradient.options
    windows = windows_in(task.tokens_train, options)
    (layer,) = model.reservoir_layers
    count = shards_for(gradient, windows, layer.nodes)
    if count == 1:
        # All of it is there all the time: the epochs need not be a multiple of anything.
        epochs = options.epochs or math.ceil(options.steps_for(windows) * options.windows_per_step / windows)
        options = options.model_copy(update={"shard_epochs": epochs})

    def harvested(tokens: Corpus, name: str, shards: int) -> HarvestedShards:
        return HarvestedShards(
            model,
            cast(np.ndarray, tokens),
            options=options,
            shards=shards,
            at_once=max(options.batch, AT_ONCE),
            folder=run.files.training / f"states-{name}" if gradient.keep_states else None,
            name=f"the {name} part of the text",
        )

    shards = harvested(task.tokens_train, "training", count)
    drive = shards.estimate()
    run.say(f"{drive}; driving")
    spec = layer.reservoir.spec
    begun = _has_checkpoint(run)
    if begun and not gradient.keep_states and not (spec.deterministic or spec.identity.simulated):
        log.warning(
            "the states are driven again, and have other noise than before the training was interrupted "
            "(training.gradient.keep_states keeps them)"
        )
    held_out = held_out_of(task, options)
    driving = _Driving(run.add)
    with layer.reservoir.observed_by(driving):
        validation = None if held_out is None else harvested(held_out, "validation", 1)
        if gradient.keep_states and run.processes.count > 1:
            # One process writes a store, and all read it.
            for one in filter(None, (shards, validation)) if run.processes.is_first else ():
                one.harvest()
            run.processes.gathered(None)
        result = train(
            model.readout,
            shards,
            validation,
            options=options,
            folder=run.files.training,
            progress=told(run, note),
        )
        # The test sees the noise that follows, also if all states were there already.
        shards.restore_noise()
    return result, str(drive), None if begun else driving.seconds


def train_on_tokens(
    model: TokenModel, gradient: GradientConfig, task: Tokens, run: PointRun, note: Callable[[], None]
) -> tuple[TrainingResult, str, float | None]:
    """Train the model, whose reservoirs are driven in every step; returns what `train_on_harvested_states` does."""
    from reservoir_hw.readout.training.estimate import estimate_training
    from reservoir_hw.readout.training.on_examples import train

    options = gradient.options
    held_out = held_out_of(task, options)
    driving, begun = _Driving(), _has_checkpoint(run)
    drives, results = [], []
    with _observed(model, driving):
        for name, tokens in cast(TokenModelConfig, run.point.config.readout).lessons(run.task).items():
            drives.append(str(estimate_training(model, tokens, held_out, options=options)))
            run.say(drives[-1])
            folder = run.files.training / name
            results.append(train(model, tokens, held_out, options=options, folder=folder, progress=told(run, note)))
    result = replace(results[-1], steps=sum(one.steps for one in results))
    return result, "; then ".join(drives), None if begun else driving.seconds


def _has_checkpoint(run: PointRun) -> bool:
    return any(run.files.training.rglob("checkpoint.safetensors"))


@dataclass
class _Driving:
    """Sees what reservoirs are driven with: counts the steps, and the seconds that they take."""

    add: Callable[[int], None] = lambda steps: None
    seconds: float = 0.0

    def was_reset(self, *, from_rest: bool) -> None:
        """Nothing to count."""

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        """Time steps of all sequences."""
        self.add(inputs.shape[0] * inputs.shape[1])
        self.seconds += seconds


@contextmanager
def _observed(model: TokenModel, driving: _Driving) -> Iterator[None]:
    """While all devices of the model, which layers may share, are watched."""
    with ExitStack() as stack:
        for reservoir in {id(layer.reservoir): layer.reservoir for layer in model.reservoir_layers}.values():
            stack.enter_context(reservoir.observed_by(driving))
        yield


def told(run: PointRun, note: Callable[[], None]) -> Callable[[Progress], None]:
    """Tells the run how far a training is, and how many tokens it has seen; `note` keeps what devices counted."""
    seen = 0

    def say(now: Progress) -> None:
        nonlocal seen
        run.say(now.standing)
        run.add(now.row.tokens - seen)
        seen = now.row.tokens
        note()

    return say


def outputs_of(model: TokenModel, task: Task) -> np.ndarray:
    """Outputs (batch, time, vocabulary) for the symbols of the test, from rest."""
    import torch

    from reservoir_hw.readout.models.token_model import evaluating

    device = next(model.readout.parameters()).device
    with evaluating(model):
        return model.outputs(torch.as_tensor(task.test.symbols).to(device)).float().cpu().numpy()


def evaluated(model: TokenModel, corpus: Corpus, options: TrainingOptions, run: PointRun) -> tuple[float, float]:
    """Mean cross-entropy in nats and accuracy over the windows of a text, or over documents, each from rest.

    The processes of the run share the batches.
    """
    from reservoir_hw.readout.models.token_model import evaluating
    from reservoir_hw.readout.training.examples import of_corpus

    device = next(model.readout.parameters()).device
    examples = of_corpus(corpus, options, vocabulary=model.vocabulary, name="the test part of the text")
    chosen, processes = examples.evaluated(None), run.processes
    loss, hits, count = 0.0, 0, 0
    with evaluating(model):
        for first in range(0, len(chosen), options.batch)[processes.rank :: processes.count]:
            read, targets = examples.items(chosen[first : first + options.batch], device)
            if options.predict == "last":
                features, targets = model.last_features(read), targets[:, -1]
            else:
                features = model.features(read)
            counted = targets >= 0
            part = scored(model, features[counted], targets[counted])
            loss, hits, count = loss + part[0], hits + part[1], count + int(counted.sum())
            run.add(read.numel() * processes.count)
    loss, hits, count = map(sum, zip(*processes.gathered([loss, hits, count]), strict=True))
    return loss / count, hits / count


def scored(model: TokenModel, features: Tensor, targets: Tensor) -> tuple[float, int]:
    """Summed cross-entropy, and how often the largest logit is that of the target; logits chunk by chunk."""
    from torch.nn.functional import cross_entropy

    size = max(1, (1 << 24) // model.vocabulary)
    loss, hits = 0.0, 0
    for first in range(0, len(features), size):
        logits = model.readout(features[first : first + size]).float()
        wanted = targets[first : first + size]
        loss += float(cross_entropy(logits, wanted, reduction="sum").double())
        hits += int((logits.argmax(-1) == wanted).sum())
    return loss, hits


def course(result: TrainingResult, driving_seconds: float | None) -> dict[str, Any]:
    """How the training went, for `metrics.json`: the losses at its evaluations, and what it took up to there."""
    names = ("step", "tokens", "validation_loss", "processor_seconds")
    evaluated = [row for row in result.history if row.validation_loss is not None]
    return {
        "steps": result.steps,
        "driving_seconds": driving_seconds,
        "evaluations": [{name: getattr(row, name) for name in names} for row in evaluated],
    }


def curves(result: TrainingResult, options: TrainingOptions) -> dict[str, np.ndarray]:
    """What the figures of the task show of the training."""
    validation = result.validation_losses
    return {
        "training/step": np.array([row.step for row in result.history]),
        "training/loss": result.losses,
        "validation/step": validation[:, 0],
        "validation/loss": validation[:, 1],
        "context": np.array(options.context),
    }


def sample_of(model: TokenModel, sample: SampleConfig, task: Tokens) -> tuple[str, dict[str, float], dict[str, float]]:
    """A text that the model writes, behind its prompt in ⟦⟧, the metrics of `SampleConfig.overlap`, and what it took.

    Raises `StateLost` or `NotSupported` where the device cannot be stepped.
    """
    prompt = prompt_of(sample, task)
    choices = sample.model_dump(include={"temperature", "top_k", "top_p", "seed"})
    driving, begun = _Driving(), time.perf_counter()
    with _observed(model, driving):
        written = list(model.generate(prompt, sample.tokens, **choices))
    took = {"tokens": sample.tokens, "seconds": time.perf_counter() - begun, "driving_seconds": driving.seconds}
    overlap = {f"overlap/{n}": ngram_overlap(np.array(written), joined(task.tokens_test), n) for n in sample.overlap}
    text = f"⟦{task.tokenizer.decode(prompt)}⟧{task.tokenizer.decode(written)}"
    return text, overlap, took
