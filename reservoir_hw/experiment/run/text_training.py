"""Training a language model on a text as fast as its reservoir allows, judging it, and letting it write a sample."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.tokenizer import BpeTokenizer, Corpus, Documents, joined
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, SampleConfig, TrainingConfig
from reservoir_hw.experiment.configuration.gradient import GradientConfig
from reservoir_hw.experiment.run.trainer import Cost, PointRun
from reservoir_hw.readout.configuration import GradientReadoutConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.tasks.task import Task, Tokens
from reservoir_hw.tasks.text.task import ngram_overlap

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.history import Progress
    from reservoir_hw.readout.training.loop import TrainingResult


# States of one shard.
_SHARD_BYTES = 1 << 30

# Settings of `gradient` about windows of a text and its shards.
_OF_TEXTS = ("paper", "stride", "predict", "shards", "shard_epochs", "keep_states", "embedding_rate")

# Tokens that a sample continues where no prompt is given.
_PROMPT = 32


def cost(config: ExperimentConfig, model: TokenModelConfig, task: Tokens, lessons: Iterable[Corpus]) -> Cost:
    """What training on these lessons, validation, test and sample will take."""
    gradient = gradient_of(config)
    nodes = getattr(config.reservoir, "nodes", None)
    windows, test = windows_in(task.tokens_train, gradient), windows_in(task.tokens_test, gradient)
    held_out = held_out_of(task, gradient)
    validation = 0 if held_out is None else windows_in(held_out, gradient)
    steps = sum(gradient.steps_for(windows_in(tokens, gradient)) for tokens in lessons)
    seen, context = steps * gradient.windows_per_step, gradient.context
    if isinstance(task.tokens_train, Documents):
        context = round(float(task.tokens_train.lengths.mean())) - 1
    if harvests(model, task):
        per_window, shards = states_in_window(gradient), shards_for(gradient, windows, nodes)
        visits = math.ceil(steps / math.ceil(windows / shards * gradient.shard_epochs / gradient.windows_per_step))
        visited = visits if not gradient.keep_states else min(visits, shards)
        driven = (windows if shards == 1 else round(windows / shards * visited)) + validation + test
        tokens = driven * context + seen * per_window
        kept = None if nodes is None else (windows + validation) * per_window * nodes * 4
    else:
        driven = seen + math.ceil(steps / (gradient.evaluation_steps or steps)) * validation + test
        tokens, kept = (seen + test) * context, 0
    sample = config.run.generate
    written = 0 if sample is None else len(prompt_of(sample, task)) + sample.tokens
    return Cost((driven * context + written) * model.layers_of_reservoirs, tokens, kept, training_steps=steps)


def _check_shards(gradient: GradientConfig, model: TokenModelConfig, task: Tokens, nodes: int | None) -> None:
    """Raise `ConfigurationError` where the shards do not get the epochs that are asked for."""
    epochs, on_one = gradient.epochs, gradient.shard_epochs
    if not harvests(model, task) or epochs is None or len(task.tokens_train) <= gradient.context:
        return
    windows = windows_in(task.tokens_train, gradient)
    count = shards_for(gradient, windows, nodes)
    if count > windows:
        raise ConfigurationError(f"gradient.shards: {windows} windows of the text cannot make {count} shards")
    if count > 1 and epochs % on_one:
        raise ConfigurationError(
            f"gradient.epochs {epochs} must be a multiple of gradient.shard_epochs {on_one}, the epochs on one of the "
            f"{count} shards before the next"
        )


def check_gradient_alone(config: ExperimentConfig, example: str) -> GradientConfig:
    """How a readout that is trained by gradients is trained.

    Raises `ConfigurationError` where nothing says it, or other settings that would do nothing.
    """
    gradient, training = check_gradient(config, example), config.training
    defaults = TrainingConfig(gradient=training.gradient)
    ignored = [name for name in TrainingConfig.model_fields if getattr(training, name) != getattr(defaults, name)]
    if ignored:
        raise ConfigurationError(
            f"{', '.join(ignored)}: not for readout {config.readout.kind}, which needs `gradient` alone"
        )
    return gradient


def check_gradient(config: ExperimentConfig, example: str) -> GradientConfig:
    """How a readout is trained by gradients. Raises `ConfigurationError` where nothing says it."""
    model = cast(GradientReadoutConfig, config.readout)
    if config.training.gradient is None and not model.training:
        raise ConfigurationError(
            f"gradient is missing: readout {model.kind} is trained by gradients, so say how long, for instance "
            f"{example}"
        )
    return gradient_of(config)


def refuse_options_of_texts(config: ExperimentConfig, learns_from: str, *more: str) -> None:
    """Raise `ConfigurationError` for settings of texts and their shards, and for `more`, which would do nothing."""
    foreign = [name for name in (*_OF_TEXTS, *more) if name in gradient_of(config).model_fields_set]
    if foreign:
        raise ConfigurationError(
            f"gradient.{', gradient.'.join(foreign)}: for texts and their shards; readout {config.readout.kind} learns "
            f"from {learns_from}, so leave it out"
        )


def check_training(config: ExperimentConfig, model: TokenModelConfig, task: Tokens) -> None:
    """Raise `ConfigurationError` where section `training` does not fit the model or the text."""
    gradient = check_gradient_alone(config, "gradient: {epochs: 5, context: 32}")
    if not harvests(model, task):
        for name in ("shards", "keep_states"):
            if getattr(gradient, name):
                why = "as what it trains lies before them" if not model.harvests else "as the text comes in sentences"
                raise ConfigurationError(
                    f"gradient.{name} is for states that are computed beforehand, and readout {model.kind} drives its "
                    f"reservoirs in every step, {why}: leave it out"
                )
    _check_shards(gradient, model, task, getattr(config.reservoir, "nodes", None))
    for part, tokens in (
        ("training", task.tokens_train),
        ("validation", held_out_of(task, gradient)),
        ("test", task.tokens_test),
    ):
        if isinstance(tokens, Documents):
            gradient.check_documents(tokens.lengths, f"the {part} part of the text")
        elif tokens is not None and len(tokens) <= gradient.context:
            raise ConfigurationError(
                f"gradient.context: a window takes {gradient.context + 1} tokens, and the {part} part of the text has "
                f"{len(tokens)}; give more text, another share (task.{part}), or a smaller context"
            )


def harvests(model: TokenModelConfig, task: Tokens) -> bool:
    """Whether the states are computed beforehand: for one readout that alone is trained, on windows of equal length."""
    return model.harvests and not isinstance(task.tokens_train, Documents)


def gradient_of(config: ExperimentConfig) -> GradientConfig:
    """How the readout is trained: `training.gradient`, and over it what the readout has of its own."""
    return GradientConfig.for_model(config.training.gradient, cast(GradientReadoutConfig, config.readout).training)


def windows_in(tokens: Corpus, options: TrainingOptions) -> int:
    """How many windows of the context these tokens make; documents are each a window of its own length."""
    if isinstance(tokens, Documents):
        return len(tokens)
    return (len(tokens) - options.context - 1) // (options.stride or options.context) + 1


def held_out_of(task: Tokens, options: TrainingOptions) -> Corpus | None:
    """The part of the validation text that is evaluated, or None if there is none."""
    tokens = task.tokens_validation
    if not len(tokens):
        return None
    if options.evaluation_windows is None:
        return tokens
    if isinstance(tokens, Documents):
        return tokens.chosen(slice(options.evaluation_windows))
    return tokens[: (options.evaluation_windows - 1) * (options.stride or options.context) + options.context + 1]


def states_in_window(gradient: GradientConfig) -> int:
    """How many states of a window are learned from."""
    return 1 if gradient.predict == "last" else gradient.context


def shards_for(gradient: GradientConfig, windows: int, nodes: int | None) -> int:
    """Parts into which the precomputed states of so many nodes are divided."""
    states = windows * states_in_window(gradient)
    return gradient.shards or max(1, min(windows, math.ceil(states * (nodes or 0) * 4 / _SHARD_BYTES)))


def prompt_of(sample: SampleConfig, task: Tokens) -> np.ndarray:
    """The tokens that a sample continues. Raises `ConfigurationError` where there are none, or unknown ones.

    Of a task with sentences, it is a sentence that begins.
    """
    if isinstance(task.tokens_test, Documents):
        return np.append(task.encode(BpeTokenizer.END), task.encode(sample.prompt or ""))
    if sample.prompt is None:
        return task.tokens_test[:_PROMPT]
    try:
        prompt = task.encode(sample.prompt)
    except InputRangeError as error:
        raise ConfigurationError(f"generate.prompt: {error}") from error
    if not len(prompt):
        raise ConfigurationError("generate.prompt is empty; null takes the beginning of the test")
    return prompt


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
    from reservoir_hw.readout.training.shards import HarvestedShards
    from reservoir_hw.readout.training.train_model import train

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
    driving = _Driving(run.counter.add)
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
    from reservoir_hw.readout.training.train_model import train

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
        run.counter.add(now.row.tokens - seen)
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
            run.counter.add(read.numel() * processes.count)
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
    return f"⟦{task.tokenizer.decode(prompt)}⟧{task.tokenizer.decode(written)}", overlap, took
