"""Language models: their reservoirs are opened, they are trained by gradients on a text, judged, and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, NotSupported, StateLost
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.counted_pieces import CountedPieces
from reservoir_hw.experiment.run.text_plan import check_training, cost, gradient_of, harvests, held_out_of, prompt_of
from reservoir_hw.experiment.run.text_training import (
    course,
    curves,
    evaluated,
    outputs_of,
    sample_of,
    train_on_harvested_states,
    train_on_tokens,
)
from reservoir_hw.experiment.run.trainer import Cost, PointRun, Trainer
from reservoir_hw.experiment.states.record import Recorder
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.tasks.task import Evaluation, Task, Tokens

if TYPE_CHECKING:
    from reservoir_hw.readout.models.token_model import TokenModel

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
            model.reservoirs(config.reservoir, tokens.vocabulary)
        elif section == "readout":
            model.check_gradient(config.reservoir, tokens.vocabulary)
            model.lessons(task)
        elif section == "training":
            check_training(config, model, tokens)
        elif section == "run" and config.run.generate is not None:
            prompt_of(config.run.generate, tokens)

    def check_harvest(self, config: ExperimentConfig) -> None:
        """Always: the training drives the reservoir."""
        raise ConfigurationError(
            f"readout {config.readout.kind} drives its reservoir itself while it is trained: run the experiment "
            "(training.gradient.keep_states keeps the states of a linear, low_rank or attention readout in the run "
            "folder)"
        )

    def metrics(self, config: ExperimentConfig, task: Task) -> list[str]:
        """Those of the text, of its validation part, and the number of trained weights."""
        tokens = model_of(config).tokens_of(task)
        validated = [VALIDATION] if len(tokens.tokens_validation) else []
        judged = task.evaluate(task.test.targets) if tokens.judged_by_outputs else tokens.evaluation_of(0.0, 0.0)
        return [*judged.metrics, *validated, "parameters"]

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
    width = model.inputs(task.vocabulary)
    with contextlib.ExitStack() as stack:
        devices: list[Reservoir] = []
        wanted = model.reservoirs(point.config.reservoir, task.vocabulary)
        for number, one in enumerate(wanted):
            device = stack.enter_context(build_reservoir(one))
            if device.spec.inputs != width:
                raise ConfigurationError(
                    f"the model drives its reservoir with {width} channels, but the device takes {device.spec.inputs}: "
                    "change the width of the model, or let `input_mask:` spread its channels"
                )
            if record is not None:
                path = record if len(wanted) == 1 else f"{record}/{number:03d}"
                stack.enter_context(Recorder(device, path, chunk_steps=point.config.run.chunk_steps))
            devices.append(device)
        twins = [stack.enter_context(build_reservoir(twin)) for twin in model.twins(task.vocabulary)]
        context = gradient_of(point.config).options.context
        yield model.build(task.vocabulary, devices, twins, context=context), devices


def _trained(
    model: TokenModel, counted: CountedPieces, task: Tokens, run: PointRun
) -> tuple[Evaluation, dict[str, Any], list[str], dict[str, Any]]:
    """Train, judge and save a model.

    Its evaluation, its record for the provenance, remarks for the user, and details of its row.
    """
    from reservoir_hw.readout.training.folder import save_weights

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
        cross_entropy, accuracy = evaluated(model, task.tokens_test, gradient.options, run)
        evaluation = task.evaluation_of(cross_entropy, accuracy)
    evaluation.arrays.update(curves(result, gradient.options))
    if len(result.validation_losses):
        best = result.best_loss if gradient.keep == "best" else None
        loss = float(result.validation_losses[-1, 1] if best is None else best)
        held_out = held_out_of(task, gradient.options)
        if held_out is not None and not model.loss_in_nats:
            loss, _ = evaluated(model, held_out, gradient.options, run)
        evaluation.metrics[VALIDATION] = loss
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    evaluation.metrics["parameters"] = float(trained)
    if run.processes.is_first:
        save_weights(
            model,
            files.path_of(files.weights),
            readout=settings.model_dump(mode="json", serialize_as_any=True),
            vocabulary=task.vocabulary,
            tokenizer=Path(files.tokenizer).name,
            reservoirs=[device.spec.identity.fingerprint for device in counted.devices],
        )
        task.tokenizer.save(files.path_of(files.tokenizer))
    record: dict[str, Any] = {
        "readout": {"file": files.weights, "tokenizer": files.tokenizer, "kind": settings.kind, "trained": trained},
        "training": {
            "folder": str(files.training.relative_to(files.folder)),
            "steps": result.steps,
            "stopped_early": result.stopped_early,
            "best_step": result.best_step,
            "tokens_per_s": result.tokens_per_s,
            "drive": drive,
        },
        "saturations": [layer.saturations for layer in model.reservoir_layers],
    }
    details: dict[str, Any] = {"training": course(result, driving_seconds)}
    notes = []
    if any(record["saturations"]):
        layers = ", ".join(f"{count:,}" for count in record["saturations"])
        notes.append(
            f"{run.label}: the input map clipped {layers} values into the range of the device (readout.input_map.scale)"
        )
    if config.run.generate is not None and run.processes.is_first:
        run.say("writing a sample")
        try:
            sample = sample_of(model, config.run.generate, task)
        except (StateLost, NotSupported) as error:
            notes.append(f"{run.label} writes no sample: {error}")
        else:
            replace_file(files.path_of(files.sample), sample.text + "\n")
            evaluation.arrays["sample"] = np.array(sample.text)
            evaluation.metrics.update(sample.overlap)
            details["sample"] = sample.took
    return evaluation, {**counted.records(), **record}, notes, details
