"""What the training of a language model takes, and what does not fit; nothing is opened."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.tokenizer import BpeTokenizer, Corpus, Documents
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, SampleConfig, TrainingConfig
from reservoir_hw.experiment.configuration.gradient import GradientConfig
from reservoir_hw.experiment.run.trainer import Cost
from reservoir_hw.readout.configuration import GradientReadoutConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.tasks.task import Tokens

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
        evaluations = math.ceil(steps / (gradient.evaluation_steps or steps))
        driven = seen + evaluations * validation + test
        tokens, kept = (seen + test) * context, 0
    sample = config.run.generate
    written = 0 if sample is None else len(prompt_of(sample, task)) + sample.tokens
    device_steps = (driven * context + written) * model.layers_of_reservoirs
    return Cost(device_steps, tokens, kept, training_steps=steps)


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
