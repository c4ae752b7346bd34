"""The speed of a language model: a few steps, windows and letters of what its run will do, on a model as large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from reservoir_hw.core.documents import Corpus
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig
from reservoir_hw.experiment.run.speed import Demand, seconds_for_one, seconds_of_a_step
from reservoir_hw.experiment.run.text_plan import amount, gradient_of, harvests, prompt_of
from reservoir_hw.experiment.run.text_training import AT_ONCE, batches, scored
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.tasks.task import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.options import TrainingOptions

# Of states that a step is measured on: more than a cache holds.
_BYTES = 1 << 26


def text_demand(
    model: TokenModel,
    settings: TokenModelConfig,
    config: ExperimentConfig,
    task: Tokens,
    lessons: Iterable[Corpus],
    for_s: float,
) -> Demand:
    """What the run of this model takes, measured for about `for_s`; the model is trained a little meanwhile."""
    options = gradient_of(config).options
    wanted, precomputed = amount(config, settings, task, lessons), harvests(settings, task)
    # The time of a step is most of a run, and varies most.
    step = options.accumulate * seconds_of_a_step(_training(model, task, options, precomputed), 0.4 * for_s)
    at_once = max(options.batch, AT_ONCE) if precomputed else options.batch
    reading = seconds_for_one(_read(model, task, options, at_once), 0.2 * for_s)
    judging = seconds_for_one(_judged(model, task, options), 0.2 * for_s)
    seconds = wanted.steps * step + wanted.driven * reading + wanted.test * (reading + judging)
    seconds += wanted.validated * (judging if precomputed else reading + judging)
    sample = config.run.generate
    if sample is not None:
        choices = sample.model_dump(include={"temperature", "top_k", "top_p", "seed"})
        letters = model.generate(prompt_of(sample, task), sample.tokens, **choices)
        seconds += sample.tokens * seconds_for_one((1 for _ in letters), 0.2 * for_s)
    per_window = 1 if options.predict == "last" else options.context
    return Demand(seconds, 4 * wanted.shard * per_window * int(getattr(config.reservoir, "nodes", None) or 0))


def endless(options: TrainingOptions) -> TrainingOptions:
    """Steps of one batch each, without end, and each with a row of the log."""
    many = {"steps": 1_000_000, "epochs": None, "accumulate": 1, "log_steps": 1}
    return options.model_copy(update={**many, "patience": None, "keep": "last", "evaluation_steps": None})


def _training(
    model: TokenModel, task: Tokens, options: TrainingOptions, precomputed: bool
) -> Callable[[Callable[[float], None]], object]:
    """A training that has no end, of one batch for each step."""
    from reservoir_hw.readout.training.history import Progress
    from reservoir_hw.readout.training.on_corpus import train
    from reservoir_hw.readout.training.on_states import train_on_states
    from reservoir_hw.readout.training.shards import GivenShards, Shard

    options = endless(options)

    def run(told: Callable[[float], None]) -> object:
        def progress(now: Progress) -> None:
            told(now.row.processor_seconds)

        if not precomputed:
            return train(model, task.tokens_train, options=options, progress=progress)
        states, targets = _states(model, task, options)
        return train_on_states(model.readout, GivenShards([Shard(states, targets)]), options=options, progress=progress)

    return run


def _read(model: TokenModel, task: Tokens, options: TrainingOptions, at_once: int) -> Iterator[int]:
    """So many windows or documents whose features the model has computed, again and again."""
    from reservoir_hw.readout.models.evaluating import evaluating

    device = next(model.readout.parameters()).device
    model.to(device)
    while True:
        for tokens, _ in batches(model, task.tokens_train, options.model_copy(update={"batch": at_once}), device):
            with evaluating(model):
                model.features(tokens)
            yield len(tokens)


def _judged(model: TokenModel, task: Tokens, options: TrainingOptions) -> Iterator[int]:
    """So many windows whose features the readout has answered, and whose answers were scored, again and again."""
    from reservoir_hw.readout.models.evaluating import evaluating

    device = next(model.readout.parameters()).device
    states, targets = (part[: options.batch].to(device) for part in _states(model, task, options))
    counted = targets >= 0
    while True:
        with evaluating(model):
            scored(model, states[counted], targets[counted])
        yield len(states)


def _states(model: TokenModel, task: Tokens, options: TrainingOptions) -> tuple[Tensor, Tensor]:
    """Features (windows, steps, features) of the first windows or documents of the text, and their targets."""
    from reservoir_hw.readout.models.evaluating import evaluating

    kept = slice(-1, None) if options.predict == "last" else slice(None)
    device = next(model.parameters()).device

    def of(windows: int) -> tuple[Tensor, Tensor]:
        many = options.model_copy(update={"batch": windows})
        tokens, targets = next(iter(batches(model, task.tokens_train, many, device)))
        with evaluating(model):
            states = model.features(tokens)
        return states[:, kept].cpu(), targets[:, kept].cpu()

    states, targets = of(options.batch)
    more = _BYTES // (states[0].numel() * states.element_size())
    return of(min(more, 16 * options.batch)) if more > options.batch else (states, targets)
