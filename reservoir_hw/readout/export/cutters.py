"""What a model hands its parts to when it is exported (`Stage`): segments beside devices, or one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.readout.edge.manifest import Crossing, Value
from reservoir_hw.readout.export import gates
from reservoir_hw.readout.export.crossing import emit_drive, emit_map, in_torch, mapped_by, read_states, shared_slots
from reservoir_hw.readout.export.graph import Precision, Weights
from reservoir_hw.readout.export.layers import LayerGraph, array
from reservoir_hw.readout.export.plan import Plan, Reference
from reservoir_hw.readout.export.simulated_network import (
    SimulatedNetwork,
    carried_state,
    check_networks,
    check_size,
    emit_loop,
    emit_network,
    simulated,
    state_value,
)
from reservoir_hw.readout.export.torch_module import emit_readout
from reservoir_hw.readout.models.esn_language_model import EsnLM
from reservoir_hw.readout.models.gated import GatedRecurrence, MatrixCandidate
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, Series, Stage

TOKENS = Value(name="tokens", dtype="int64")


class _Cutter(ABC):
    """What both cutters do: a model without a device is the same graph in both."""

    def __init__(
        self, model: nn.Module, precision: Precision = "fp32", networks: Sequence[SimulatedNetwork] = ()
    ) -> None:
        self.model = model
        self.precision: Precision = precision
        self.networks = networks

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
            return self._chain(gates.described(series, layers[0].inputs), layers, stages, carried)
        assert vocabulary is not None
        return self._chain(_described_text(name, vocabulary), layers, stages, carried)

    @abstractmethod
    def _chain(
        self, about: dict[str, Any], layers: list[ReservoirLayer], stages: Sequence[Stage], carried: int
    ) -> Plan:
        """As `chain`; `about` are the fields of the plan that describe the model."""

    def emit_readout(self, graph: LayerGraph, readout: nn.Module, states: str, features: int) -> str:
        """Logits of states (batch, time, features) by any module that treats positions independently."""
        return emit_readout(graph, states, readout, features=features)

    def recurrence(self, model: EsnLM) -> Plan:
        """Tokens to logits by the recurrence that the model itself has; W_in is its embedding."""
        check_networks(self.networks, [])
        check_size("the recurrent matrix", 4 * model.nodes**2)
        check_size("W_in", 4 * model.nodes * model.vocabulary)
        leak, activation = array(model.leak), model.activation
        network = SimulatedNetwork(
            model.dense_recurrence(), np.empty((model.nodes, 0)), leak=leak, activation=activation
        )
        state = state_value(network, 0)
        graph = LayerGraph(0, Weights(), self.precision)
        driven = graph.emit(model.embedding, graph.read(TOKENS), "embedding")
        last, states = emit_loop(graph, driven, state, network, "recurrence")
        about = _described_text(f"EsnLM({type(model.readout).__name__})", model.vocabulary)
        graph.give(about["output"], self.emit_readout(graph, model.readout, states, model.nodes))
        graph.give(state.model_copy(update={"name": f"next_{state.name}"}), last, ("batch",))

        @in_torch(model)
        def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            features = model.features_from(values["state_0"], values["tokens"])
            return {"outputs": model.readout(features), "next_state_0": features[:, -1]}

        return Plan(graphs=[graph], references=[reference], carried=[carried_state(network, 0)], **about)

    def gates_around_matrices(self, recurrence: GatedRecurrence, candidate: MatrixCandidate, series: Series) -> Plan:
        """Gates without a device: one graph for sequences of any length."""
        check_networks(self.networks, [])
        return gates.around_matrices(self.model, recurrence, candidate, series, self.precision)


class Segments(_Cutter):
    """Cuts a model at its reservoirs, which devices are at the edge: a graph for each part between two of them."""

    def _chain(
        self, about: dict[str, Any], layers: list[ReservoirLayer], stages: Sequence[Stage], carried: int
    ) -> Plan:
        weights = Weights()
        slots, reservoirs = shared_slots(layers)
        graphs: list[LayerGraph] = []
        for number, stage in enumerate(stages):
            graph = LayerGraph(number, weights, self.precision)
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
            graphs=list(graphs),
            references=[self._reference(layers, stages, number, about["input"].name) for number in range(len(stages))],
            reservoirs=reservoirs,
            crossings=[
                Crossing(slot=slot, after=number + 1, drive=f"drive_{number}", states=f"states_{number}")
                for number, slot in enumerate(slots)
            ],
        )

    def _reference(self, layers: list[ReservoirLayer], stages: Sequence[Stage], number: int, read: str) -> Reference:
        @in_torch(self.model)
        def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            x = values.get(f"carry_{number - 1}" if number else read)
            y, passing = stages[number].compute(x, values.get(f"states_{number - 1}"))
            if number == len(layers):
                return {"outputs": y}
            found = mapped_by(layers[number], y, number)
            return found if passing is None else {**found, f"carry_{number}": passing}

        return reference

    def gates_around_device(
        self, recurrence: GatedRecurrence, layer: ReservoirLayer, series: Series, *, settable: bool
    ) -> Plan:
        """| gates | device | mixing and readout |, one step at a time."""
        return gates.around_device(self.model, recurrence, layer, series, settable, self.precision)


class Whole(_Cutter):
    """Keeps a model whole: simulated `networks` stand in the graph where its reservoirs are."""

    def _chain(
        self, about: dict[str, Any], layers: list[ReservoirLayer], stages: Sequence[Stage], carried: int
    ) -> Plan:
        del carried
        check_networks(self.networks, [layer.spec for layer in layers])
        graph = LayerGraph(0, Weights(), self.precision)
        y, passing = stages[0].emit(graph, graph.read(about["input"]), None)
        for number, (layer, network) in enumerate(zip(layers, self.networks, strict=True)):
            # Layers may share a network: its weights are kept once.
            first = next(index for index, known in enumerate(self.networks) if known is network)
            mapped = emit_map(graph, y, layer)[0]
            states = emit_network(graph, mapped, network, f"reservoir_{first}", number)
            y, passing = stages[number + 1].emit(graph, passing, graph.from_device(states, network.dtype))
        graph.give(about["output"], y)

        @in_torch(self.model)
        def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
            y, passing = stages[0].compute(values[about["input"].name], None)
            found: dict[str, Tensor] = {}
            for number, layer in enumerate(layers):
                following, states = _answered(layer, y, values[f"state_{number}"])
                found[f"next_state_{number}"] = following
                y, passing = stages[number + 1].compute(passing, states)
            return {"outputs": y, **found}

        states = [carried_state(network, number) for number, network in enumerate(self.networks)]
        return Plan(graphs=[graph], references=[reference], carried=states, **about)

    def gates_around_device(
        self, recurrence: GatedRecurrence, layer: ReservoirLayer, series: Series, *, settable: bool
    ) -> Plan:
        """Gates and network in one loop."""
        check_networks(self.networks, [layer.spec])
        (network,) = self.networks
        return gates.around_network(self.model, recurrence, layer, network, series, settable, self.precision)


def _answered(layer: ReservoirLayer, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The last state of the layer's simulated reservoir from a given one on, and all, in torch's default dtype."""
    mapped = mapped_by(layer, x, 0)["drive_0"]
    states, last = simulated(layer.reservoir, mapped.numpy(), state.numpy())
    return torch.from_numpy(last), torch.from_numpy(states).to(torch.get_default_dtype())


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
