"""Where a model is cut: at every crossing of a reservoir."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Crossing, Precision, Value
from reservoir_hw.readout.edge.verification import spread_of
from reservoir_hw.readout.export.graph import Graph, Plan, Values, Weights
from reservoir_hw.readout.export.simulated_network import carried_state, emit_network, network_of, simulated
from reservoir_hw.readout.export.unchanged import refuse_changes
from reservoir_hw.readout.linear.least_squares import FeatureScale, LinearForm, loses_in_single, sizes_of


def plan_of(
    model: Any,
    reservoirs: Sequence[Reservoir] = (),
    precision: Precision = "fp32",
    *,
    recorded: Values | None = None,
    spread: np.ndarray | None = None,
) -> Plan:
    """A model cut at its reservoirs, as it says itself (`cut`, see `Stage`), or a linear readout.

    `reservoirs` is the open device of a linear readout, and `recorded` what the device answered (`record_series`),
    which may say how large the states are; `spread` (outputs,) is how much its outputs move. Raises
    `ConfigurationError` for what does not say how it is exported.
    """
    if hasattr(model, "cut"):
        from reservoir_hw.readout.export.cutters import Segments

        refuse_changes(model)
        return model.cut(Segments(model, precision))
    if not (hasattr(model, "linear_form") or hasattr(model, "network")):
        raise ConfigurationError(
            f"a {type(model).__name__} cannot be exported: it is no linear readout, and does not say where its "
            "reservoirs are (method cut, docs/extending.md); a torch module of your own goes through export_module"
        )
    if len(reservoirs) != 1:
        raise ConfigurationError(f"a {type(model).__name__} is exported with its reservoir: give it, open")
    return plan_of_states(model, reservoirs[0].spec, precision, recorded=recorded, spread=spread)


# ---- Models with the simulated network that they were trained on inside: one graph, no device.


def whole_plan(model: Any, precision: Precision = "fp32", *, reservoir: Reservoir | None = None) -> Plan:
    """One graph from the model's input to its output, with the states of its simulated reservoirs carried.

    `model` is a linear readout, or says itself how it is cut (`cut`, see `Stage`). A linear readout knows no reservoir:
    it needs the `reservoir` that gave it its states. With int8 the networks stay in their own precision.

    The reference is the model itself driven by its simulated reservoirs, step by step from the carried states; those
    must be open when the plan is certified. Rounding differs between the two by a few units in the last place (the
    simulation has a tanh of its own). A network that forgets keeps that small for any length. A chaotic one, of a
    spectral radius well above 1 and weakly driven, does not: there the two agree over the first steps, which
    are certified, and drift apart within some hundred, as two simulations of it on different machines would.

    Raises `ConfigurationError` for reservoirs other than an `esn` without non-idealities in this process.
    """
    if hasattr(model, "cut"):
        from reservoir_hw.readout.export.cutters import Whole

        refuse_changes(model)
        return model.cut(Whole(model, precision))
    if not hasattr(model, "linear_form"):
        raise ConfigurationError(
            f"a {type(model).__name__} cannot be exported with its reservoir inside: it is no linear readout, and "
            "does not say where its reservoirs are (method cut, docs/extending.md)"
        )
    if reservoir is None:
        raise ConfigurationError(
            f"a {type(model).__name__} does not know its reservoir: whole_plan(readout, reservoir=esn)"
        )
    linear = LinearPart(model, reservoir.spec, precision)
    network = network_of(reservoir, 0)
    inputs = Value(name="inputs", shape=(reservoir.spec.inputs,), dtype=network.dtype)
    graph = Graph(0, Weights(), precision)
    u = graph.read(inputs)
    states = emit_network(graph, u, network, "reservoir_0", 0)
    linear.emit(graph, states, u if linear.form.inputs else None)

    def reference(values: Values) -> Values:
        states, last = simulated(reservoir, values["inputs"], values["state_0"])
        return {**linear.reference(states, values), "next_state_0": last}

    return Plan(
        model=type(model).__name__,
        input=inputs,
        output=linear.output,
        output_meaning="values",
        graphs=[graph],
        references=[reference],
        carried=[carried_state(network, 0)],
    )


# ---- Linear readouts as graphs: all that state themselves as a linear form, whatever found their weights.


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
        if precision == "int8":
            raise ConfigurationError(
                f"a torch module such as {readout.config.label} is exported in float32 alone: leave out int8"
            )
        import torch

        from reservoir_hw.readout.export.torch_module import export_module

        read = readout.input_connection
        example = torch.zeros(1, 1, reservoir.nodes + reservoir.inputs * read, dtype=getattr(torch, reservoir.dtype))
        return export_module(readout.network, example, name="readout", reservoir=reservoir, input_connection=read)
    linear = LinearPart(readout, reservoir, precision, recorded, spread)
    inputs = Value(name="inputs", shape=(reservoir.inputs,), dtype=reservoir.dtype)
    states = Value(name="states_0", shape=(reservoir.nodes,), dtype=reservoir.dtype)
    graph = Graph(0, Weights(), precision)
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


class LinearPart:
    """W x + b of states, and of inputs where the readout was trained with them: as a graph, and as it is.

    Computed in float64 where sums of features and large weights that cancel would lose too much in float32, as those of
    a ridge regression with a small penalty do. How large features are, the device's ranges say; where it declares none,
    the readout's training; else what was `recorded`. What matters is how much an output moves: its `spread`, else that
    of the training's targets, else of what was recorded. Where nothing says it, it is float64, too: what float32 loses
    on some recorded steps says little of what it loses later. Raises as `plan_of_states`.
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
        if self.form.nodes != reservoir.nodes or self.form.inputs not in (0, reservoir.inputs):
            raise ConfigurationError(
                f"the readout reads {self.form.weights.shape[1]} features, the reservoir has {reservoir.nodes} nodes"
                + (f" and {reservoir.inputs} inputs" if self.form.inputs else "")
            )
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

    def emit(self, graph: Graph, states: str, inputs: str | None) -> None:
        """Give the output of states and inputs in the device's dtype."""
        features = [name for name in (states, inputs) if name is not None]
        if not self.double:
            features = [graph.from_device(name, self.dtype) for name in features]
        x = features[0] if inputs is None else graph.node("Concat", *features, axis=-1)
        if self.double:
            x = graph.to_device(x, "float64")
        given = graph.linear(x, "readout", self.form.weights, self.form.bias, dtype=self.output.dtype)
        graph.give(self.output, given)

    def reference(self, states: np.ndarray, values: Values) -> Values:
        """What `emit` gives, by the readout's own code; `values` hold the inputs, where it reads them."""
        exactness = np.dtype(np.float64 if self.double else self.dtype)
        return {"outputs": self._predicted(states.astype(exactness), values).astype(self.output.dtype)}

    def _predicted(self, states: np.ndarray, values: Values) -> np.ndarray:
        given = values["inputs"].astype(states.dtype) if self.form.inputs else None
        return self.readout.predict(states, given)


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
    return FeatureScale.of([features]) if features.size else None
