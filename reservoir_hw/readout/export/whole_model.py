"""Models with the simulated network that they were trained on inside: one graph, no device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout.edge.manifest import Value
from reservoir_hw.readout.export.graph import Precision, Weights
from reservoir_hw.readout.export.layers import LayerGraph, refuse_changes
from reservoir_hw.readout.export.linear_readout import LinearPart
from reservoir_hw.readout.export.plan import Plan, Values
from reservoir_hw.readout.export.simulated_network import (
    SimulatedNetwork,
    carried_state,
    check_networks,
    emit_network,
    simulated,
)


def whole_plan(
    model: Any,
    networks: Sequence[SimulatedNetwork] = (),
    precision: Precision = "fp32",
    *,
    reservoir: Reservoir | None = None,
) -> Plan:
    """One graph from the model's input to its output, with the states of the networks carried.

    `model` is a linear readout, or says itself how it is cut (`cut`, see `models.stages`). `networks` are the
    simulated reservoirs of the model's layers, in their order; an `EsnLM` and gates around matrices have none. A
    linear readout knows no reservoir: it needs the `reservoir` that gave it its states, as the reference. With int8
    the networks stay in their own precision.

    The reference is the model itself driven by its simulated reservoirs, step by step from the carried states; those
    must be open when the plan is certified. Rounding differs between the two by a few units in the last place (the
    simulation has a tanh of its own). A network that forgets keeps that small for any length. A chaotic one, of a
    spectral radius well above 1 and weakly driven, does not: there the two agree over the first steps, which
    are certified, and drift apart within some hundred, as two simulations of it on different machines would.

    Raises `ConfigurationError` for reservoirs other than an `esn` without non-idealities, and for networks that do
    not fit them.
    """
    if hasattr(model, "cut"):
        from reservoir_hw.readout.export.cutters import Whole

        refuse_changes(model)
        return model.cut(Whole(model, precision, networks))
    if not hasattr(model, "linear_form"):
        raise ConfigurationError(
            f"a {type(model).__name__} cannot be exported with its reservoir inside: it is no linear readout, and "
            "does not say where its reservoirs are (method cut, docs/extending.md)"
        )
    if reservoir is None:
        raise ConfigurationError(
            f"a {type(model).__name__} does not know its reservoir: whole_plan(readout, [network], reservoir=esn)"
        )
    return _whole_readout(model, networks, reservoir, precision)


def _whole_readout(
    readout: Any, networks: Sequence[SimulatedNetwork], reservoir: Reservoir, precision: Precision
) -> Plan:
    check_networks(networks, [reservoir.spec])
    (network,) = networks
    linear = LinearPart(readout, reservoir.spec, precision)
    inputs = Value(name="inputs", shape=(network.inputs,), dtype=network.dtype)
    graph = LayerGraph(0, Weights(), precision)
    u = graph.read(inputs)
    states = emit_network(graph, u, network, "reservoir_0", 0)
    linear.emit(graph, states, u if linear.form.inputs else None)

    def reference(values: Values) -> Values:
        states, last = simulated(reservoir, values["inputs"], values["state_0"])
        return {**linear.reference(states, values), "next_state_0": last}

    return Plan(
        model=type(readout).__name__,
        input=inputs,
        output=linear.output,
        output_meaning="values",
        graphs=[graph],
        references=[reference],
        carried=[carried_state(network, 0)],
    )
