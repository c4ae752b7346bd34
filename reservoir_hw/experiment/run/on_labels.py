"""Classifiers of sequences: trained by gradients on the sequences of a task and their classes, judged, and kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.by_gradients import VALIDATION, CountedPieces, saved
from reservoir_hw.experiment.run.folder import write_array
from reservoir_hw.experiment.run.text_plan import check_gradient_alone, gradient_of, refuse_options_of_texts
from reservoir_hw.experiment.run.text_training import told
from reservoir_hw.experiment.run.trainer import Cost, PointRun, Trainer
from reservoir_hw.experiment.states.record import recorded
from reservoir_hw.readout.models.classifier_configuration import ClassifierConfig
from reservoir_hw.tasks.task import Split, Task

if TYPE_CHECKING:
    from reservoir_hw.readout.models.gated import SequenceClassifier


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
        run.say("opening")
        opened = opened_classifier(run.point, run.task, run.files.record)
        with opened as (model, devices), run.on(devices), CountedPieces(run.files.training, devices) as counted:
            _train_and_keep(model, counted, run)


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


def _train_and_keep(model: SequenceClassifier, counted: CountedPieces, run: PointRun) -> None:
    from reservoir_hw.readout.training.on_examples import train

    task, files, gradient = run.task, run.files, gradient_of(run.point.config)
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
    record, details = saved(model, result, evaluation, run, {"outputs": files.outputs}, None)
    run.warn(counted.warnings())
    run.keep(evaluation, {**counted.records(), **record}, details=details)


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
            logits = model(inputs, torch.from_numpy(ends + 1).to(device))
            answers = logits.float().cpu().numpy()
            if split.at_end:
                found[first + np.arange(len(ends)), ends] = answers
            else:
                found[rows] = np.where(split.valid[rows][:, :, None], answers[:, None], 0)
    return found


def _mean_length(split: Split) -> float:
    return float(np.mean(split.ends + 1))
