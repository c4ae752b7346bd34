"""Models with the simulated network that they were trained on inside: one graph, no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Carried, DType, Value
from reservoir_hw.readout.export import layers
from reservoir_hw.readout.export.gated import (
    CARRIED,
    NEXT,
    carried_of,
    described,
    emit_gates,
    emit_gates_drive,
    emit_mixing,
    emit_outputs,
    going_on_from,
    inputs_of,
    plan_of_gated,
    read_by,
)
from reservoir_hw.readout.export.graph import Graph, Precision
from reservoir_hw.readout.export.parts import (
    TOKENS,
    LinearModel,
    LinearPart,
    array,
    described_text,
    emit_embedding,
    emit_mix,
    emit_norm,
    emit_readout,
    in_torch,
    mapped_by,
    refuse_other_computation,
)
from reservoir_hw.readout.export.plan import Plan, Values
from reservoir_hw.readout.export.weights import Weights
from reservoir_hw.readout.linear.online import LMSReadout, RLSReadout
from reservoir_hw.readout.linear.ridge import RidgeReadout

if TYPE_CHECKING:
    from torch import Tensor

    from reservoir_hw.readout.models.esn_language_model import EsnLM
    from reservoir_hw.readout.models.gated import GatedRecurrence, SequenceClassifier
    from reservoir_hw.readout.models.laerc import LAERC, Block
    from reservoir_hw.readout.models.language_model import ReservoirLM
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

Activation = Literal["tanh", "relu", "identity"]

_OPERATORS = {"tanh": "Tanh", "relu": "Relu", "identity": "Identity"}

_LARGEST_MATRIX = 2 * 2**30
"""Bytes of a recurrent matrix, which is dense in the graph."""


@dataclass(frozen=True, eq=False)
class SimulatedNetwork:
    """s_t = (1-a) ⊙ s_(t-1) + a ⊙ f(W s_(t-1) + W_in u_t + b), the equation of the kind `esn`, as arrays.

    `W` (nodes × nodes), dense or a scipy sparse array; `W_in` (nodes × inputs); `bias` b and `leak` a, one number or
    (nodes,); `activation` f. Computed in `dtype`. Of an `esn` these are `weights.recurrent()`, `weights.W_in`,
    `weights.bias`, `weights.leak`, `activation` and `spec.dtype`.

    Raises `ConfigurationError` for shapes that do not fit together, or a matrix that is too large to be dense.
    """

    W: Any
    W_in: Any
    bias: Any = 0.0
    leak: Any = 1.0
    activation: Activation = "tanh"
    dtype: DType = "float32"

    def __post_init__(self) -> None:
        if self.activation not in get_args(Activation):
            raise ConfigurationError(f"activation must be one of {', '.join(_OPERATORS)}, not {self.activation!r}")
        if self.dtype not in get_args(DType):
            raise ConfigurationError(f"dtype must be one of {', '.join(get_args(DType))}, not {self.dtype!r}")
        nodes = self.W.shape[0]
        _check_size("the recurrent matrix", nodes * nodes * np.dtype(self.dtype).itemsize)
        sizes = {"W": (nodes, nodes), "W_in": (nodes, *self.W_in.shape[1:2])}
        for name, shape in sizes.items():
            given = getattr(self, name)
            if given.shape != shape:
                raise ConfigurationError(f"{name} of a network of {nodes} nodes must be {shape}, not {given.shape}")
            object.__setattr__(self, name, self._numbers(given))
        for name in ("bias", "leak"):
            given = self._numbers(getattr(self, name))
            if given.shape not in ((), (nodes,)):
                raise ConfigurationError(f"{name} must be one number or ({nodes},), not {given.shape}")
            object.__setattr__(self, name, np.ascontiguousarray(np.broadcast_to(given, (nodes,))))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.W.shape[0])

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return int(self.W_in.shape[1])

    def _numbers(self, given: Any) -> np.ndarray:
        return np.asarray(given.toarray() if hasattr(given, "toarray") else given).astype(self.dtype)


AnyModel = Any
"""A linear readout, ReservoirLM, LAERC, EsnLM, SequenceClassifier or GatedRecurrence."""


def whole_plan(
    model: AnyModel,
    networks: Sequence[SimulatedNetwork] = (),
    precision: Precision = "fp32",
    *,
    reservoir: Reservoir | None = None,
) -> Plan:
    """One graph from the model's input to its output, with the states of the networks carried.

    `networks` are the simulated reservoirs of the model's layers, in their order; an `EsnLM` and gates around
    matrices have none. A linear readout knows no reservoir: it needs the `reservoir` that gave it its states, as the
    reference. With int8 the networks stay in their own precision.

    The reference is the model itself driven by its simulated reservoirs, step by step from the carried states; those
    must be open when the plan is certified. Rounding differs between the two by a few units in the last place (the
    simulation has a tanh of its own). A network that forgets keeps that small for any length. A chaotic one, of a
    spectral radius well above 1 and weakly driven, does not: there the two agree over the first steps, which
    are certified, and drift apart within some hundred, as two simulations of it on different machines would.

    Raises `ConfigurationError` for reservoirs other than an `esn` without non-idealities, and for networks that do
    not fit them.
    """
    if isinstance(model, RidgeReadout | RLSReadout | LMSReadout):
        if reservoir is None:
            raise ConfigurationError(
                f"a {type(model).__name__} does not know its reservoir: whole_plan(readout, [network], reservoir=esn)"
            )
        return _whole_readout(model, _one(networks, reservoir.spec), reservoir, precision)
    from reservoir_hw.readout.models.esn_language_model import EsnLM
    from reservoir_hw.readout.models.gated import GatedRecurrence, SequenceClassifier
    from reservoir_hw.readout.models.laerc import LAERC
    from reservoir_hw.readout.models.language_model import ReservoirLM

    if isinstance(model, EsnLM | ReservoirLM | LAERC | SequenceClassifier | GatedRecurrence):
        refuse_other_computation(model)
    if isinstance(model, EsnLM):
        return _whole_esn_lm(model, precision)
    if isinstance(model, ReservoirLM):
        return _whole_language_model(model, _one(networks, model.layer.spec), precision)
    if isinstance(model, LAERC):
        return _whole_laerc(model, networks, precision)
    if isinstance(model, SequenceClassifier | GatedRecurrence):
        return _whole_sequence_model(model, networks, precision)
    raise ConfigurationError(
        f"a {type(model).__name__} cannot be exported with its reservoir inside: use a linear readout, ReservoirLM, "
        "LAERC, EsnLM, SequenceClassifier or GatedRecurrence"
    )


# ---- the network in a graph


def emit_network(graph: Graph, u: str, network: SimulatedNetwork, name: str, number: int) -> str:
    """States (batch, time, nodes) of inputs (batch, time, inputs), both in the network's dtype.

    The states before the first step are read as `state_{number}`, those of the last step given as
    `next_state_{number}`.
    """
    state = _state_value(network, number)
    last, states = emit_loop(graph, emit_projection(graph, u, network, name), state, network, name)
    graph.give(state.model_copy(update={"name": f"next_{state.name}"}), last, ("batch",))
    return states


def emit_loop(graph: Graph, driven: str, state: Value, network: SimulatedNetwork, name: str) -> tuple[str, str]:
    """The last state and all states of W_in u + b (batch, time, nodes), from the state that is read."""
    before = graph.read(state, ("batch",))

    def step(states: list[str], row: str) -> tuple[list[str], str]:
        following = emit_step(graph, row, states[0], network, name)
        return [following], following

    (last,), states = graph.scan(step, [state], [before], driven, network.nodes, network.dtype)
    return last, states


def emit_projection(graph: Graph, u: str, network: SimulatedNetwork, name: str) -> str:
    """W_in u + b."""
    product = graph.node("MatMul", u, graph.weight(f"{name}.W_in", np.ascontiguousarray(network.W_in.T)))
    return graph.node("Add", product, graph.weight(f"{name}.bias", network.bias)) if network.bias.any() else product


def emit_step(graph: Graph, drive: str, state: str, network: SimulatedNetwork, name: str) -> str:
    """The next state (batch, nodes) of W_in u + b and the state before."""
    recurrent = graph.node("MatMul", state, graph.weight(f"{name}.W", np.ascontiguousarray(network.W.T)))
    proposed = graph.node(_OPERATORS[network.activation], graph.node("Add", drive, recurrent))
    if (network.leak == 1).all():
        return proposed
    leak = graph.weight(f"{name}.leak", network.leak)
    return graph.node("Add", state, graph.node("Mul", leak, graph.node("Sub", proposed, state)))


def simulated(reservoir: Reservoir, u: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The reservoir's own states (batch, time, nodes) of u (batch, time, inputs) from a given state; and the last."""
    states = np.empty((*u.shape[:2], state.shape[1]), state.dtype)
    for step in range(u.shape[1]):
        state = np.asarray(reservoir.transition(np.ascontiguousarray(u[:, step]), state))
        states[:, step] = state
    return states, state


# ---- models


def _whole_readout(readout: LinearModel, network: SimulatedNetwork, reservoir: Reservoir, precision: Precision) -> Plan:
    linear = LinearPart(readout, reservoir.spec, precision)
    inputs = Value(name="inputs", shape=(network.inputs,), dtype=network.dtype)
    graph = Graph(0, Weights(), precision)
    u = graph.read(inputs)
    states = emit_network(graph, u, network, "reservoir_0", 0)
    linear.emit(graph, states, u if readout.input_connection else None)

    def reference(values: Values) -> Values:
        states, last = simulated(reservoir, values["inputs"], values["state_0"])
        return {**linear.reference(states, values), "next_state_0": last}

    return Plan.whole(
        graph,
        reference,
        [_carried(network, 0)],
        model=type(readout).__name__,
        input=inputs,
        output=linear.output,
        output_meaning="values",
    )


def _whole_language_model(model: ReservoirLM, network: SimulatedNetwork, precision: Precision) -> Plan:
    layer = model.layer
    graph = Graph(0, Weights(), precision)
    x = emit_embedding(graph, graph.read(TOKENS), model.embedding)
    states = _emit_layer(graph, x, layer, network, "reservoir_0", 0)
    about = described_text(model, f"{type(model).__name__}({type(model.readout).__name__})")
    graph.give(about["output"], emit_readout(graph, states, model.readout, features=layer.nodes))

    @in_torch(model)
    def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        found, states = _layer_reference(layer, model.embedding(values["tokens"]), values, 0)
        return {"outputs": model.readout(states), **found}

    return Plan.whole(graph, reference, [_carried(network, 0)], **about)


def _whole_laerc(model: LAERC, networks: Sequence[SimulatedNetwork], precision: Precision) -> Plan:
    blocks: list[Block] = list(model.blocks)  # pyright: ignore[reportAssignmentType]
    _check_networks(networks, [block.reservoir.spec for block in blocks])
    graph = Graph(0, Weights(), precision)
    x = emit_embedding(graph, graph.read(TOKENS), model.embedding)
    for number, (block, network) in enumerate(zip(blocks, networks, strict=True)):
        normed = emit_norm(graph, x, block.norm_res, f"blocks.{number}.norm_res")
        # Layers may share a network: its weights are kept once.
        first = next(index for index, known in enumerate(networks) if known is network)
        mapped = _emit_map(graph, normed, block.reservoir)
        states = emit_network(graph, mapped, network, f"reservoir_{first}", number)
        x = emit_mix(graph, x, states, block, f"blocks.{number}")
    features = emit_norm(graph, x, model.norm, "norm")
    about = described_text(model, f"LAERC({len(blocks)}×{model.width})")
    graph.give(about["output"], layers.tied_projection(graph, features, "embedding", array(model.embedding.weight)))

    @in_torch(model)
    def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        x = model.embedding(values["tokens"])
        carried: dict[str, Tensor] = {}
        for number, block in enumerate(blocks):
            found, states = _layer_reference(block.reservoir, block.norm_res(x), values, number)
            x = block.mix(x, states)
            carried |= found
        return {"outputs": model.readout(model.norm(x)), **carried}

    return Plan.whole(graph, reference, [_carried(network, number) for number, network in enumerate(networks)], **about)


def _whole_esn_lm(model: EsnLM, precision: Precision) -> Plan:
    """The recurrence that the model itself has; W_in is its embedding."""
    _check_size("the recurrent matrix", 4 * model.nodes**2)
    _check_size("W_in", 4 * model.nodes * model.vocabulary)
    leak = array(model.leak) if hasattr(model.leak, "detach") else model.leak  # pyright: ignore[reportArgumentType]
    activation: Any = model.activation
    network = SimulatedNetwork(_dense_recurrence(model), np.empty((model.nodes, 0)), leak=leak, activation=activation)
    state = _state_value(network, 0)
    graph = Graph(0, Weights(), precision)
    driven = emit_embedding(graph, graph.read(TOKENS), model.embedding)
    last, states = emit_loop(graph, driven, state, network, "recurrence")
    about = described_text(model, f"EsnLM({type(model.readout).__name__})")
    graph.give(about["output"], emit_readout(graph, states, model.readout, features=model.nodes))
    graph.give(state.model_copy(update={"name": f"next_{state.name}"}), last, ("batch",))

    @in_torch(model)
    def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        batch, kept = model._batch, model._state
        try:
            model.begin(len(values["tokens"]))
            model._state = values["state_0"]
            features = model.advance(values["tokens"])
        finally:
            model._batch, model._state = batch, kept
        return {"outputs": model.readout(features), "next_state_0": features[:, -1]}

    return Plan.whole(graph, reference, [_carried(network, 0)], **about)


def _whole_sequence_model(
    model: SequenceClassifier | GatedRecurrence, networks: Sequence[SimulatedNetwork], precision: Precision
) -> Plan:
    from reservoir_hw.readout.models.gated import DrivenCandidate, GatedRecurrence, MatrixCandidate, SettableCandidate

    recurrence = model if isinstance(model, GatedRecurrence) else model.recurrence
    if isinstance(recurrence, GatedRecurrence):
        candidate = recurrence.candidate
        if isinstance(candidate, SettableCandidate | DrivenCandidate):
            network = _one(networks, candidate.layer.spec)
            return _whole_gated(model, recurrence, candidate.layer, network, precision)
        if isinstance(candidate, MatrixCandidate):
            _check_networks(networks, [])
        return plan_of_gated(model, precision)
    network = _one(networks, recurrence.spec)
    graph = Graph(0, Weights(), precision)
    u = graph.read(inputs_of(network.inputs))
    emit_outputs(graph, _emit_layer(graph, u, recurrence, network, "reservoir_0", 0), model)

    @in_torch(model)
    def reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        found, states = _layer_reference(recurrence, values["inputs"], values, 0)
        return {"outputs": read_by(model, states), **found}

    return Plan.whole(graph, reference, [_carried(network, 0)], **described(model))


def _whole_gated(
    model: SequenceClassifier | GatedRecurrence,
    recurrence: GatedRecurrence,
    layer: ReservoirLayer,
    network: SimulatedNetwork,
    precision: Precision,
) -> Plan:
    """Gates and network in one loop. A driven network has a state of its own beside x."""
    import torch
    from torch.nn.functional import linear

    from reservoir_hw.readout.models.gated import SettableCandidate, gates

    nodes, dtype = recurrence.nodes, recurrence.W.dtype
    settable = isinstance(recurrence.candidate, SettableCandidate)
    carried = [carried_of(recurrence), *([] if settable else [_carried(network, 0)])]
    values = [Value(name=one.reads, shape=one.shape, dtype=one.dtype) for one in carried]
    graph = Graph(0, Weights(), precision)
    u = graph.read(inputs_of(recurrence.inputs))
    initial = [graph.read(value, ("batch",)) for value in values]
    # The gates' drive and the inputs are known of all steps.
    rows = graph.node("Concat", emit_gates_drive(graph, u, recurrence), u, axis=-1)
    sizes = [2 * nodes, recurrence.inputs]

    def step(states: list[str], row: str) -> tuple[list[str], str]:
        x = states[0]
        drive, inputs = graph.node("Split", row, graph.constant(sizes, np.int64), axis=-1, outputs=2)
        r, z = emit_gates(graph, drive, x, recurrence)
        gated = graph.node("Mul", r, x)
        if settable:
            before = layers.to_device(graph, gated, network.dtype)
        else:
            before, inputs = states[1], graph.node("Concat", inputs, gated, axis=-1)
        one = graph.constant([1], np.int64)
        mapped = graph.node("Squeeze", _emit_map(graph, graph.node("Unsqueeze", inputs, one), layer), one)
        projected = emit_projection(graph, mapped, network, "reservoir_0")
        measured = emit_step(graph, projected, before, network, "reservoir_0")
        following = emit_mixing(graph, layers.from_device(graph, measured, network.dtype), x, z)
        return [following, *([] if settable else [measured])], following

    last, states = graph.scan(step, values, initial, rows, sum(sizes), "float32")
    emit_outputs(graph, states, model)
    for one, tensor in zip(carried, last, strict=True):
        graph.give(Value(name=one.gives, shape=one.shape, dtype=one.dtype), tensor, ("batch",))

    @in_torch(model)
    def settable_reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        with going_on_from(recurrence, values[CARRIED].to(dtype)):
            states = recurrence.advance(values["inputs"])
        return {"outputs": read_by(model, states), NEXT: states[:, -1]}

    @in_torch(model)
    def driven_reference(values: dict[str, Tensor]) -> dict[str, Tensor]:
        u, x = values["inputs"].to(dtype), values[CARRIED].to(dtype)
        found = {"next_state_0": values["state_0"]}
        rows = []
        for step in range(u.shape[1]):
            drive = linear(u[:, step], recurrence.W_in, recurrence.bias)
            r, z = gates(drive, x, recurrence.W.T)
            crossing = torch.cat([u[:, step], r * x], 1)[:, None]
            found, h = _layer_reference(layer, crossing, {"state_0": found["next_state_0"]}, 0)
            x = torch.lerp(h[:, 0].to(dtype), x, z)
            rows.append(x)
        return {"outputs": read_by(model, torch.stack(rows, 1)), NEXT: x, **found}

    return Plan.whole(graph, settable_reference if settable else driven_reference, carried, **described(model))


# ---- parts


def _emit_layer(graph: Graph, x: str, layer: ReservoirLayer, network: SimulatedNetwork, name: str, number: int) -> str:
    """The layer's map and the network, from float32 to float32."""
    states = emit_network(graph, _emit_map(graph, x, layer), network, name, number)
    return layers.from_device(graph, states, network.dtype)


def _emit_map(graph: Graph, x: str, layer: ReservoirLayer) -> str:
    return layers.input_map(
        graph, x, scale=layer.scale, offset=layer.offset, limit=layer.limit, dtype=layer.spec.dtype
    )[0]  # fmt: skip


def _layer_reference(
    layer: ReservoirLayer, x: Tensor, values: dict[str, Tensor], number: int
) -> tuple[dict[str, Tensor], Tensor]:
    """What the layer's reservoir carries on, and its states in torch's default dtype."""
    import torch

    mapped = mapped_by(layer, x, number)[f"drive_{number}"]
    states, last = simulated(layer.reservoir, mapped.numpy(), values[f"state_{number}"].numpy())
    found = {f"next_state_{number}": torch.from_numpy(last)}
    return found, torch.from_numpy(states).to(torch.get_default_dtype())


def _dense_recurrence(model: EsnLM) -> np.ndarray:
    values = array(model.W_values)
    if model.W_columns is None or model.W_rows is None:
        return values
    dense = np.zeros((model.nodes, model.nodes), np.float32)
    rows = np.repeat(np.arange(model.nodes), np.diff(model.W_rows.cpu().numpy()))
    np.add.at(dense, (rows, model.W_columns.cpu().numpy()), values)
    return dense


def _state_value(network: SimulatedNetwork, number: int) -> Value:
    return Value(name=f"state_{number}", shape=(network.nodes,), dtype=network.dtype)


def _carried(network: SimulatedNetwork, number: int) -> Carried:
    name = f"state_{number}"
    return Carried(reads=name, gives=f"next_{name}", shape=(network.nodes,), dtype=network.dtype)


def _one(networks: Sequence[SimulatedNetwork], spec: ReservoirSpec) -> SimulatedNetwork:
    _check_networks(networks, [spec])
    return networks[0]


def _check_networks(networks: Sequence[SimulatedNetwork], specs: Sequence[ReservoirSpec]) -> None:
    """Raise `ConfigurationError` unless these networks can be those of the reservoirs."""
    if len(networks) != len(specs):
        raise ConfigurationError(f"the model has {len(specs)} reservoirs, but {len(networks)} networks are given")
    for number, (network, spec) in enumerate(zip(networks, specs, strict=True)):
        identity = spec.identity
        ideal = spec.deterministic and spec.settable and spec.input_bits is None and spec.output_bits is None
        if not (identity.simulated and identity.model == "esn" and ideal):
            raise ConfigurationError(
                f"reservoir {number} ({identity.model}) cannot be put inside a graph: only a simulated esn without "
                "non-idealities can (export the segments, and drive the reservoir beside them)"
            )
        for name in ("inputs", "nodes", "dtype"):
            given, needed = getattr(network, name), getattr(spec, name)
            if given != needed:
                raise ConfigurationError(
                    f"network {number} has {name} {given}, the reservoir of the model {needed}: give the weights of "
                    "the reservoir that it was trained on"
                )


def _check_size(what: str, size: int) -> None:
    if size > _LARGEST_MATRIX:
        raise ConfigurationError(
            f"{what} would take {size / 2**30:.1f} GiB in the graph, where matrices are dense, more than "
            f"{_LARGEST_MATRIX / 2**30:g} GiB: export the segments, and drive the reservoir beside them"
        )
