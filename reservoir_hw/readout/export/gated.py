"""Gated ESN RZ cut at its device, step by step; with matrices in place of a device, the GRU that it is.

Around a device a step needs the one before: two graphs, one crossing, and the state x carried from step to step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.edge.manifest import Carried, Crossing, Value
from reservoir_hw.readout.export import layers
from reservoir_hw.readout.export.graph import Graph, Precision
from reservoir_hw.readout.export.parts import (
    array,
    emit_drive,
    emit_linear,
    in_torch,
    mapped_by,
    states_value,
)
from reservoir_hw.readout.export.plan import Plan
from reservoir_hw.readout.export.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.gated import GatedRecurrence, MatrixCandidate, SequenceClassifier
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

CARRIED, NEXT = "x", "next_x"
"""The state x(t - 1) that a step reads, and x(t) that it gives."""


def plan_of_gated(model: SequenceClassifier | GatedRecurrence, precision: Precision = "fp32") -> Plan:
    """Gates around a device: | gates | device | mixing and readout |, one step at a time.

    A `DrivenCandidate` drives its device with [u; r ⊙ x]; a `SettableCandidate` asks for one transition from the
    state r ⊙ x. Without a device (`MatrixCandidate`, `TrainedCandidate`) the model is one graph for sequences of any
    length, whose recurrence stays in single precision with int8 too. A `SequenceClassifier` gives the logits of each
    step, of which the last counts; around a `ReservoirLayer` it is not stepwise.

    Raises `ConfigurationError` for a candidate that is not known here.
    """
    from reservoir_hw.readout.models.gated import DrivenCandidate, GatedRecurrence, MatrixCandidate, SettableCandidate

    recurrence = model if isinstance(model, GatedRecurrence) else model.recurrence
    if not isinstance(recurrence, GatedRecurrence):
        return _plan_around_layer(model, recurrence, precision)
    candidate = recurrence.candidate
    if isinstance(candidate, MatrixCandidate):
        return _plan_of_matrices(model, recurrence, candidate, precision)
    if isinstance(candidate, DrivenCandidate | SettableCandidate):
        return _plan_around_device(
            model, recurrence, candidate.layer, isinstance(candidate, SettableCandidate), precision
        )
    raise ConfigurationError(
        f"gates around a candidate of type {type(candidate).__name__} cannot be exported: use DrivenCandidate, "
        "SettableCandidate, MatrixCandidate or TrainedCandidate"
    )


def emit_gates(graph: Graph, drive: str, x: str, recurrence: GatedRecurrence) -> list[str]:
    """r and z of W_in u + b (..., 2 nodes) and x (..., nodes)."""
    recurrent = layers.linear(graph, x, "recurrence.W", array(recurrence.W), None)
    both = graph.node("Sigmoid", graph.node("Add", drive, recurrent))
    sizes = graph.constant([recurrence.nodes] * 2, np.int64)
    return graph.node("Split", both, sizes, axis=-1, outputs=2)


def emit_gates_drive(graph: Graph, u: str, recurrence: GatedRecurrence) -> str:
    """W_in u + b of both gates."""
    return layers.linear(graph, u, "recurrence.W_in", array(recurrence.W_in), array(recurrence.bias))


def emit_mixing(graph: Graph, h: str, x: str, z: str) -> str:
    """z x + (1 - z) h."""
    return graph.node("Add", h, graph.node("Mul", z, graph.node("Sub", x, h)))


def outputs_of(model: SequenceClassifier | GatedRecurrence) -> Value:
    """Logits of each step, or the states themselves."""
    from reservoir_hw.readout.models.gated import SequenceClassifier

    width = model.classes if isinstance(model, SequenceClassifier) else model.nodes
    return Value(name="outputs", shape=(width,))


def emit_outputs(graph: Graph, states: str, model: SequenceClassifier | GatedRecurrence) -> None:
    """What `outputs_of` describes, of states (batch, time, nodes)."""
    from reservoir_hw.readout.models.gated import SequenceClassifier

    classifies = isinstance(model, SequenceClassifier)
    graph.give(outputs_of(model), emit_linear(graph, states, model.readout, "readout") if classifies else states)


def read_by(model: SequenceClassifier | GatedRecurrence, states: Tensor) -> Tensor:
    """The reference of `emit_outputs`."""
    from reservoir_hw.readout.models.gated import SequenceClassifier

    return model._read(states) if isinstance(model, SequenceClassifier) else states


def described(model: SequenceClassifier | GatedRecurrence) -> dict[str, Any]:
    """The fields of a plan that the kind of model decides."""
    from reservoir_hw.readout.models.gated import GatedRecurrence, SequenceClassifier

    classifies = isinstance(model, SequenceClassifier)
    recurrence = model.recurrence if classifies else model
    inner = type(recurrence).__name__
    if isinstance(recurrence, GatedRecurrence):
        inner = f"{inner}({type(recurrence.candidate).__name__})"
    return {
        "model": f"{type(model).__name__}({inner})" if classifies else inner,
        "input": inputs_of(recurrence.inputs),
        "output": outputs_of(model),
        "output_meaning": "logits" if classifies else "values",
        "reads_last": classifies,
    }


def inputs_of(width: int) -> Value:
    """The series that a model reads."""
    return Value(name="inputs", shape=(width,))


def carried_of(recurrence: GatedRecurrence) -> Carried:
    """The state of the gates."""
    return Carried(reads=CARRIED, gives=NEXT, shape=(recurrence.nodes,))


@contextmanager
def going_on_from(recurrence: GatedRecurrence, x: Tensor) -> Iterator[None]:
    """The sequences that go on are those in the state x (batch, nodes); afterwards they are what they were."""
    before = recurrence._state
    recurrence._state = x
    try:
        yield
    finally:
        recurrence._state = before


def _plan_around_device(
    model: SequenceClassifier | GatedRecurrence,
    recurrence: GatedRecurrence,
    layer: ReservoirLayer,
    settable: bool,
    precision: Precision,
) -> Plan:
    import torch
    from torch.nn.functional import linear

    from reservoir_hw.readout.models.gated import gates

    nodes, dtype = recurrence.nodes, recurrence.W.dtype
    weights = Weights()
    carried = Value(name=CARRIED, shape=(nodes,))
    update = Value(name="update", shape=(nodes,))
    state = Value(name="state_0", shape=(nodes,), dtype=layer.spec.dtype)
    first, last = Graph(0, weights, precision), Graph(1, weights, precision)

    u = first.read(inputs_of(recurrence.inputs))
    x = _with_time(first, first.read(carried, ("batch",)))
    r, z = emit_gates(first, emit_gates_drive(first, u, recurrence), x, recurrence)
    gated = first.node("Mul", r, x)
    if settable:
        emit_drive(first, u, layer, 0)
        first.give(state, layers.to_device(first, gated, layer.spec.dtype))
    else:
        emit_drive(first, first.node("Concat", u, gated, axis=-1), layer, 0)
    first.give(update, z)

    h = layers.from_device(last, last.read(states_value(layer, 0)), layer.spec.dtype)
    x = _with_time(last, last.read(carried, ("batch",)))
    following = emit_mixing(last, h, x, last.read(update))
    emit_outputs(last, following, model)
    last.give(
        Value(name=NEXT, shape=(nodes,)),
        last.node("Squeeze", following, last.constant([1], np.int64)),
        ("batch",),
    )

    @in_torch(model)
    def before(values: dict[str, Tensor]) -> dict[str, Tensor]:
        u, x = values["inputs"][:, 0].to(dtype), values[CARRIED].to(dtype)
        r, z = gates(linear(u, recurrence.W_in, recurrence.bias), x, recurrence.W.T)
        crossing = u if settable else torch.cat([u, r * x], 1)
        found = {**mapped_by(layer, crossing[:, None], 0), "update": z[:, None]}
        if settable:
            found["state_0"] = (r * x)[:, None].to(found["drive_0"].dtype)
        return found

    @in_torch(model)
    def after(values: dict[str, Tensor]) -> dict[str, Tensor]:
        h, x, z = values["states_0"][:, 0].to(dtype), values[CARRIED].to(dtype), values["update"][:, 0].to(dtype)
        following = torch.lerp(h, x, z)
        return {"outputs": read_by(model, following[:, None]), NEXT: following}

    return Plan(
        **described(model),
        weights=weights,
        graphs=[first, last],
        references=[before, after],
        reservoirs=[layer.spec],
        crossings=[
            Crossing(slot=0, after=1, drive="drive_0", states="states_0", state="state_0" if settable else None)
        ],
        carried=[carried_of(recurrence)],
        stepwise=True,
    )


def _plan_of_matrices(
    model: SequenceClassifier | GatedRecurrence,
    recurrence: GatedRecurrence,
    candidate: MatrixCandidate,
    precision: Precision,
) -> Plan:
    """The GRU of ONNX with linear_before_reset = 0, which is equation 6: z x(t - 1) + (1 - z) h with h of r ⊙ x."""
    nodes, dtype = recurrence.nodes, recurrence.W.dtype
    graph = Graph(0, Weights(), precision)
    u = graph.read(inputs_of(recurrence.inputs))
    x = graph.read(Value(name=CARRIED, shape=(nodes,)), ("batch",))

    def ordered(name: str, of_gates: Any, of_candidate: Any) -> str:
        # ONNX has z, r, h; the model r above z.
        rows = np.concatenate([of_gates[nodes:], of_gates[:nodes], of_candidate])
        return graph.weight(name, rows[None].astype(np.float32))

    none = np.zeros(2 * nodes, np.float32)
    bias = none if recurrence.bias is None else array(recurrence.bias)
    h_bias = np.zeros(nodes, np.float32) if candidate.bias is None else array(candidate.bias)
    biases = np.concatenate([bias[nodes:], bias[:nodes], h_bias, np.zeros(3 * nodes, np.float32)])[None]
    by_time, last = graph.node(
        "GRU",
        graph.node("Transpose", u, perm=[1, 0, 2]),
        ordered("recurrence.W_in", array(recurrence.W_in), array(candidate.W_in)),
        ordered("recurrence.W", array(recurrence.W), array(candidate.W)),
        graph.weight("recurrence.bias", biases.astype(np.float32)),
        "",
        graph.node("Unsqueeze", x, graph.constant([0], np.int64)),
        outputs=2,
        hidden_size=nodes,
        linear_before_reset=0,
    )
    states = graph.node("Transpose", graph.node("Squeeze", by_time, graph.constant([1], np.int64)), perm=[1, 0, 2])
    emit_outputs(graph, states, model)
    following = graph.node("Squeeze", last, graph.constant([0], np.int64))
    graph.give(Value(name=NEXT, shape=(nodes,)), following, ("batch",))

    @in_torch(model)
    def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        with going_on_from(recurrence, values[CARRIED].to(dtype)):
            states = recurrence.advance(values["inputs"])
        return {"outputs": read_by(model, states), NEXT: states[:, -1]}

    return Plan.whole(graph, reference, [carried_of(recurrence)], **described(model))


def _plan_around_layer(model: Any, layer: ReservoirLayer, precision: Precision) -> Plan:
    """A classifier of the states of a device without gates: | input map | device | readout |."""
    weights = Weights()
    first, last = Graph(0, weights, precision), Graph(1, weights, precision)
    emit_drive(first, first.read(inputs_of(layer.inputs)), layer, 0)
    emit_outputs(last, layers.from_device(last, last.read(states_value(layer, 0)), layer.spec.dtype), model)

    @in_torch(model)
    def drive(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return mapped_by(layer, values["inputs"], 0)

    @in_torch(model)
    def read(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"outputs": model._read(values["states_0"])}

    return Plan(
        **described(model),
        weights=weights,
        graphs=[first, last],
        references=[drive, read],
        reservoirs=[layer.spec],
        crossings=[Crossing(slot=0, after=1, drive="drive_0", states="states_0")],
    )


def _with_time(graph: Graph, x: str) -> str:
    """A carried value (batch, ...) as a row (batch, 1, ...)."""
    return graph.node("Unsqueeze", x, graph.constant([1], np.int64))
