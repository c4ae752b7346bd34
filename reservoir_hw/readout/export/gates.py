"""Gated ESN RZ beside its device, step by step; with a simulated network inside; with matrices, the GRU that it is.

Around a device a step needs the one before: two graphs, one crossing, and the state x carried from step to step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reservoir_hw.readout.edge.manifest import Carried, Crossing, Value
from reservoir_hw.readout.export.crossing import emit_drive, emit_map, in_torch, mapped_by, read_states
from reservoir_hw.readout.export.graph import Precision, Weights
from reservoir_hw.readout.export.layers import LayerGraph, array
from reservoir_hw.readout.export.plan import Plan, Reference
from reservoir_hw.readout.export.simulated_network import (
    SimulatedNetwork,
    carried_state,
    emit_projection,
    emit_step,
    simulated,
)
from reservoir_hw.readout.models.gated import GatedRecurrence, MatrixCandidate, gates
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, Series

CARRIED, NEXT = "x", "next_x"
"""The state x(t - 1) that a step reads, and x(t) that it gives."""


def described(series: Series, inputs: int) -> dict[str, Any]:
    """The fields of a plan that every model for series shares."""
    return {
        "model": series.name,
        "input": _inputs_of(inputs),
        "output": Value(name="outputs", shape=(series.width,)),
        "output_meaning": series.meaning,
        "reads_last": series.reads_last,
    }


def around_device(
    model: nn.Module,
    recurrence: GatedRecurrence,
    layer: ReservoirLayer,
    series: Series,
    settable: bool,
    precision: Precision,
) -> Plan:
    """Two graphs: a driven device gets [u; r ⊙ x], a settable one is asked for one transition from r ⊙ x."""
    nodes, dtype = recurrence.nodes, recurrence.W.dtype
    weights = Weights()
    carried = Value(name=CARRIED, shape=(nodes,))
    update = Value(name="update", shape=(nodes,))
    state = Value(name="state_0", shape=(nodes,), dtype=layer.spec.dtype)
    first, last = LayerGraph(0, weights, precision), LayerGraph(1, weights, precision)

    u = first.read(_inputs_of(recurrence.inputs))
    x = _with_time(first, first.read(carried, ("batch",)))
    r, z = _emit_gates(first, _emit_gates_drive(first, u, recurrence), x, recurrence)
    gated = first.node("Mul", r, x)
    if settable:
        emit_drive(first, u, layer, 0)
        first.give(state, first.to_device(gated, layer.spec.dtype))
    else:
        emit_drive(first, first.node("Concat", u, gated, axis=-1), layer, 0)
    first.give(update, z)

    h = read_states(last, layer, 0)
    x = _with_time(last, last.read(carried, ("batch",)))
    following = _emit_mixing(last, h, x, last.read(update))
    _give_outputs(last, following, series)
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
        return {"outputs": series.compute(following[:, None]), NEXT: following}

    return Plan(
        **described(series, recurrence.inputs),
        graphs=[first, last],
        references=[before, after],
        reservoirs=[layer.spec],
        crossings=[
            Crossing(slot=0, after=1, drive="drive_0", states="states_0", state="state_0" if settable else None)
        ],
        carried=[_carried_of(recurrence)],
        stepwise=True,
    )


def around_network(
    model: nn.Module,
    recurrence: GatedRecurrence,
    layer: ReservoirLayer,
    network: SimulatedNetwork,
    series: Series,
    settable: bool,
    precision: Precision,
) -> Plan:
    """Gates and network in one loop. A driven network has a state of its own beside x."""
    nodes, dtype = recurrence.nodes, recurrence.W.dtype
    carried = [_carried_of(recurrence), *([] if settable else [carried_state(network, 0)])]
    values = [Value(name=one.reads, shape=one.shape, dtype=one.dtype) for one in carried]
    graph = LayerGraph(0, Weights(), precision)
    u = graph.read(_inputs_of(recurrence.inputs))
    initial = [graph.read(value, ("batch",)) for value in values]
    # The gates' drive and the inputs are known of all steps.
    rows = graph.node("Concat", _emit_gates_drive(graph, u, recurrence), u, axis=-1)
    sizes = [2 * nodes, recurrence.inputs]

    def step(states: list[str], row: str) -> tuple[list[str], str]:
        x = states[0]
        drive, inputs = graph.node("Split", row, graph.constant(sizes, np.int64), axis=-1, outputs=2)
        r, z = _emit_gates(graph, drive, x, recurrence)
        gated = graph.node("Mul", r, x)
        if settable:
            before = graph.to_device(gated, network.dtype)
        else:
            before, inputs = states[1], graph.node("Concat", inputs, gated, axis=-1)
        one = graph.constant([1], np.int64)
        mapped = graph.node("Squeeze", emit_map(graph, graph.node("Unsqueeze", inputs, one), layer)[0], one)
        projected = emit_projection(graph, mapped, network, "reservoir_0")
        measured = emit_step(graph, projected, before, network, "reservoir_0")
        following = _emit_mixing(graph, graph.from_device(measured, network.dtype), x, z)
        return [following, *([] if settable else [measured])], following

    last, states = graph.scan(step, values, initial, rows, sum(sizes), "float32")
    _give_outputs(graph, states, series)
    for one, tensor in zip(carried, last, strict=True):
        graph.give(Value(name=one.gives, shape=one.shape, dtype=one.dtype), tensor, ("batch",))

    @in_torch(model)
    def driven_reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        u, x = values["inputs"].to(dtype), values[CARRIED].to(dtype)
        state = values["state_0"].numpy()
        rows = []
        for step in range(u.shape[1]):
            drive = linear(u[:, step], recurrence.W_in, recurrence.bias)
            r, z = gates(drive, x, recurrence.W.T)
            crossing = torch.cat([u[:, step], r * x], 1)[:, None]
            h, state = simulated(layer.reservoir, mapped_by(layer, crossing, 0)["drive_0"].numpy(), state)
            x = torch.lerp(torch.from_numpy(h[:, 0]).to(dtype), x, z)
            rows.append(x)
        return {"outputs": series.compute(torch.stack(rows, 1)), NEXT: x, "next_state_0": torch.from_numpy(state)}

    reference = _advancing(model, recurrence, series) if settable else driven_reference
    return Plan(graphs=[graph], references=[reference], carried=carried, **described(series, recurrence.inputs))


def around_matrices(
    model: nn.Module,
    recurrence: GatedRecurrence,
    candidate: MatrixCandidate,
    series: Series,
    precision: Precision,
) -> Plan:
    """The GRU of ONNX with linear_before_reset = 0, which is equation 6: z x(t - 1) + (1 - z) h with h of r ⊙ x."""
    nodes = recurrence.nodes
    graph = LayerGraph(0, Weights(), precision)
    u = graph.read(_inputs_of(recurrence.inputs))
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
    _give_outputs(graph, states, series)
    following = graph.node("Squeeze", last, graph.constant([0], np.int64))
    graph.give(Value(name=NEXT, shape=(nodes,)), following, ("batch",))

    reference = _advancing(model, recurrence, series)
    return Plan(
        graphs=[graph],
        references=[reference],
        carried=[_carried_of(recurrence)],
        **described(series, recurrence.inputs),
    )


def _advancing(model: nn.Module, recurrence: GatedRecurrence, series: Series) -> Reference:
    """The recurrence itself, from the carried state on."""

    @in_torch(model)
    def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        with recurrence.going_on_from(values[CARRIED].to(recurrence.W.dtype)):
            states = recurrence.advance(values["inputs"])
        return {"outputs": series.compute(states), NEXT: states[:, -1]}

    return reference


def _emit_gates(graph: LayerGraph, drive: str, x: str, recurrence: GatedRecurrence) -> list[str]:
    """r and z of W_in u + b (..., 2 nodes) and x (..., nodes)."""
    recurrent = graph.linear(x, "recurrence.W", recurrence.W, None)
    both = graph.node("Sigmoid", graph.node("Add", drive, recurrent))
    sizes = graph.constant([recurrence.nodes] * 2, np.int64)
    return graph.node("Split", both, sizes, axis=-1, outputs=2)


def _emit_gates_drive(graph: LayerGraph, u: str, recurrence: GatedRecurrence) -> str:
    """W_in u + b of both gates."""
    return graph.linear(u, "recurrence.W_in", recurrence.W_in, recurrence.bias)


def _emit_mixing(graph: LayerGraph, h: str, x: str, z: str) -> str:
    """z x + (1 - z) h."""
    return graph.node("Add", h, graph.node("Mul", z, graph.node("Sub", x, h)))


def _inputs_of(width: int) -> Value:
    return Value(name="inputs", shape=(width,))


def _carried_of(recurrence: GatedRecurrence) -> Carried:
    return Carried(reads=CARRIED, gives=NEXT, shape=(recurrence.nodes,))


def _give_outputs(graph: LayerGraph, states: str, series: Series) -> None:
    graph.give(Value(name="outputs", shape=(series.width,)), series.emit(graph, states))


def _with_time(graph: LayerGraph, x: str) -> str:
    """A carried value (batch, ...) as a row (batch, 1, ...)."""
    return graph.node("Unsqueeze", x, graph.constant([1], np.int64))
