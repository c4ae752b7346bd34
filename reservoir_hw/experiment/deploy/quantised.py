"""What 8-bit weights cost: the task's metrics before and after."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.documents import joined
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.states.closed_loop import forecast
from reservoir_hw.experiment.states.drive import OnSteps, driven, predict_into
from reservoir_hw.experiment.states.plan import goes_on, plan
from reservoir_hw.readout.configuration import Readout
from reservoir_hw.tasks.task import Evaluation, Task, Tokens

if TYPE_CHECKING:
    from reservoir_hw.readout.edge.manifest import Crossing
    from reservoir_hw.readout.export.plan import Plan, Values
    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.options import TrainingOptions

Metrics = dict[str, dict[str, float]]
"""Name of a metric -> "before" and "after"."""

Compute = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]

Answers = Callable[["Crossing", "Values"], np.ndarray]

TOKENS = 20_000
"""Of the test, on which language models are judged at most."""

# Logits that are held at once.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class QuantisedReadout:
    """A linear readout as it is exported: what `drive` and `forecast` need of one."""

    input_connection: bool
    outputs: Callable[[np.ndarray, np.ndarray | None], np.ndarray]

    def predict(self, states: Any, inputs: Any = None) -> np.ndarray:
        """Outputs (batch, time, outputs) of states (batch, time, nodes)."""
        return self.outputs(np.asarray(states), None if inputs is None else np.asarray(inputs))


def series_metrics(
    point: Point, task: Task, reservoir: Reservoir, readout: Readout, quantised: QuantisedReadout, on_steps: OnSteps
) -> Metrics:
    """Drive an open device with the test once more and let both readouts read the same states.

    In a closed loop, where the answers are the next inputs, each readout has a forecast of its own.
    """
    both: list[Any] = [readout, quantised]
    if task.closed_loop:
        horizon = task.test.targets.shape[1]
        outputs = [forecast(reservoir, one, task.test.inputs, horizon, on_steps) for one in both]
    else:
        config = point.config
        bursts = plan(
            task,
            config.training,
            chunk_steps=config.run.chunk_steps,
            max_batch=reservoir.spec.max_batch,
            splits=("train", "test") if goes_on(task, config.training) else ("test",),
        )
        outputs = [np.zeros(task.test.targets.shape, np.float32) for _ in both]
        for chunk, states in driven(reservoir, bursts, on_steps, repetitions=config.training.repetitions):
            if chunk.split == "test":
                for one, target in zip(both, outputs, strict=True):
                    predict_into(one, chunk, states, target)
    return _pairs(*(task.evaluate(found, "scores") for found in outputs))


def text_metrics(
    model: TokenModel,
    reference: Plan,
    quantised: Sequence[Compute],
    task: Tokens,
    options: TrainingOptions,
    on_steps: OnSteps,
) -> Metrics:
    """Judge a language model and its quantised segments on the first `TOKENS` tokens of the test.

    A deterministic device is driven by each, so that it meets what the rounding makes of its drive. One that answers
    with noise is driven by the model alone, and the quantised segments get the states that it gave: else the
    difference would be that of two noises.
    """
    from reservoir_hw.readout.export.recording import record_text
    from reservoir_hw.readout.training.windows import Windows

    tokens = joined(task.tokens_test)[: max(TOKENS, options.context + 1)]
    windows = Windows(
        tokens, options.context, stride=options.stride, vocabulary=model.vocabulary, predict=options.predict,
        name="the test part of the text",
    )  # fmt: skip
    devices = _devices(model)
    own = all(device.spec.deterministic for device in devices)
    size = max(1, min(options.batch, _AT_ONCE // (options.context * model.vocabulary)))
    sums = np.zeros((2, 2))
    count = 0
    for first in range(0, len(windows), size):
        read, following = windows.consecutive(np.arange(first, min(first + size, len(windows))))
        recorded = record_text(model, np.asarray(read))
        on_steps(read.size)

        given = {"tokens": recorded["tokens"]}
        answers = _recorded(recorded)
        before = _logits(reference, reference.references, given, answers)
        after = _logits(reference, quantised, given, _measured(devices) if own else answers)
        counted = following >= 0
        count += int(counted.sum())
        sums += [_scored(logits[counted], following[counted]) for logits in (before, after)]
    return _pairs(*(task.evaluation_of(float(loss), float(hits)) for loss, hits in sums / count))


def session_computes(plan: Plan) -> list[Compute]:
    """The plan's graphs as functions of their values."""
    from reservoir_hw.readout.export.exporter import built

    _, sessions = built(plan, {})

    def compute(session: Any, names: list[str]) -> Compute:
        return lambda given: dict(zip(names, session.run(names, given), strict=True))

    return [
        compute(session, [value.name for value in graph.gives])
        for graph, session in zip(plan.graphs, sessions, strict=True)
    ]


def _recorded(states: Values) -> Answers:
    return lambda crossing, _: states[crossing.states]


def _measured(devices: Sequence[Reservoir]) -> Answers:
    def answer(crossing: Crossing, values: Values) -> np.ndarray:
        device, drive = devices[crossing.slot], values[crossing.drive]
        device.reset(len(drive))
        return np.asarray(device.run(drive))

    return answer


def _logits(plan: Plan, computes: Sequence[Compute], given: Values, states: Answers) -> np.ndarray:
    """Through all segments and crossings: (batch, time, vocabulary)."""
    values = dict(given)
    for number, (graph, compute) in enumerate(zip(plan.graphs, computes, strict=True)):
        for crossing in plan.crossings:
            if crossing.after == number:
                values[crossing.states] = states(crossing, values)
        values |= compute({value.name: values[value.name] for value in graph.reads})
    return values[plan.output.name]


def _scored(logits: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Summed cross-entropy in nats, and how often the largest logit is that of the target."""
    level = logits - logits.max(axis=1, keepdims=True)
    loss = np.log(np.exp(level, dtype=np.float64).sum(axis=1)) - level[np.arange(len(wanted)), wanted]
    return float(loss.sum()), float((logits.argmax(axis=1) == wanted).sum())


def _devices(model: TokenModel) -> list[Reservoir]:
    """Each once, as the slots of a plan number them."""
    return list({id(layer.reservoir): layer.reservoir for layer in model.reservoir_layers}.values())


def _pairs(before: Evaluation, after: Evaluation) -> Metrics:
    return {
        name: {"before": float(value), "after": float(after.metrics[name])}
        for name, value in before.metrics.items()
        if name in after.metrics and math.isfinite(value) and math.isfinite(after.metrics[name])
    }
