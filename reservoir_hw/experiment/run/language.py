"""Language models in an experiment: their reservoirs are opened, they are trained on a text, judged, and kept."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported, StateLost
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point, SampleConfig, TrainingConfig
from reservoir_hw.experiment.configuration.gradient import GradientConfig
from reservoir_hw.experiment.states.record import Recorder
from reservoir_hw.readout.models.configuration import ModelConfig
from reservoir_hw.readout.training.options import TrainingOptions
from reservoir_hw.tasks.task import Evaluation, Task
from reservoir_hw.tasks.text.task import Text

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.history import Progress
    from reservoir_hw.readout.training.loop import TrainingResult

VALIDATION = "validation_cross_entropy"
"""The metric by which settings are chosen, so that the test stays unseen."""

# States of one shard, and sequences that are driven side by side.
_SHARD_BYTES = 1 << 30
_AT_ONCE = 256

# Tokens that a sample continues where no prompt is given.
_PROMPT = 32

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cost:
    """What a model's training, validation and test take, as far as the configuration tells.

    `training_steps` are updates of the weights, `tokens` all that the model reads, `device_steps` time steps of all
    sequences over all layers, `state_bytes` the states that are kept, None where the number of nodes is not known.
    """

    training_steps: int
    tokens: int
    device_steps: int
    state_bytes: int | None


@dataclass(frozen=True)
class Outcome:
    """A trained model's row: its evaluation, what the provenance keeps, and remarks for the user."""

    evaluation: Evaluation
    record: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class Place:
    """Where a row lies in the run folder."""

    folder: Path
    number: int
    record: str | None

    @property
    def training(self) -> Path:
        """The folder of the training."""
        return self.folder / "training" / f"{self.number:03d}"

    @property
    def weights(self) -> str:
        """The file of the weights, in the run folder."""
        return f"readout/{self.number:03d}.safetensors"

    @property
    def tokenizer(self) -> str:
        """The file of the tokenizer, in the run folder."""
        return f"readout/{self.number:03d}.tokenizer.json"


@dataclass(frozen=True)
class Watch:
    """Is told what is being done, and of tokens as they are read."""

    say: Callable[[str], None]
    add: Callable[[int], None]


# ---- before anything is opened


def input_channels(config: ExperimentConfig, task: Task) -> int:
    """Channels that the experiment drives its reservoir with."""
    if isinstance(config.readout, ModelConfig) and isinstance(task, Text):
        return config.readout.inputs(task.vocabulary)
    return task.inputs


def metrics_on(task: Task) -> list[str]:
    """Names of the metrics of a language model."""
    assert isinstance(task, Text)
    validated = [VALIDATION] if len(task.tokens_validation) else []
    return [*task.judged(0.0, 0.0).metrics, *validated, "parameters"]


def check(section: str, config: ExperimentConfig, model: ModelConfig, task: Task) -> None:
    """Raise `ConfigurationError` where this section does not fit a language model, as far as it can be known."""
    if not isinstance(task, Text):
        if section == "readout":
            raise ConfigurationError(
                f"kind {model.kind} learns from the tokens of a text, and the task {config.task.kind} has none; take "
                "task kind text, or a readout such as ridge"
            )
    elif section == "reservoir":
        model.reservoirs(config.reservoir, task.vocabulary)
    elif section == "readout":
        _check_gradient(model, config.reservoir, task)
    elif section == "training":
        _check_training(config.training, model, task, getattr(config.reservoir, "nodes", None))
    elif section == "run" and config.run.generate is not None:
        _prompt(config.run.generate, task)


def cost(point: Point, task: Task) -> Cost:
    """What a point will take; opens nothing."""
    assert isinstance(task, Text)
    config = point.config
    model, gradient = config.readout, config.training.gradient
    assert isinstance(model, ModelConfig)
    assert gradient is not None
    options = gradient.options
    training, test = _windows(task.tokens_train, options), _windows(task.tokens_test, options)
    held_out = _held_out(task, options)
    validation = 0 if held_out is None else _windows(held_out, options)
    steps = options.steps_for(training)
    seen = steps * options.windows_per_step
    nodes = getattr(config.reservoir, "nodes", None)
    kept = None
    if model.harvests:
        per_window = 1 if options.predict == "last" else options.context
        shards = _shards(gradient, training, per_window, nodes)
        visits = 1
        if shards > 1 and not gradient.keep_states:
            visits = math.ceil((options.epochs or seen / training) / options.shard_epochs)
        driven = training * visits + validation + test
        tokens = driven * options.context + seen * per_window
        kept = None if nodes is None else (training + validation) * per_window * nodes * 4
    else:
        evaluations = math.ceil(steps / (options.evaluation_steps or steps))
        driven = seen + evaluations * validation + test
        tokens = (seen + test) * options.context
        kept = 0
    written = 0
    if config.run.generate is not None:
        written = len(_prompt(config.run.generate, task)) + config.run.generate.tokens
    device_steps = (driven * options.context + written) * model.layers_of_reservoirs
    return Cost(steps, tokens, device_steps, kept)


def _check_gradient(model: ModelConfig, reservoir: ReservoirConfig, task: Text) -> None:
    """Raise `ConfigurationError` where no gradient can pass, as far as the configuration tells."""
    twins = model.twins(task.vocabulary)
    through = model.reservoirs(reservoir, task.vocabulary) if model.reservoir_gradient == "through" else []
    for what, configs in (("the twin", twins), ("the reservoir", through)):
        for config in configs:
            # What has no such key is a device, or knows when it is opened; on a GPU torch computes anyway.
            if not getattr(config, "gradients", True) and getattr(config, "device", "cpu") == "cpu":
                raise ConfigurationError(
                    f"reservoir_gradient is {model.reservoir_gradient}, but no gradient passes {what} of kind "
                    f"{config.kind}: give it gradients: true, or take another policy"
                )


def _check_shards(gradient: GradientConfig, model: ModelConfig, task: Text, nodes: int | None) -> None:
    """Raise `ConfigurationError` where the shards do not get the epochs that are asked for."""
    options = gradient.options
    if not model.harvests or options.epochs is None or len(task.tokens_train) <= options.context:
        return
    windows = _windows(task.tokens_train, options)
    count = _shards(gradient, windows, 1 if options.predict == "last" else options.context, nodes)
    if count > windows:
        raise ConfigurationError(f"gradient.shards: {windows} windows of the text cannot make {count} shards")
    if count > 1 and options.epochs % options.shard_epochs:
        raise ConfigurationError(
            f"gradient.epochs {options.epochs} must be a multiple of gradient.shard_epochs {options.shard_epochs}, the "
            f"epochs on one of the {count} shards before the next"
        )


def _check_training(training: TrainingConfig, model: ModelConfig, task: Text, nodes: int | None) -> None:
    if training.gradient is None:
        raise ConfigurationError(
            f"gradient is missing: readout {model.kind} is trained by gradients, so say how long, for instance "
            "gradient: {epochs: 5, context: 32}"
        )
    ignored = [
        name
        for name, field in TrainingConfig.model_fields.items()
        if name != "gradient" and getattr(training, name) != field.default
    ]
    if ignored:
        raise ConfigurationError(f"{', '.join(ignored)}: not for readout {model.kind}, which needs `gradient` alone")
    options = training.gradient.options
    if not model.harvests:
        for name in ("shards", "keep_states"):
            if getattr(training.gradient, name):
                raise ConfigurationError(
                    f"gradient.{name} is for states that are computed beforehand, and readout {model.kind} drives its "
                    "reservoirs in every step, as what it trains lies before them: leave it out"
                )
    _check_shards(training.gradient, model, task, nodes)
    for part, tokens in (
        ("training", task.tokens_train),
        ("validation", _held_out(task, options)),
        ("test", task.tokens_test),
    ):
        if tokens is not None and len(tokens) <= options.context:
            raise ConfigurationError(
                f"gradient.context: a window takes {options.context + 1} tokens, and the {part} part of the text has "
                f"{len(tokens)}; give more text, another share (task.{part}), or a smaller context"
            )


def _windows(tokens: np.ndarray, options: TrainingOptions) -> int:
    return (len(tokens) - options.context - 1) // (options.stride or options.context) + 1


def _held_out(task: Text, options: TrainingOptions) -> np.ndarray | None:
    """The part of the validation text that is evaluated, or None if there is none."""
    tokens = task.tokens_validation
    if not len(tokens):
        return None
    if options.evaluation_windows is None:
        return tokens
    return tokens[: (options.evaluation_windows - 1) * (options.stride or options.context) + options.context + 1]


def _shards(gradient: GradientConfig, windows: int, per_window: int, nodes: int | None) -> int:
    if gradient.shards is not None:
        return gradient.shards
    return max(1, min(windows, math.ceil(windows * per_window * (nodes or 0) * 4 / _SHARD_BYTES)))


def _prompt(sample: SampleConfig, task: Text) -> np.ndarray:
    if sample.prompt is None:
        return task.tokens_test[:_PROMPT]
    try:
        prompt = task.encode(sample.prompt)
    except InputRangeError as error:
        raise ConfigurationError(f"generate.prompt: {error}") from error
    if not len(prompt):
        raise ConfigurationError("generate.prompt is empty; null takes the beginning of the test")
    return prompt


# ---- with the devices


@contextlib.contextmanager
def opened(point: Point, task: Text, place: Place) -> Iterator[tuple[TokenModel, list[Reservoir]]]:
    """The untrained model of a point, around its open reservoirs."""
    config = point.config
    model = config.readout
    assert isinstance(model, ModelConfig)
    width = model.inputs(task.vocabulary)
    with contextlib.ExitStack() as stack:
        devices: list[Reservoir] = []
        wanted = model.reservoirs(config.reservoir, task.vocabulary)
        for number, one in enumerate(wanted):
            device = stack.enter_context(build_reservoir(one))
            if device.spec.inputs != width:
                raise ConfigurationError(
                    f"the model drives its reservoir with {width} channels, but the device takes {device.spec.inputs}: "
                    "change the width of the model, or let `input_mask:` spread its channels"
                )
            if place.record is not None:
                path = place.record if len(wanted) == 1 else f"{place.record}/{number:03d}"
                stack.enter_context(Recorder(device, path, chunk_steps=config.run.chunk_steps))
            devices.append(device)
        twins = [stack.enter_context(build_reservoir(twin)) for twin in model.twins(task.vocabulary)]
        yield model.build(task.vocabulary, devices, twins), devices


def train_model(
    model: TokenModel, devices: Sequence[Reservoir], point: Point, task: Text, place: Place, watch: Watch
) -> Outcome:
    """Train, judge and keep a model; what is in its training folder already is gone on with."""
    from reservoir_hw.readout.training.weights_file import save_weights

    config = point.config
    settings, gradient = config.readout, config.training.gradient
    assert isinstance(settings, ModelConfig)
    assert gradient is not None
    place.training.mkdir(parents=True, exist_ok=True)
    if settings.harvests:
        result, drive = _train_on_states(model, gradient, task, place, watch)
    else:
        result, drive = _train_on_tokens(model, gradient, task, place, watch)
    # Where only the readout was trained, it alone is on the accelerator.
    model.to(next(model.readout.parameters()).device)
    watch.say("testing")
    cross_entropy, accuracy = _judged(model, task.tokens_test, gradient.options, watch.add)
    evaluation = task.judged(cross_entropy, accuracy, _curves(result, gradient.options))
    if len(result.validation_losses):
        best = result.best_loss if gradient.keep == "best" else None
        evaluation.metrics[VALIDATION] = float(result.validation_losses[-1, 1] if best is None else best)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    evaluation.metrics["parameters"] = float(trained)
    (place.folder / "readout").mkdir(exist_ok=True)
    fingerprints = [device.spec.identity.fingerprint for device in devices]
    save_weights(
        model,
        place.folder / place.weights,
        readout=settings.model_dump(mode="json", serialize_as_any=True),
        vocabulary=task.vocabulary,
        tokenizer=Path(place.tokenizer).name,
        reservoirs=fingerprints,
    )
    task.tokenizer.save(place.folder / place.tokenizer)
    record = {
        "readout": {"file": place.weights, "tokenizer": place.tokenizer, "kind": settings.kind, "trained": trained},
        "training": {
            "folder": str(place.training.relative_to(place.folder)),
            "steps": result.steps,
            "stopped_early": result.stopped_early,
            "best_step": result.best_step,
            "tokens_per_s": result.tokens_per_s,
            "drive": drive,
        },
        "saturations": [layer.saturations for layer in model.reservoir_layers],
    }
    notes = _notes_on_saturation(point, record["saturations"])
    if config.run.generate is not None:
        watch.say("writing a sample")
        notes += _add_sample(model, config.run.generate, task, point, place, evaluation)
    return Outcome(evaluation, record, notes)


def device_records(devices: Sequence[Reservoir]) -> dict[str, Any]:
    """What the provenance of a row says about its devices; `reservoir` is that of the first layer."""
    first, *others = (device.provenance() for device in devices)
    return {"reservoir": first, **({"further_reservoirs": others} if others else {})}


# ---- how


def _train_on_states(
    model: TokenModel, gradient: GradientConfig, task: Text, place: Place, watch: Watch
) -> tuple[TrainingResult, str]:
    from reservoir_hw.readout.training.on_states import train_on_states
    from reservoir_hw.readout.training.shards import HarvestedShards

    options = gradient.options
    windows = _windows(task.tokens_train, options)
    (layer,) = model.reservoir_layers
    count = _shards(gradient, windows, 1 if options.predict == "last" else options.context, layer.nodes)
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
            folder=place.training / f"states-{name}" if gradient.keep_states else None,
            name=f"the {name} part of the text",
        )

    shards = harvested(task.tokens_train, "training", count)
    drive = shards.estimate()
    watch.say(f"{drive}; driving")
    begun = (place.training / "checkpoint.safetensors").exists()
    spec = layer.reservoir.spec
    if begun and not gradient.keep_states and not (spec.deterministic or spec.identity.simulated):
        log.warning(
            "the states are driven again, and have other noise than before the training was interrupted "
            "(training.gradient.keep_states keeps them)"
        )
    held_out = _held_out(task, options)
    with _counted(layer.reservoir, watch.add):
        result = train_on_states(
            model.readout,
            shards,
            None if held_out is None else harvested(held_out, "validation", 1),
            options=options,
            folder=place.training,
            progress=_told(watch),
        )
        # The test sees the noise that follows, also if all states were there already.
        shards.take_up_noise()
    return result, str(drive)


def _train_on_tokens(
    model: TokenModel, gradient: GradientConfig, task: Text, place: Place, watch: Watch
) -> tuple[TrainingResult, str]:
    from reservoir_hw.readout.training.estimate import estimate_training
    from reservoir_hw.readout.training.on_corpus import train

    options = gradient.options
    held_out = _held_out(task, options)
    drive = estimate_training(model, task.tokens_train, held_out, options=options)
    watch.say(str(drive))
    result = train(model, task.tokens_train, held_out, options=options, folder=place.training, progress=_told(watch))
    return result, str(drive)


@dataclass(frozen=True)
class _Steps:
    """Sees what a reservoir is driven with, and counts it."""

    add: Callable[[int], None]

    def was_reset(self, *, from_rest: bool) -> None:
        """Nothing to count."""
        del from_rest

    def was_driven(self, inputs: np.ndarray, states: np.ndarray, seconds: float) -> None:
        """Time steps of all sequences."""
        del states, seconds
        self.add(inputs.shape[0] * inputs.shape[1])


@contextlib.contextmanager
def _counted(reservoir: Reservoir, add: Callable[[int], None]) -> Iterator[None]:
    """Count what is driven, unless a recorder looks already: then the progress knows of the training alone."""
    if reservoir.observer is not None:
        yield
        return
    reservoir.observer = _Steps(add)
    try:
        yield
    finally:
        reservoir.observer = None


def _told(watch: Watch) -> Callable[[Progress], None]:
    seen = 0

    def told(now: Progress) -> None:
        nonlocal seen
        watch.say(str(now))
        watch.add(now.row.tokens - seen)
        seen = now.row.tokens

    return told


def _judged(
    model: TokenModel, tokens: np.ndarray, options: TrainingOptions, on_tokens: Callable[[int], None]
) -> tuple[float, float]:
    """Mean cross-entropy in nats and accuracy over the windows of these tokens, each from rest."""
    import torch

    from reservoir_hw.readout.models.evaluating import evaluating
    from reservoir_hw.readout.training.windows import Windows

    windows = Windows(
        tokens,
        options.context,
        stride=options.stride,
        vocabulary=model.vocabulary,
        predict=options.predict,
        name="the test part of the text",
    )
    device = next(model.readout.parameters()).device
    loss, hits, count = 0.0, 0, 0
    with evaluating(model):
        for first in range(0, len(windows), options.batch):
            read, following = windows.consecutive(np.arange(first, min(first + options.batch, len(windows))))
            targets = torch.from_numpy(following).to(device)
            features = model.features(torch.from_numpy(read).to(device))
            counted = targets >= 0
            part = _scored(model, features[counted], targets[counted])
            loss, hits, count = loss + part[0], hits + part[1], count + int(counted.sum())
            on_tokens(read.size)
    return loss / count, hits / count


def _scored(model: TokenModel, features: Tensor, targets: Tensor) -> tuple[float, int]:
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


def _curves(result: TrainingResult, options: TrainingOptions) -> dict[str, np.ndarray]:
    validation = result.validation_losses
    return {
        "training/step": np.array([row.step for row in result.history]),
        "training/loss": result.losses,
        "validation/step": validation[:, 0],
        "validation/loss": validation[:, 1],
        "context": np.array(options.context),
    }


def _add_sample(
    model: TokenModel, sample: SampleConfig, task: Text, point: Point, place: Place, evaluation: Evaluation
) -> list[str]:
    """Write a text and keep it; returns why there is none where the device cannot be stepped."""
    prompt = _prompt(sample, task)
    choices = sample.model_dump(include={"temperature", "top_k", "top_p", "seed"})
    try:
        written = list(model.generate(prompt, sample.tokens, **choices))
    except (StateLost, NotSupported) as error:
        return [f"{point.label} writes no sample: {error}"]
    text = f"⟦{task.tokenizer.decode(prompt)}⟧{task.tokenizer.decode(written)}"
    (place.folder / "samples").mkdir(exist_ok=True)
    replace_file(place.folder / "samples" / f"{place.number:03d}.txt", text + "\n")
    evaluation.arrays["sample"] = np.array(text)
    return []


def _notes_on_saturation(point: Point, saturations: Sequence[int]) -> list[str]:
    if not any(saturations):
        return []
    layers = ", ".join(f"{count:,}" for count in saturations)
    return [
        f"{point.label}: the input map clipped {layers} values into the range of the device (readout.input_map.scale)"
    ]
