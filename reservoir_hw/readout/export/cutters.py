"""What a model hands its parts to when it is exported (`Stage`): segments beside devices, or one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from reservoir_hw.readout.edge.manifest import Carried, Crossing, Precision, Value
from reservoir_hw.readout.export.graph import EDGE, Graph, Plan, Reference, Values, Weights, array
from reservoir_hw.readout.export.simulated_network import (
    carried_state,
    check_size,
    dense_network,
    emit_loop,
    emit_network,
    emit_projection,
    emit_step,
    network_of,
    simulated,
)
from reservoir_hw.readout.export.torch_module import emit_readout, on_cpu
from reservoir_hw.readout.models.esn_language_model import EsnLM
from reservoir_hw.readout.models.gated import GatedRecurrence, MatrixCandidate, gates
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, Series, Stage
from reservoir_hw.readout.models.token_model import evaluating

CARRIED, NEXT = "x", "next_x"
"""Of gates: the state x(t - 1) that a step reads, and x(t) that it gives."""

TOKENS = Value(name="tokens", dtype="int64")

Compute = Callable[[dict[str, Tensor]], dict[str, Tensor]]


class _Cutter(ABC):
    """What both cutters do: a model without a device is the same graph in both."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.model = model
        self.precision: Precision = precision

    def chain(
        self,
        name: str,
        layers: list[ReservoirLayer],
        stages: Sequence[Stage],
        *,
        carried: int = 0,
        vocabulary: int | None = None,
        series: Series | None = None,
    ) -> Plan:
        """L reservoirs, one after the other, between L + 1 stages; x of `carried` channels passes by them.

        Either the `vocabulary` of a language model is given, or the `series` that the model makes.
        """
        if series is not None:
            return self._chain(_described(series, layers[0].inputs), layers, stages, carried)
        assert vocabulary is not None
        return self._chain(_described_text(name, vocabulary), layers, stages, carried)

    @abstractmethod
    def _chain(
        self, about: dict[str, Any], layers: list[ReservoirLayer], stages: Sequence[Stage], carried: int
    ) -> Plan:
        """As `chain`; `about` are the fields of the plan that describe the model."""

    def emit_readout(self, graph: Graph, readout: nn.Module, states: str, features: int) -> str:
        """Logits of states (batch, time, features) by any module that treats positions independently."""
        return emit_readout(graph, states, readout, features=features)

    def recurrence(self, model: EsnLM) -> Plan:
        """Tokens to logits by the recurrence that the model itself has; W_in is its embedding."""
        check_size("the recurrent matrix", 4 * model.nodes**2)
        check_size("W_in", 4 * model.nodes * model.vocabulary)
        recurrence, none = model.dense_recurrence(), np.empty((model.nodes, 0))
        network = dense_network(recurrence, none, 0.0, array(model.leak), model.activation, "float32")
        graph = Graph(0, Weights(), self.precision)
        driven = graph.emit(model.embedding, graph.read(TOKENS), "embedding")
        states = emit_loop(graph, driven, network, "recurrence", 0)
        about = _described_text(f"EsnLM({type(model.readout).__name__})", model.vocabulary)
        graph.give(about["output"], self.emit_readout(graph, model.readout, states, model.nodes))

        def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            features = model.features_from(values["state_0"], values["tokens"])
            return {"outputs": model.readout(features), "next_state_0": features[:, -1]}

        carried = [carried_state(network, 0)]
        return Plan(graphs=[graph], references=[self.in_torch(reference)], carried=carried, **about)

    def gates_around_matrices(self, recurrence: GatedRecurrence, candidate: MatrixCandidate, series: Series) -> Plan:
        """Gates without a device: one graph for sequences of any length.

        It is the GRU of ONNX with linear_before_reset = 0, equation 6: z x(t - 1) + (1 - z) h with h of r ⊙ x.
        """
        nodes, about, carried = recurrence.nodes, _described(series, recurrence.inputs), _carried_of(recurrence)
        graph = Graph(0, Weights(), self.precision)
        u = graph.read(about["input"])
        x = graph.read(carried.read, ("batch",))

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
        graph.give(about["output"], series.emit(graph, states))
        graph.give(carried.given, graph.node("Squeeze", last, graph.constant([0], np.int64)), ("batch",))

        return Plan(graphs=[graph], references=[self.advancing(recurrence, series)], carried=[carried], **about)

    def advancing(self, recurrence: GatedRecurrence, series: Series) -> Reference:
        """The recurrence itself, from the carried state on."""

        def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            states = recurrence.states_from(values[CARRIED].to(recurrence.W.dtype), values["inputs"])
            return {"outputs": series.compute(states), NEXT: states[:, -1]}

        return self.in_torch(reference)

    def in_torch(self, compute: Compute) -> Reference:
        """What torch computes, as arrays: in evaluation mode, on the CPU, in the precision of the model."""
        model = self.model

        def reference(values: Values) -> Values:
            weights = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point())
            dtype = next((tensor.dtype for tensor in weights), torch.get_default_dtype())
            with evaluating(model), on_cpu(model):
                tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}
                given = {name: one.to(dtype) if one.is_floating_point() else one for name, one in tensors.items()}
                return {name: value.numpy() for name, value in compute(given).items()}

        return reference


class Segments(_Cutter):
    """Cuts a model at its reservoirs, which devices are at the edge: a graph for each part between two of them."""

    def _chain(
        self, about: dict[str, Any], layers: list[ReservoirLayer], stages: Sequence[Stage], carried: int
    ) -> Plan:
        weights = Weights()
        # Layers may share a device.
        devices = {id(layer.reservoir): layer.spec for layer in layers}
        slots = [list(devices).index(id(layer.reservoir)) for layer in layers]
        graphs: list[Graph] = []
        for number, stage in enumerate(stages):
            graph = Graph(number, weights, self.precision)
            graphs.append(graph)
            x = graph.read(about["input"]) if not number else graph.read(_carry(carried, number)) if carried else None
            states = read_states(graph, layers[number - 1], number - 1) if number else None
            y, passing = stage.emit(graph, x, states)
            if number == len(layers):
                graph.give(about["output"], y)
                break
            emit_drive(graph, y, layers[number], number)
            if passing is not None:
                graph.give(_carry(carried, number + 1), passing)
        return Plan(
            **about,
            graphs=graphs,
            references=[self._reference(layers, stages, number, about["input"].name) for number in range(len(stages))],
            reservoirs=list(devices.values()),
            crossings=[
                Crossing(slot=slot, after=number + 1, drive=f"drive_{number}", states=f"states_{number}")
                for number, slot in enumerate(slots)
            ],
        )

    def _reference(self, layers: list[ReservoirLayer], stages: Sequence[Stage], number: int, read: str) -> Reference:
        def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            x = values.get(f"carry_{number - 1}" if number else read)
            y, passing = stages[number].compute(x, values.get(f"states_{number - 1}"))
            if number == len(layers):
                return {"outputs": y}
            found = mapped_by(layers[number], y, number)
            return found if passing is None else {**found, f"carry_{number}": passing}

        return self.in_torch(reference)

    def gates_around_device(
        self, recurrence: GatedRecurrence, layer: ReservoirLayer, series: Series, *, settable: bool
    ) -> Plan:
        """| gates | device | mixing and readout |, one step at a time: the state x is carried from step to step.

        A driven device gets [u; r ⊙ x], a settable one is asked for one transition from r ⊙ x.
        """
        nodes, dtype, about = recurrence.nodes, recurrence.W.dtype, _described(series, recurrence.inputs)
        weights = Weights()
        carried = _carried_of(recurrence)
        update = Value(name="update", shape=(nodes,))
        state = Value(name="state_0", shape=(nodes,), dtype=layer.spec.dtype)
        first, last = Graph(0, weights, self.precision), Graph(1, weights, self.precision)

        u = first.read(about["input"])
        x = _with_time(first, first.read(carried.read, ("batch",)))
        driven = first.linear(u, "recurrence.W_in", recurrence.W_in, recurrence.bias)
        r, z = _emit_gates(first, driven, x, recurrence)
        gated = first.node("Mul", r, x)
        if settable:
            emit_drive(first, u, layer, 0)
            first.give(state, first.to_device(gated, layer.spec.dtype))
        else:
            emit_drive(first, first.node("Concat", u, gated, axis=-1), layer, 0)
        first.give(update, z)

        h = read_states(last, layer, 0)
        x = _with_time(last, last.read(carried.read, ("batch",)))
        following = _emit_mixing(last, h, x, last.read(update))
        last.give(about["output"], series.emit(last, following))
        without_time = last.node("Squeeze", following, last.constant([1], np.int64))
        last.give(carried.given, without_time, ("batch",))

        def before(values: dict[str, Tensor]) -> dict[str, Tensor]:
            u, x = values["inputs"][:, 0].to(dtype), values[CARRIED].to(dtype)
            r, z = gates(linear(u, recurrence.W_in, recurrence.bias), x, recurrence.W.T)
            crossing = u if settable else torch.cat([u, r * x], 1)
            found = {**mapped_by(layer, crossing[:, None], 0), "update": z[:, None]}
            if settable:
                found["state_0"] = (r * x)[:, None].to(found["drive_0"].dtype)
            return found

        def after(values: dict[str, Tensor]) -> dict[str, Tensor]:
            h, x, z = values["states_0"][:, 0].to(dtype), values[CARRIED].to(dtype), values["update"][:, 0].to(dtype)
            following = torch.lerp(h, x, z)
            return {"outputs": series.compute(following[:, None]), NEXT: following}

        return Plan(
            **about,
            graphs=[first, last],
            references=[self.in_torch(before), self.in_torch(after)],
            reservoirs=[layer.spec],
            crossings=[
                Crossing(slot=0, after=1, drive="drive_0", states="states_0", state="state_0" if settable else None)
            ],
            carried=[carried],
            stepwise=True,
        )


class Whole(_Cutter):
    """Keeps a model whole: simulated networks stand in the graph where its reservoirs are."""

    def _chain(
        self, about: dict[str, Any], layers: list[ReservoirLayer], stages: Sequence[Stage], carried: int
    ) -> Plan:
        networks = [network_of(layer.reservoir, number) for number, layer in enumerate(layers)]
        graph = Graph(0, Weights(), self.precision)
        y, passing = stages[0].emit(graph, graph.read(about["input"]), None)
        for number, (layer, network) in enumerate(zip(layers, networks, strict=True)):
            # Layers may share a network: its weights are kept once.
            first = next(index for index, known in enumerate(layers) if known.reservoir is layer.reservoir)
            mapped = graph.input_map(y, layer)[0]
            states = emit_network(graph, mapped, network, f"reservoir_{first}", number)
            y, passing = stages[number + 1].emit(graph, passing, graph.from_device(states, network.dtype))
        graph.give(about["output"], y)

        def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            y, passing = stages[0].compute(values[about["input"].name], None)
            found: dict[str, Tensor] = {}
            for number, layer in enumerate(layers):
                mapped = mapped_by(layer, y, 0)["drive_0"].numpy()
                states, last = simulated(layer.reservoir, mapped, values[f"state_{number}"].numpy())
                found[f"next_state_{number}"] = torch.from_numpy(last)
                answered = torch.from_numpy(states).to(torch.get_default_dtype())
                y, passing = stages[number + 1].compute(passing, answered)
            return {"outputs": y, **found}

        states = [carried_state(network, number) for number, network in enumerate(networks)]
        return Plan(graphs=[graph], references=[self.in_torch(reference)], carried=states, **about)

    def gates_around_device(
        self, recurrence: GatedRecurrence, layer: ReservoirLayer, series: Series, *, settable: bool
    ) -> Plan:
        """Gates and network in one loop. A driven network has a state of its own beside x."""
        network = network_of(layer.reservoir, 0)
        nodes, dtype, about = recurrence.nodes, recurrence.W.dtype, _described(series, recurrence.inputs)
        carried = [_carried_of(recurrence), *([] if settable else [carried_state(network, 0)])]
        values = [one.read for one in carried]
        graph = Graph(0, Weights(), self.precision)
        u = graph.read(about["input"])
        initial = [graph.read(value, ("batch",)) for value in values]
        # The gates' drive and the inputs are known of all steps.
        driven = graph.linear(u, "recurrence.W_in", recurrence.W_in, recurrence.bias)
        rows = graph.node("Concat", driven, u, axis=-1)
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
            mapped = graph.node("Squeeze", graph.input_map(graph.node("Unsqueeze", inputs, one), layer)[0], one)
            projected = emit_projection(graph, mapped, network, "reservoir_0")
            measured = emit_step(graph, projected, before, network, "reservoir_0")
            following = _emit_mixing(graph, graph.from_device(measured, network.dtype), x, z)
            return [following, *([] if settable else [measured])], following

        last, states = graph.scan(step, values, initial, rows, sum(sizes), "float32")
        graph.give(about["output"], series.emit(graph, states))
        for one, tensor in zip(carried, last, strict=True):
            graph.give(one.given, tensor, ("batch",))

        def driven_reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            u, x = values["inputs"].to(dtype), values[CARRIED].to(dtype)
            state = values["state_0"].numpy()
            rows = []
            for step in range(u.shape[1]):
                r, z = gates(linear(u[:, step], recurrence.W_in, recurrence.bias), x, recurrence.W.T)
                crossing = torch.cat([u[:, step], r * x], 1)[:, None]
                h, state = simulated(layer.reservoir, mapped_by(layer, crossing, 0)["drive_0"].numpy(), state)
                x = torch.lerp(torch.from_numpy(h[:, 0]).to(dtype), x, z)
                rows.append(x)
            return {"outputs": series.compute(torch.stack(rows, 1)), NEXT: x, "next_state_0": torch.from_numpy(state)}

        reference = self.advancing(recurrence, series) if settable else self.in_torch(driven_reference)
        return Plan(graphs=[graph], references=[reference], carried=carried, **about)


def _described_text(name: str, vocabulary: int) -> dict[str, Any]:
    """The fields of a plan that every language model shares."""
    return {
        "model": name,
        "input": TOKENS,
        "output": Value(name="outputs", shape=(vocabulary,)),
        "output_meaning": "logits",
        "vocabulary": vocabulary,
    }


def _carry(width: int, number: int) -> Value:
    """What passes by reservoir `number` - 1."""
    return Value(name=f"carry_{number - 1}", shape=(width,))


def _described(series: Series, inputs: int) -> dict[str, Any]:
    """The fields of a plan that every model for series shares."""
    return {
        "model": series.name,
        "input": Value(name="inputs", shape=(inputs,)),
        "output": Value(name="outputs", shape=(series.width,)),
        "output_meaning": series.meaning,
        "reads_last": series.reads_last,
    }


def _emit_gates(graph: Graph, drive: str, x: str, recurrence: GatedRecurrence) -> list[str]:
    """r and z of W_in u + b (..., 2 nodes) and x (..., nodes)."""
    recurrent = graph.linear(x, "recurrence.W", recurrence.W, None)
    both = graph.node("Sigmoid", graph.node("Add", drive, recurrent))
    sizes = graph.constant([recurrence.nodes] * 2, np.int64)
    return graph.node("Split", both, sizes, axis=-1, outputs=2)


def _emit_mixing(graph: Graph, h: str, x: str, z: str) -> str:
    """z x + (1 - z) h."""
    return graph.node("Add", h, graph.node("Mul", z, graph.node("Sub", x, h)))


def _carried_of(recurrence: GatedRecurrence) -> Carried:
    return Carried(reads=CARRIED, gives=NEXT, shape=(recurrence.nodes,))


def _with_time(graph: Graph, x: str) -> str:
    """A carried value (batch, ...) as a row (batch, 1, ...)."""
    return graph.node("Unsqueeze", x, graph.constant([1], np.int64))


# ---- Where a model crosses a reservoir: what drives the device, and what it answers.


_NEAR = 1e-5
"""Of the largest value of a drive: so near to a limit, rounding decides what is clipped."""


def emit_drive(graph: Graph, x: str, layer: ReservoirLayer, number: int) -> None:
    """Give what crossing `number` drives the device with, and how many values the map clipped."""
    mapped, clipped = graph.input_map(x, layer)
    graph.give(Value(name=f"drive_{number}", shape=(layer.inputs,), dtype=layer.spec.dtype), mapped)
    if clipped is not None:
        graph.give(Value(name=f"clipped_{number}", dtype="int64", scalar=True), clipped)


def read_states(graph: Graph, layer: ReservoirLayer, number: int) -> str:
    """What the device of crossing `number` answered, as float32."""
    states = Value(name=f"states_{number}", shape=(layer.nodes,), dtype=layer.spec.dtype)
    return graph.from_device(graph.read(states), layer.spec.dtype)


def mapped_by(layer: ReservoirLayer, x: Tensor, number: int) -> dict[str, Tensor]:
    """The reference of `emit_drive`; and how many values lie so near to a limit that rounding decides."""
    before = layer.saturations
    mapped = layer.map_inputs(x)
    found = {f"drive_{number}": mapped}
    if layer.limit is not None:
        found[f"clipped_{number}"] = torch.tensor(layer.saturations - before)
        from_middle = (x.to(mapped.dtype) * layer.scale).abs()
        near = _NEAR * max(1.0, abs(layer.offset) + layer.limit)
        found[f"clipped_{number}{EDGE}"] = ((from_middle - layer.limit).abs() <= near).sum()
    layer.saturations = before
    return found
