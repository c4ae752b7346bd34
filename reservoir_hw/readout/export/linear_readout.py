"""Linear readouts as graphs: all that state themselves as a linear form, whatever found their weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Crossing, Value
from reservoir_hw.readout.edge.verification import spread_of
from reservoir_hw.readout.export.graph import Plan, Precision, Values, Weights
from reservoir_hw.readout.export.layers import LayerGraph
from reservoir_hw.readout.export.simulated_network import (
    carried_state,
    emit_network,
    network_of,
    simulated,
)
from reservoir_hw.readout.linear.linear_form import FeatureScale, LinearForm, loses_in_single, sizes_of


def plan_of_states(
    readout: Any,
    reservoir: ReservoirSpec,
    precision: Precision = "fp32",
    *,
    recorded: Values | None = None,
    spread: np.ndarray | None = None,
) -> Plan:
    """A readout of the states of a device, and of its inputs where it was trained with them: one segment.

    It is a linear one (`LinearPart`), with `linear_form()` and `predict(states, inputs)`, or has a torch `network`.
    `recorded` is what the device answered (`record_series`), `spread` (outputs,) how much outputs move. Raises
    `ConfigurationError` for a device of another width, `NotSolved` for a readout without weights.
    """
    if hasattr(readout, "network"):
        return _plan_of_network(readout, reservoir, precision)
    linear = LinearPart(readout, reservoir, precision, recorded, spread)
    inputs = Value(name="inputs", shape=(reservoir.inputs,), dtype=reservoir.dtype)
    states = Value(name="states_0", shape=(reservoir.nodes,), dtype=reservoir.dtype)
    graph = LayerGraph(0, Weights(), precision)
    linear.emit(graph, graph.read(states), graph.read(inputs) if linear.form.inputs else None)
    return Plan(
        state_scale=linear.scale,
        model=type(readout).__name__,
        input=inputs,
        output=linear.output,
        output_meaning="values",
        graphs=[graph],
        references=[lambda values: linear.reference(values["states_0"], values)],
        reservoirs=[reservoir],
        crossings=[Crossing(slot=0, after=0, drive="inputs", states="states_0")],
    )


def _plan_of_network(readout: Any, reservoir: ReservoirSpec, precision: Precision) -> Plan:
    if precision == "int8":
        raise ConfigurationError(
            f"a torch module such as {readout.config.label} is exported in float32 alone: leave out int8"
        )
    import torch

    from reservoir_hw.readout.export.torch_module import export_module

    width = reservoir.nodes + reservoir.inputs * readout.input_connection
    example = torch.zeros(1, 1, width, dtype=getattr(torch, reservoir.dtype))
    return export_module(
        readout.network, example, name="readout", reservoir=reservoir, input_connection=readout.input_connection
    )


def whole_plan_of_readout(readout: Any, reservoir: Reservoir, precision: Precision) -> Plan:
    """The same with the simulated network of its `reservoir` inside: one graph, with the states carried."""
    linear = LinearPart(readout, reservoir.spec, precision)
    network = network_of(reservoir, 0)
    inputs = Value(name="inputs", shape=(reservoir.spec.inputs,), dtype=network.dtype)
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


class LinearPart:
    """W x + b of states, and of inputs where the readout was trained with them: as a graph, and as it is.

    Computed in float64 where sums of features and large weights that cancel would lose too much in float32, as those of
    a ridge regression with a small penalty do. How large features are, the device's ranges say; where it declares none,
    the readout's training; else what was `recorded`. What matters is how much an output moves: its `spread`, else that
    of the training's targets, else of what was recorded. Where nothing says it, it is float64, too: what float32 loses
    on some recorded steps says little of what it loses later. Raises as `plan_of_readout`.
    """

    def __init__(
        self,
        readout: Any,
        reservoir: ReservoirSpec,
        precision: Precision,
        recorded: Values | None = None,
        spread: np.ndarray | None = None,
    ) -> None:
        self.form: LinearForm = readout.linear_form()
        _check_widths(self.form, reservoir)
        self.readout = readout
        self.dtype = reservoir.dtype
        known = self.form.scale or (None if recorded is None else _scale_of(self.form, recorded))
        self.scale = known if reservoir.state_range is None else None
        if spread is None:
            spread = self.form.target_spread
        if spread is None and recorded is not None:
            spread = spread_of(self._predicted(recorded["states_0"], recorded))
        sizes = _sizes(self.form, reservoir, known)
        self.double = precision == "fp32" and (
            spread is None or sizes is None or loses_in_single(self.form.weights, sizes, spread)
        )

    @property
    def output(self) -> Value:
        """What it gives."""
        return Value(name="outputs", shape=(len(self.form.bias),), dtype="float64" if self.double else "float32")

    def emit(self, graph: LayerGraph, states: str, inputs: str | None) -> None:
        """Give the output of states and inputs in the device's dtype."""
        features = [name for name in (states, inputs) if name is not None]
        if not self.double:
            features = [graph.from_device(name, self.dtype) for name in features]
        x = features[0] if inputs is None else graph.node("Concat", *features, axis=-1)
        linear = graph.linear_in_double if self.double else graph.linear
        graph.give(self.output, linear(x, "readout", self.form.weights, self.form.bias))

    def reference(self, states: np.ndarray, values: Values) -> Values:
        """What `emit` gives, by the readout's own code; `values` hold the inputs, where it reads them."""
        exactness = np.dtype(np.float64 if self.double else self.dtype)
        return {"outputs": self._predicted(states.astype(exactness), values).astype(self.output.dtype)}

    def _predicted(self, states: np.ndarray, values: Values) -> np.ndarray:
        given = values["inputs"].astype(states.dtype) if self.form.inputs else None
        return self.readout.predict(states, given)


def _check_widths(form: LinearForm, reservoir: ReservoirSpec) -> None:
    """Raise `ConfigurationError` for the readout of another device."""
    if form.nodes != reservoir.nodes or form.inputs not in (0, reservoir.inputs):
        raise ConfigurationError(
            f"the readout reads {form.nodes + form.inputs} features, the reservoir has {reservoir.nodes} nodes"
            + (f" and {reservoir.inputs} inputs" if form.inputs else "")
        )


def _sizes(form: LinearForm, reservoir: ReservoirSpec, scale: FeatureScale | None) -> np.ndarray | None:
    """How large features (features,) get; None where nobody knows."""
    sizes = None if scale is None else sizes_of(scale)
    parts = ((slice(form.nodes), reservoir.state_range), (slice(form.nodes, None), reservoir.input_range))
    found = np.zeros(form.weights.shape[1])
    for part, limits in parts:
        if limits is not None:
            found[part] = max(map(abs, limits))
        elif sizes is not None:
            found[part] = sizes[part]
        elif found[part].size:
            return None
    return found


def _scale_of(form: LinearForm, recorded: Values) -> FeatureScale | None:
    """What recorded features are like."""
    names = ("states_0", "inputs") if form.inputs else ("states_0",)
    features = np.concatenate([np.asarray(recorded[name], np.float64) for name in names], axis=-1)
    return (
        FeatureScale.of([features], centred=True, precision=float(np.finfo(np.float32).eps)) if features.size else None
    )
