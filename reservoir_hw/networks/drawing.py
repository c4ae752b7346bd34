"""Draws the weights of an echo state network; the drawn numbers come from numpy Generators alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.networks.random_matrices import Distribution, Entries, draw_leak, draw_matrix, draw_values
from reservoir_hw.networks.topologies import Topology, as_topology
from reservoir_hw.networks.weights import EsnWeights

# One stream per drawn quantity: what is changed in one leaves the others as they were.
_STREAMS = {
    name: key
    for key, name in enumerate(("recurrent links", "recurrent values", "input links", "input values", "bias", "leak"))
}


def draw_weights(
    nodes: int,
    inputs: int,
    *,
    seed: int | np.random.SeedSequence,
    topology: str | Topology = "random",
    spectral_radius: float | None = 0.9,
    connectivity: float | None = None,
    connections_per_node: int | None = None,
    distribution: Distribution | None = None,
    input_connectivity: float = 1.0,
    input_distribution: Distribution = "uniform",
    input_scaling: float | Sequence[float] = 1.0,
    bias_scaling: float = 0.0,
    bias_distribution: Distribution = "uniform",
    leak: float | tuple[float, float] = 1.0,
) -> EsnWeights:
    """Draw the weights of an echo state network; the same seed gives the same numbers on every machine.

    `topology` says which nodes are linked: a name of `topologies.py` or one of its objects, such as
    `CycleJumps(jump=7)`. For random and block ones `connectivity` is the probability of each recurrent weight
    being nonzero (all of them if neither it nor `connections_per_node` is given), `connections_per_node` the
    exact number of nonzeros in each row.
    `distribution` is that of the recurrent weights which the topology does not fix: `uniform` on -1..1 unless
    given, `normal` with unit variance, `bernoulli` a random sign. The recurrent matrix is scaled to
    `spectral_radius` (None: left as drawn; so it must be for a delay line, whose spectral radius is 0), input
    weights are multiplied by `input_scaling` (one number, or one per input), biases by `bias_scaling`. `leak` is
    one rate, or the (low, high) of a uniform range from which each node draws its own.

    Each quantity has its own random stream, and links are drawn apart from values: changing, say, the input
    connectivity changes no recurrent weight. Time and memory grow with the nonzeros, not with nodes².
    Raises `ConfigurationError` for values outside their range, for options that mean nothing to the topology,
    and for a matrix whose spectral radius is 0.
    """
    nodes, inputs = whole_number("nodes", nodes), whole_number("inputs", inputs, least=0)
    topology = as_topology(topology)
    given = {
        "connectivity": connectivity,
        "connections_per_node": connections_per_node,
        "distribution": distribution,
        "spectral_radius": spectral_radius,
    }
    topology.check(nodes, given)
    if spectral_radius is not None:
        spectral_radius = number_in("spectral_radius", spectral_radius, 0.0, np.inf)
    scaling = np.asarray(input_scaling, np.float64)
    if scaling.shape not in ((), (inputs,)):
        raise ConfigurationError(
            f"input_scaling must be one number or one per input ({inputs}), its shape is {scaling.shape}"
        )
    W = topology.draw(
        nodes,
        _stream(seed, "recurrent links"),
        _stream(seed, "recurrent values"),
        Entries(
            distribution or "uniform",
            number_in("connectivity", 1.0 if connectivity is None else connectivity, 0.0, 1.0, excluding=(0.0,)),
            connections_per_node,
        ),
    )
    W_in = draw_matrix(
        (nodes, inputs),
        _stream(seed, "input links"),
        _stream(seed, "input values"),
        Entries(input_distribution, number_in("input_connectivity", input_connectivity, 0.0, 1.0, excluding=(0.0,))),
    )
    W_in = W_in if isinstance(W_in, np.ndarray) else W_in.toarray()
    return EsnWeights(
        W,
        W_in * scaling,
        draw_values(_stream(seed, "bias"), nodes, bias_distribution) * bias_scaling,
        np.asarray(draw_leak(leak, nodes, _stream(seed, "leak"))),
        1.0 if spectral_radius is None else topology.spectral_scale(W, spectral_radius),
    )


def _stream(seed: int | np.random.SeedSequence, name: str) -> np.random.Generator:
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    key = (*root.spawn_key, _STREAMS[name])
    # PCG64 by name: default_rng may come to mean another generator.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(root.entropy, spawn_key=key)))
