"""What 8-bit weights cost: the task's metrics before and after."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.tokenizer import joined
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.deploy.trained import Stored
from reservoir_hw.experiment.run.learning import predict_into
from reservoir_hw.experiment.states.drive import OnSteps, driven, forecast
from reservoir_hw.experiment.states.plan import SplitName, goes_on, plan
from reservoir_hw.readout.configuration import Readout
from reservoir_hw.readout.edge.manifest import Loss
from reservoir_hw.readout.edge.verification import INT8_LIMIT, spread_of
from reservoir_hw.tasks.task import Evaluation, Task, Tokens

if TYPE_CHECKING:
    from reservoir_hw.readout.export.graph import Plan, Values
    from reservoir_hw.readout.models.token_model import TokenModel
    from reservoir_hw.readout.training.options import TrainingOptions


Metrics = dict[str, dict[str, float]]
"""Name of a metric -> "before" and "after"."""

Compute = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]

_RANDOM_STEPS = 500
_NEAR = 0.4
"""Of the spread: a forecast that is nearer to the truth is right."""
_FAR = 1e9
"""In the place of a forecast that has diverged."""

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


def series_loss(
    point: Point,
    task: Task,
    reservoir: Reservoir,
    readout: Readout,
    quantised: QuantisedReadout,
    stored: Stored,
    on_steps: OnSteps,
) -> tuple[Metrics, Loss]:
    """Drive an open device with the test once more and let both readouts read the same states.

    In a closed loop, where the answers are the next inputs, each readout has a forecast of its own. They are compared
    as long as the exact one is near to the truth: later, two of a chaotic series differ in any case.
    """
    both: list[Any] = [readout, quantised]
    if task.closed_loop:
        outputs = [forecast(reservoir, one, task.test.inputs, task.test.targets.shape[1], on_steps) for one in both]
    else:
        training, most, batch = point.config.training, point.config.run.chunk_steps, reservoir.spec.max_batch
        splits: Sequence[SplitName] = ("train", "test") if goes_on(task, training) else ("test",)
        bursts = plan(task, training, chunk_steps=most, max_batch=batch, splits=splits)
        outputs = [np.zeros(task.test.targets.shape, np.float32) for _ in both]
        for chunk, states in driven(reservoir, bursts, on_steps, repetitions=training.repetitions):
            if chunk.split == "test":
                for one, target in zip(both, outputs, strict=True):
                    predict_into(one, chunk, states, target)
    metrics = _pairs(*(task.evaluate(found, "scores") for found in outputs))
    spread = spread_of(task.test.targets) if stored.spread is None else stored.spread
    if task.closed_loop:
        near = np.logical_and.accumulate((np.abs(outputs[0] - task.test.targets) < _NEAR * spread).all(-1), axis=1)
        near[:, 0] = True
        before, after = (np.nan_to_num(one[near], posinf=_FAR, neginf=-_FAR, nan=_FAR) for one in outputs)
    else:
        valid = stored.behind(task.test.valid)
        before, after = (stored.behind(one)[valid] for one in outputs)
    right = metrics.get("accuracy")
    lost = None if right is None else right["before"] - right["after"]
    return metrics, Loss(judged_on="test", error=rms_of(after, before, spread), accuracy=lost)


def rms_of(after: np.ndarray, before: np.ndarray, spread: np.ndarray) -> float:
    """Root mean square of what changes in the output (..., outputs) that loses most, in its spreads."""
    apart = (np.asarray(after, np.float64) - before).reshape(-1, len(spread)) / spread
    return float(np.sqrt(np.square(apart).mean(axis=0)).max())


def random_loss(exact: Plan, quantised: Plan, spread: np.ndarray) -> Loss:
    """What int8 changes on random states as large as those of the training, where there is no device."""
    from reservoir_hw.readout.export.exporter import random_inputs

    given = random_inputs(quantised, (1, _RANDOM_STEPS), generator(0, "int8"))
    (reference,), (compute,), (graph,) = exact.references, session_computes(quantised), quantised.graphs
    read = {value.name: given[value.name] for value in graph.reads}
    error = rms_of(compute(read)["outputs"], reference(given)["outputs"], spread)
    return Loss(judged_on="stored outputs", error=error)


def check_loss(loss: Loss, metrics: Metrics, spread: np.ndarray | None, *, accept: bool) -> Loss:
    """Raise `ConfigurationError` where int8 costs more than is harmless, and nobody said that it may (`accept`)."""
    found = []
    if loss.error is not None and loss.error > INT8_LIMIT:
        moves = "" if spread is None or len(spread) > 1 else f" (a standard deviation of {spread[0]:.3g})"
        found.append(
            f"changes an output by a root mean square of {loss.error:.3g} of what it moves by{moves}; at most "
            f"{INT8_LIMIT:g} is taken for harmless"
        )
    entropy = metrics.get("cross_entropy", {}).get("before", 0.0)
    if loss.cross_entropy is not None and loss.cross_entropy > max(0.01 * entropy, 0.001):
        found.append(f"raises the cross-entropy by {loss.cross_entropy:.3g} nats; at most 1 % or 0.001 is harmless")
    right = metrics.get("accuracy", {}).get("before", 0.0)
    if loss.cross_entropy is None and loss.accuracy is not None and loss.accuracy > 0.01 * right:
        found.append(f"lowers the accuracy by {loss.accuracy:.3g}; at most 1 % of it is harmless")
    if not found:
        return loss
    told = "".join(f"; {name} {pair['before']:.4g} becomes {pair['after']:.4g}" for name, pair in metrics.items())
    if not accept:
        raise ConfigurationError(
            f"int8 {' and '.join(found)}{told}. Large weights that cancel are lost in so few bits: train again with a "
            "larger alpha, or on rounded states (as_coded), or export with --precision fp32; --accept-loss "
            "(accept_loss) writes it all the same. Nothing was written"
        )
    return loss.model_copy(update={"accepted": True})


def text_loss(
    model: TokenModel, quantised: Sequence[Compute], task: Tokens, options: TrainingOptions, on_steps: OnSteps
) -> tuple[Metrics, Loss]:
    """Judge a language model and its quantised segments on the first `TOKENS` tokens of the test.

    A deterministic device is driven by each, so that it meets what the rounding makes of its drive. One that answers
    with noise is driven by the model alone, and the quantised segments get the states that it gave: else the
    difference would be that of two noises.
    """
    from reservoir_hw.readout.export.recording import record_text
    from reservoir_hw.readout.export.segments import plan_of
    from reservoir_hw.readout.training.examples import Windows

    reference = plan_of(model)
    tokens = joined(task.tokens_test)[: max(TOKENS, options.context + 1)]
    windows = Windows(
        tokens, options.context, stride=options.stride, vocabulary=model.vocabulary, predict=options.predict,
        name="the test part of the text",
    )  # fmt: skip
    # Each once, as the slots of a plan number them.
    devices = list(dict.fromkeys(layer.reservoir for layer in model.reservoir_layers))
    own = all(device.spec.deterministic for device in devices)
    size = max(1, min(options.batch, _AT_ONCE // (options.context * model.vocabulary)))
    sums = np.zeros((2, 2))
    count = 0
    for first in range(0, len(windows), size):
        read, following = windows.read(np.arange(first, min(first + size, len(windows))))
        recorded = record_text(model, np.asarray(read))
        on_steps(read.size)

        before = _logits(reference, reference.references, recorded)
        after = _logits(reference, quantised, recorded, devices if own else None)
        counted = following >= 0
        count += int(counted.sum())
        sums += [_scored(logits[counted], following[counted]) for logits in (before, after)]
    grown = float(sums[1, 0] - sums[0, 0]) / count
    metrics = _pairs(*(task.evaluation_of(float(loss), float(hits)) for loss, hits in sums / count))
    metrics["cross_entropy"] = {"before": float(sums[0, 0] / count), "after": float(sums[1, 0] / count)}
    return metrics, Loss(judged_on="test", cross_entropy=grown)


def session_computes(plan: Plan) -> list[Compute]:
    """The plan's graphs as functions of their values, step by step, as `infer` drives a pipe.

    In int8 all inputs of a call share one scale, so an answer depends on what else is in the call.
    """
    from reservoir_hw.readout.export.exporter import built

    _, sessions = built(plan, {})

    def compute(session: Any, names: list[str]) -> Compute:
        def by_steps(given: Values) -> Values:
            batch, steps = next(iter(given.values())).shape[:2]
            if plan.whole_sequences:
                return dict(zip(names, session.run(names, given), strict=True))
            found = [
                session.run(names, {name: value[row : row + 1, at : at + 1] for name, value in given.items()})
                for row, at in np.ndindex(batch, steps)
            ]
            # A count is of one number, and all else (1, 1, ...).
            whole = [
                np.concatenate(parts).reshape(batch, steps, *parts[0].shape[2:]) if parts[0].ndim else np.sum(parts)
                for parts in zip(*found, strict=True)
            ]
            return dict(zip(names, whole, strict=True))

        return by_steps

    return [
        compute(session, [value.name for value in graph.gives])
        for graph, session in zip(plan.graphs, sessions, strict=True)
    ]


def _logits(
    plan: Plan, computes: Sequence[Compute], recorded: Values, devices: Sequence[Reservoir] | None = None
) -> np.ndarray:
    """Through all segments and crossings, where devices answer, or their recorded states: (batch, time, vocabulary)."""
    values = {"tokens": recorded["tokens"]}
    for number, (graph, compute) in enumerate(zip(plan.graphs, computes, strict=True)):
        for crossing in plan.crossings:
            if crossing.after == number:
                states = recorded[crossing.states]
                if devices is not None:
                    devices[crossing.slot].reset(len(states))
                    states = np.asarray(devices[crossing.slot].run(values[crossing.drive]))
                values[crossing.states] = states
        values |= compute({value.name: values[value.name] for value in graph.reads})
    return values[plan.output.name]


def _scored(logits: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Summed cross-entropy in nats, and how often the largest logit is that of the target."""
    level = logits - logits.max(axis=1, keepdims=True)
    loss = np.log(np.exp(level, dtype=np.float64).sum(axis=1)) - level[np.arange(len(wanted)), wanted]
    return float(loss.sum()), float((logits.argmax(axis=1) == wanted).sum())


def _pairs(before: Evaluation, after: Evaluation) -> Metrics:
    return {
        name: {"before": float(value), "after": float(after.metrics[name])}
        for name, value in before.metrics.items()
        if name in after.metrics and math.isfinite(value) and math.isfinite(after.metrics[name])
    }
