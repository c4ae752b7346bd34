"""A simulated network inside a graph: its equation, step by step, with the state carried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Carried, DType, Value
from reservoir_hw.readout.export.graph import Graph

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
        check_size("the recurrent matrix", nodes * nodes * np.dtype(self.dtype).itemsize)
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


def emit_network(graph: Graph, u: str, network: SimulatedNetwork, name: str, number: int) -> str:
    """States (batch, time, nodes) of inputs (batch, time, inputs), both in the network's dtype.

    The states before the first step are read as `state_{number}`, those of the last step given as
    `next_state_{number}`.
    """
    state = state_value(network, number)
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


def state_value(network: SimulatedNetwork, number: int) -> Value:
    """What the graph reads of a network: the states before the first step."""
    return Value(name=f"state_{number}", shape=(network.nodes,), dtype=network.dtype)


def carried_state(network: SimulatedNetwork, number: int) -> Carried:
    """The states that go from one call to the next."""
    name = f"state_{number}"
    return Carried(reads=name, gives=f"next_{name}", shape=(network.nodes,), dtype=network.dtype)


def check_size(what: str, size: int) -> None:
    """Raise `ConfigurationError` for a matrix of more bytes than a graph should hold."""
    if size > _LARGEST_MATRIX:
        raise ConfigurationError(
            f"{what} would take {size / 2**30:.1f} GiB in the graph, where matrices are dense, more than "
            f"{_LARGEST_MATRIX / 2**30:g} GiB: export the segments, and drive the reservoir beside them"
        )


def check_networks(networks: Sequence[SimulatedNetwork], specs: Sequence[ReservoirSpec]) -> None:
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
