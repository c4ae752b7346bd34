"""Models that are trained by gradients: language models on a text, classifiers on sequences; judged, and kept."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, NotSupported, StateLost
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.core.spec import Counters
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.result import write_array
from reservoir_hw.experiment.run.text_training import (
    check_gradient_alone,
    check_training,
    cost,
    course,
    curves,
    evaluated,
    gradient_of,
    harvests,
    held_out_of,
    outputs_of,
    prompt_of,
    refuse_options_of_texts,
    sample_of,
    told,
    train_on_harvested_states,
    train_on_tokens,
)
from reservoir_hw.experiment.run.trainer import Cost, PointRun, Trainer, device_records
from reservoir_hw.experiment.states.drive import recorded
from reservoir_hw.experiment.states.watch import about_counters, counted
from reservoir_hw.readout.models.classifier_configuration import ClassifierConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.tasks.task import Evaluation, Split, Task, Tokens

if TYPE_CHECKING:
    from reservoir_hw.readout.models.gated import SequenceClassifier
    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.loop import TrainingResult


VALIDATION = "validation_cross_entropy"
"""The metric by which settings are chosen, so that the test stays unseen."""


class ByGradients(Trainer):
    """Trains a model on windows of a text; what is in its training folder already is gone on with."""

    shares = True

    def check(self, section: str, config: ExperimentConfig, task: Task) -> None:
        """A text, reservoirs and gradients that fit the model, and a prompt that can be encoded."""
        model = model_of(config)
        if task.tokens is None:
            if section == "readout":
                raise ConfigurationError(
                    f"kind {model.kind} learns from the tokens of a text, and the task {config.task.kind} has none; "
                    "take task kind text, or a readout such as ridge"
                )
            return
        tokens = task.tokens
        if section == "reservoir":
            model.reservoirs(config.reservoir, model.channels(task))
        elif section == "readout":
            model.check_gradient(config.reservoir, model.channels(task))
            model.lessons(task)
        elif section == "training":
            check_training(config, model, tokens)
        elif section == "run" and config.run.generate is not None:
            prompt_of(config.run.generate, tokens)

    def metrics(self, config: ExperimentConfig, task: Task) -> list[str]:
        """Those of the text, of its validation part, and the number of trained weights."""
        tokens = model_of(config).tokens_of(task)
        judged = task.evaluate(task.test.targets) if tokens.judged_by_outputs else tokens.evaluation_of(0.0, 0.0)
        return [*judged.metrics, *([VALIDATION] if len(tokens.tokens_validation) else []), "parameters"]

    def cost(self, point: Point, task: Task, *, harvest: bool = False) -> Cost:
        """From the windows of the text."""
        model = model_of(point.config)
        return cost(point.config, model, model.tokens_of(task), model.lessons(task).values())

    def run(self, run: PointRun) -> None:
        """Open all reservoirs of the model, train, and keep weights, tokenizer and sample."""
        run.say("opening")
        tokens = model_of(run.point.config).tokens_of(run.task)
        with opened_model(run.point, tokens, run.files.record) as (model, devices):
            counted = CountedPieces(run.files.training, devices, writes=run.processes.is_first)
            with run.on(devices), counted:
                evaluation, record, notes, details = _trained(model, counted, tokens, run)
                run.warn(counted.warnings())
            run.keep(evaluation, record, notes, details)


def model_of(config: ExperimentConfig) -> TokenModelConfig:
    """The readout of an experiment that is trained by gradients."""
    return cast(TokenModelConfig, config.readout)


@contextlib.contextmanager
def opened_model(point: Point, task: Tokens, record: str | None = None) -> Iterator[tuple[TokenModel, list[Reservoir]]]:
    """The untrained model of a point around its open reservoirs; `record` is a path for what they are driven with."""
    model = model_of(point.config)
    channels = model.driven_with(task.vocabulary)
    with contextlib.ExitStack() as stack:
        devices: list[Reservoir] = []
        wanted = model.reservoirs(point.config.reservoir, channels)
        for number, one in enumerate(wanted):
            device = stack.enter_context(build_reservoir(one))
            if device.spec.inputs != channels.count:
                raise ConfigurationError(
                    f"the model drives its reservoir with {channels.count} channels, but the device takes "
                    f"{device.spec.inputs}: change the width of the model, or let `input_mask:` spread its channels"
                )
            path = record if record is None or len(wanted) == 1 else f"{record}/{number:03d}"
            stack.enter_context(recorded(device, path, point.config.run.chunk_steps))
            devices.append(device)
        twins = [stack.enter_context(build_reservoir(twin)) for twin in model.twins(channels)]
        yield model.build(task.vocabulary, devices, twins, context=gradient_of(point.config).options.context), devices


def _trained(
    model: TokenModel, counted: CountedPieces, task: Tokens, run: PointRun
) -> tuple[Evaluation, dict[str, Any], list[str], dict[str, Any]]:
    """Train, judge and save a model.

    Its evaluation, its record for the provenance, remarks for the user, and details of its row.
    """
    config, files = run.point.config, run.files
    settings, gradient = model_of(config), gradient_of(config)
    files.training.mkdir(parents=True, exist_ok=True)
    train = train_on_harvested_states if harvests(settings, task) else train_on_tokens
    result, drive, driving_seconds = train(model, gradient, task, run, counted.note)
    # Where only the readout was trained, it alone is on the accelerator.
    model.to(next(model.readout.parameters()).device)
    run.say("testing")
    if task.judged_by_outputs:
        evaluation = run.task.evaluate(outputs_of(model, run.task), model.output_scale)
    else:
        evaluation = task.evaluation_of(*evaluated(model, task.tokens_test, gradient.options, run))
    evaluation.arrays.update(curves(result, gradient.options))
    held_out = held_out_of(task, gradient.options)
    if held_out is not None and model.output_scale != "probabilities":
        evaluation.metrics[VALIDATION], _ = evaluated(model, held_out, gradient.options, run)
    facts = {
        "vocabulary": task.vocabulary,
        "tokenizer": Path(files.tokenizer).name,
        "reservoirs": [device.spec.identity.fingerprint for device in counted.devices],
    }
    record = saved(model, result, evaluation, run, {"tokenizer": files.tokenizer}, **facts)
    details: dict[str, Any] = {"training": course(result, driving_seconds)}
    record["training"]["drive"] = drive
    record["saturations"] = [layer.saturations for layer in model.reservoir_layers]
    if run.processes.is_first:
        task.tokenizer.save(files.path_of(files.tokenizer))
    notes = []
    if any(record["saturations"]):
        layers = ", ".join(f"{count:,}" for count in record["saturations"])
        notes.append(
            f"{run.label}: the input map clipped {layers} values into the range of the device (readout.input_map.scale)"
        )
    if config.run.generate is not None and run.processes.is_first:
        run.say("writing a sample")
        try:
            text, overlap, details["sample"] = sample_of(model, config.run.generate, task)
        except (StateLost, NotSupported) as error:
            notes.append(f"{run.label} writes no sample: {error}")
        else:
            replace_file(files.path_of(files.sample), text + "\n")
            evaluation.arrays["sample"] = np.array(text)
            evaluation.metrics.update(overlap)
    return evaluation, {**counted.records(), **record}, notes, details


def saved(
    model: Any, result: TrainingResult, evaluation: Evaluation, run: PointRun, beside: Mapping[str, str], **facts: Any
) -> dict[str, Any]:
    """Save a trained model with these `facts`: its record for the provenance.

    The evaluation gets its validation loss, where it has none yet, and its number of weights. `beside` are files that
    are kept beside the weights.
    """
    from reservoir_hw.readout.training.folder import save_weights
    from reservoir_hw.readout.training.processes import IN_FLOAT32

    files, readout = run.files, run.point.config.readout
    if len(result.validation_losses):
        best = result.best_loss if gradient_of(run.point.config).keep == "best" else None
        evaluation.metrics.setdefault(VALIDATION, float(result.validation_losses[-1, 1] if best is None else best))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    evaluation.metrics["parameters"] = float(trained)
    if run.processes.is_first:
        settings = readout.model_dump(mode="json", serialize_as_any=True)
        save_weights(model, files.path_of(files.weights), readout=settings, **facts)
    if result.precision != gradient_of(run.point.config).options.precision:
        run.warn([IN_FLOAT32])
    names = ("steps", "stopped_early", "best_step", "tokens_per_s", "precision")
    training = {"folder": str(files.training.relative_to(files.folder))}
    return {
        "readout": {"file": files.weights, **beside, "kind": readout.kind, "trained": trained},
        "training": training | {name: getattr(result, name) for name in names},
    }


class CountedPieces(contextlib.AbstractContextManager["CountedPieces"]):
    """Keeps the counters of `devices` in the folder of a training, a piece for each process that drove them.

    After `kill -9` what was driven since the last `note` is not counted; `noted` of the piece says when that was.
    """

    def __init__(self, folder: Path, devices: Sequence[Reservoir], *, writes: bool = True) -> None:
        self._path, self.devices, self._writes = folder / "devices.json", devices, writes
        earlier = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else []
        self._earlier: list[dict[str, Any]] = earlier
        self._started = _now()

    def __exit__(self, *error: object) -> None:
        self.note()

    def note(self) -> None:
        """Write down what was counted up to now."""
        if self._writes and self.devices:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._pieces(), indent=1))

    def warnings(self) -> list[str]:
        """A sentence for each kind of event that was counted, in all pieces."""
        totals = zip(self._totals(), self.devices, strict=True)
        return [about for total, device in totals for about in about_counters(total, device.spec)]

    def records(self) -> dict[str, Any]:
        """As `device_records`, with the counters of all pieces, which are told apart where there are several."""
        found = device_records(self.devices)
        pieces = self._pieces()
        records = [found["reservoir"], *found.get("further_reservoirs", [])] if found else []
        for number, (record, total) in enumerate(zip(records, self._totals(), strict=True)):
            record["counters"] = total.as_dict()
            if self._earlier:
                record["pieces"] = [{**piece, "counters": piece["counters"][number]} for piece in pieces]
        return found

    def _pieces(self) -> list[dict[str, Any]]:
        now = [device.counters.as_dict() for device in self.devices]
        return [*self._earlier, {"started": self._started, "noted": _now(), "counters": now}]

    def _totals(self) -> list[Counters]:
        pieces = self._pieces()
        return [
            counted({"counters": piece["counters"][number]} for piece in pieces) for number in range(len(self.devices))
        ]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


# ---- Classifiers of sequences: trained by gradients on the sequences of a task and their classes, judged, and kept.


class OnLabels(Trainer):
    """Trains a classifier on whole sequences; what is in its training folder already is gone on with."""

    shares = False

    def check(self, section: str, config: ExperimentConfig, task: Task) -> None:
        """One class for each sequence, a reservoir and gradients that fit, and settings that mean something."""
        model = _model_of(config)
        if section == "reservoir":
            model.reservoirs(config.reservoir, task.channels)
        elif section == "readout":
            model.check_task(task)
            model.check_gradient(config.reservoir, task.channels)
        elif section == "training":
            check_gradient_alone(config, "gradient: {epochs: 10, batch: 32}")
            refuse_options_of_texts(config, "whole sequences", "context")

    def metrics(self, config: ExperimentConfig, task: Task) -> list[str]:
        """Those of the task, of what is held out, and the number of trained weights."""
        validated = [] if task.held_out is None else [VALIDATION]
        return [*task.evaluate(task.test.targets).metrics, *validated, "parameters"]

    def cost(self, point: Point, task: Task, *, harvest: bool = False) -> Cost:
        """From the lengths of the sequences."""
        options = gradient_of(point.config).options
        steps = options.steps_for(len(task.train.inputs))
        seen = round(steps * options.windows_per_step * _mean_length(task.train))
        tested = round(len(task.test.inputs) * _mean_length(task.test))
        driven = 0
        if point.config.readout.layers_of_reservoirs:
            evaluations = -(-steps // (options.evaluation_steps or steps))
            held = task.held_out
            held_out = 0 if held is None else round(len(held.inputs) * _mean_length(held))
            driven = seen + tested + evaluations * held_out
        return Cost(driven, seen, 0, training_steps=steps)

    def run(self, run: PointRun) -> None:
        """Open the reservoir, train, judge, and keep weights and outputs."""
        from reservoir_hw.readout.training.train_model import train

        task, files, gradient = run.task, run.files, gradient_of(run.point.config)
        run.say("opening")
        opened = opened_classifier(run.point, task, files.record)
        with opened as (model, devices), run.on(devices), CountedPieces(files.training, devices) as counted:
            files.training.mkdir(parents=True, exist_ok=True)
            run.say("training")
            result = train(
                model,
                _Sequences(task.train),
                None if task.held_out is None else _Sequences(task.held_out),
                options=gradient.options,
                folder=files.training,
                progress=told(run, counted.note),
            )
            run.say("testing")
            outputs = _outputs(model, task.test, gradient.batch)
            write_array(files.path_of(files.outputs), outputs)
            evaluation = task.evaluate(outputs)
            record = saved(model, result, evaluation, run, {"outputs": files.outputs})
            run.warn(counted.warnings())
            run.keep(evaluation, {**counted.records(), **record}, details={"training": course(result, None)})


def _model_of(config: ExperimentConfig) -> ClassifierConfig:
    return cast(ClassifierConfig, config.readout)


@contextlib.contextmanager
def opened_classifier(
    point: Point, task: Task, record: str | None = None
) -> Iterator[tuple[SequenceClassifier, list[Reservoir]]]:
    """The untrained model of a point around its open reservoir, and the reservoir without its twin."""
    model, config = _model_of(point.config), point.config
    with contextlib.ExitStack() as stack:
        wanted = [*model.reservoirs(config.reservoir, task.channels), *model.twins(task.channels)]
        opened = [stack.enter_context(build_reservoir(one)) for one in wanted]
        for device in opened[:1]:
            stack.enter_context(recorded(device, record, config.run.chunk_steps))
        yield model.build(task.inputs, task.outputs, opened), opened[:1]


class _Sequences:
    """The sequences of a split without their padding, each with the number of its class, as `train` takes them."""

    def __init__(self, split: Split) -> None:
        self._split, self._ends = split, split.ends
        self._labels = split.targets[np.arange(len(self._ends)), self._ends].argmax(axis=1)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self._split.inputs[index, : self._ends[index] + 1], int(self._labels[index])


def _outputs(model: SequenceClassifier, split: Split, batch: int) -> np.ndarray:
    """Outputs (sequences, time, classes): the answers for sequences, at their ends, or at all steps that are judged."""
    import torch

    from reservoir_hw.readout.models.token_model import evaluating

    found = np.zeros(split.targets.shape, np.float32)
    device = model.readout.weight.device
    with evaluating(model):
        for first in range(0, len(found), batch):
            rows = slice(first, first + batch)
            ends = split.ends[rows]
            inputs = torch.from_numpy(split.inputs[rows, : ends.max() + 1]).to(device)
            answers = model(inputs, torch.from_numpy(ends + 1).to(device)).float().cpu().numpy()
            if split.at_end:
                found[first + np.arange(len(ends)), ends] = answers
            else:
                found[rows] = np.where(split.valid[rows][:, :, None], answers[:, None], 0)
    return found


def _mean_length(split: Split) -> float:
    return float(np.mean(split.ends + 1))
