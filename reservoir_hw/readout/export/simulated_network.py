"""A simulated network inside a graph: its equation, step by step, with the state carried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout.edge.manifest import Carried, DType
from reservoir_hw.readout.export.graph import Graph

Activation = Literal["tanh", "relu", "identity"]

_OPERATORS = {"tanh": "Tanh", "relu": "Relu", "identity": "Identity"}

_LARGEST_MATRIX = 2 * 2**30
"""Bytes of a recurrent matrix, which is dense in the graph."""


@dataclass(frozen=True, eq=False)
class SimulatedNetwork:
    """s_t = (1-a) ⊙ s_(t-1) + a ⊙ f(W s_(t-1) + W_in u_t + b), the equation of the kind `esn`, in `dtype`.

    `W` (nodes, nodes) is dense; `W_in` (nodes, inputs); `bias` b and `leak` a (nodes,); `activation` f.
    """

    W: np.ndarray
    W_in: np.ndarray
    bias: np.ndarray
    leak: np.ndarray
    activation: Activation
    dtype: DType

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.W)


def dense_network(W: Any, W_in: Any, bias: Any, leak: Any, activation: Activation, dtype: DType) -> SimulatedNetwork:
    """A network of arrays that may be sparse, and of a bias and a leak that may be one number.

    Raises `ConfigurationError` for a matrix that is too large to be dense.
    """
    nodes = W.shape[0]
    check_size("the recurrent matrix", nodes * nodes * np.dtype(dtype).itemsize)

    def numbers(given: Any) -> np.ndarray:
        return np.asarray(given.toarray() if hasattr(given, "toarray") else given).astype(dtype)

    bias, leak = (np.ascontiguousarray(np.broadcast_to(numbers(one), (nodes,))) for one in (bias, leak))
    return SimulatedNetwork(numbers(W), numbers(W_in), bias, leak, activation, dtype)


def network_of(reservoir: Any, number: int) -> SimulatedNetwork:
    """The weights of a simulated echo state network, the reservoir `number` of a model.

    Raises `ConfigurationError` for anything else.
    """
    spec, weights = reservoir.spec, getattr(reservoir, "weights", None)
    if not (spec.identity.simulated and spec.identity.model == "esn" and weights is not None):
        raise ConfigurationError(
            f"reservoir {number} ({spec.identity.model}) cannot be put inside a graph: only a simulated esn in "
            "this process can; export the segments (--target segments), and drive the reservoir beside them"
        )
    exact = spec.deterministic and not spec.input_bits and not spec.output_bits and spec.settable
    if not exact or reservoir.input_mask is not None:
        raise ConfigurationError(
            f"reservoir {number} has non-idealities or an input mask, which a graph has not: export the segments "
            "(--target segments), and drive the reservoir beside them"
        )
    return dense_network(
        weights.recurrent(), weights.W_in, weights.bias, weights.leak, reservoir.activation, spec.dtype
    )


def emit_network(graph: Graph, u: str, network: SimulatedNetwork, name: str, number: int) -> str:
    """States (batch, time, nodes) of inputs (batch, time, inputs), both in the network's dtype.

    The states before the first step are read as `state_{number}`, those of the last step given as
    `next_state_{number}`.
    """
    return emit_loop(graph, emit_projection(graph, u, network, name), network, name, number)


def emit_loop(graph: Graph, driven: str, network: SimulatedNetwork, name: str, number: int) -> str:
    """States of W_in u + b (batch, time, nodes), otherwise as `emit_network`."""
    carried = carried_state(network, number)
    before = graph.read(carried.read, ("batch",))

    def step(states: list[str], row: str) -> tuple[list[str], str]:
        following = emit_step(graph, row, states[0], network, name)
        return [following], following

    (last,), states = graph.scan(step, [carried.read], [before], driven, network.nodes, network.dtype)
    graph.give(carried.given, last, ("batch",))
    return states


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
