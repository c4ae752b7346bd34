"""Weights of the echo state networks of the language-model papers, one input channel per token.

They suit the `esn` kind as well as `EsnLM`:

    weights = sparse_esn_weights(1024, 59, seed=0)
    esn = Esn(EsnWeights.from_arrays(weights.W, weights.dense_W_in(), leak=weights.leak))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.networks.random_matrices import Matrix, draw_leak, scale_to, scipy_sparse
from reservoir_hw.networks.random_matrices import spectral_radius as radius_of
from reservoir_hw.networks.weights import draw_weights


@dataclass(frozen=True, eq=False)
class EsnArrays:
    """W (nodes × nodes) with its spectral radius, W_in (nodes × vocabulary), and the leak rate or rates (nodes,).

    Sparse matrices are scipy's, W by rows (CSR) and W_in by columns (CSC); dense ones are numpy arrays.
    """

    W: Matrix
    W_in: Matrix
    leak: float | NDArray[np.float64]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.W.shape[0])

    @property
    def vocabulary(self) -> int:
        """Number of tokens, each an input channel."""
        return int(self.W_in.shape[1])

    def dense_W_in(self) -> NDArray[np.float64]:  # noqa: N802 - W_in is the field's name
        """W_in as an array, which is what a reservoir with one input per token needs."""
        return self.W_in if isinstance(self.W_in, np.ndarray) else self.W_in.toarray()


def sparse_esn_weights(
    nodes: int,
    vocabulary: int,
    *,
    connections: int = 32,
    exact: bool = False,
    spectral_radius: float = 0.99,
    input_scaling: float = 1.0,
    leak: float | tuple[float, float] = (0.0, 1.0),
    seed: int,
) -> EsnArrays:
    """Sparse weights as in Ueda et al. 2025 (Syntactic Learnability of ESN Language Models), eq. 2-4.

    Links are independent with probability connections/nodes, so that eq. 6 and 7 hold in expectation; with
    `exact`, each column of W and W_in has exactly `connections` nonzeros, so that they hold exactly. Values are
    normal, of W_in with standard deviation `input_scaling`; W is scaled to `spectral_radius`. `leak` is one
    rate, or the (lowest, highest) of a uniform range from which each node draws its own. The defaults are the
    paper's. Each quantity has its own random stream.

    Raises ConfigurationError for values outside their range and for a W whose spectral radius is 0, MissingExtra
    without scipy.
    """
    sparse = scipy_sparse()
    nodes, vocabulary = whole_number("nodes", nodes), whole_number("vocabulary", vocabulary)
    connections = whole_number("connections", connections)
    if connections > nodes:
        raise ConfigurationError(f"connections {connections} is more than the {nodes} nodes")
    seed = whole_number("seed", seed, least=0)
    scaling = number_in("input_scaling", input_scaling, 0.0, float("inf"))
    recurrent = _sparse_columns(sparse, nodes, nodes, connections, exact, seed, "recurrent")
    W_in = _sparse_columns(sparse, nodes, vocabulary, connections, exact, seed, "input") * scaling
    return EsnArrays(_scaled(recurrent, spectral_radius).tocsr(), W_in, draw_leak(leak, nodes, generator(seed, "leak")))


def dense_esn_weights(
    nodes: int,
    vocabulary: int,
    *,
    sparsity: float = 0.5,
    spectral_radius: float = 0.993,
    input_scaling: float = 1.0,
    leak: float | tuple[float, float] = 0.8,
    seed: int,
) -> EsnArrays:
    """Dense W_in, and W with the share `sparsity` of zeros, as in Ueda et al. 2025 (in Japanese: frozen recurrence).

    Eq. 3-5: W_in is normal with standard deviation `input_scaling`; W is normal under a Bernoulli mask, scaled to
    `spectral_radius`. The defaults are the paper's. W_in holds float32 numbers: at 50,257 tokens it is large.

    Raises ConfigurationError for values outside their range and for a W whose spectral radius is 0.
    """
    nodes, vocabulary = whole_number("nodes", nodes), whole_number("vocabulary", vocabulary)
    seed = whole_number("seed", seed, least=0)
    zeros = number_in("sparsity", sparsity, 0.0, 1.0, excluding=(1.0,))
    scaling = number_in("input_scaling", input_scaling, 0.0, float("inf"))
    mask = generator(seed, "recurrent links").random((nodes, nodes)) >= zeros
    W = np.where(mask, generator(seed, "recurrent values").standard_normal((nodes, nodes)), 0.0)
    # Token by token, so that a larger vocabulary leaves the vectors of the first tokens as they were.
    W_in = generator(seed, "input values").standard_normal((vocabulary, nodes), dtype=np.float32).T
    return EsnArrays(
        _scaled(W, spectral_radius), W_in * np.float32(scaling), draw_leak(leak, nodes, generator(seed, "leak"))
    )


def _scaled(W: Matrix, target: float) -> Matrix:
    return W * scale_to(number_in("spectral_radius", target, 0.0, np.inf), radius_of(W, by_graph=False))


def _sparse_columns(sparse: Any, nodes: int, columns: int, each: int, exact: bool, seed: int, name: str) -> Matrix:
    """A CSC matrix (nodes × columns) of normal numbers at drawn links, in time and memory of the nonzeros."""
    links, values = generator(seed, f"{name} links"), generator(seed, f"{name} values")
    counts = np.full(columns, each) if exact else links.binomial(nodes, each / nodes, columns)
    rows = [np.sort(links.choice(nodes, count, replace=False, shuffle=False)) for count in counts.tolist()]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csc_array((values.standard_normal(indptr[-1]), np.concatenate(rows), indptr), shape=(nodes, columns))


# ---- The reservoirs of a LAERC: as the paper describes them, and as the authors' published code draws them.


def radius_schedule(layers: int) -> list[float]:
    """Spectral radius of each layer's reservoir (Köster & Uchida 2026, eq. A5): from 0.95 up to 0.99."""
    layers = whole_number("layers", layers)
    return [0.95 + 0.04 * layer / max(1, layers - 1) for layer in range(layers)]


def reservoir_configurations(
    width: int,
    layers: int,
    *,
    nodes: int | None = None,
    spectral_norm: float | None = None,
    bias_scaling: float = 0.0,
    seed: int = 0,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Reservoir configurations (`kind: esn`) for a LAERC of this width D (eq. A3-A5, R = 4 D unless given).

    The paper leaves the distributions open. Those of the authors' published code are taken: normal recurrent
    weights, here scaled to the spectral radius, input weights of variance 1/D, no bias. With `spectral_norm`, each is
    scaled to this norm instead, as that code does (0.9). Layer l is drawn with the seed `seed` + l. `changes` are
    further keys of every configuration, such as `gradients` or `dtype`.
    """
    width, seed = whole_number("width", width), whole_number("seed", seed, least=0)
    nodes = 4 * width if nodes is None else whole_number("nodes", nodes)
    radii = radius_schedule(layers)
    if spectral_norm is not None:
        radii = [spectral_norm / _norm_at_radius_1(nodes, seed + layer) for layer in range(layers)]
    return [
        {
            "kind": "esn",
            "inputs": width,
            "nodes": nodes,
            "spectral_radius": radius,
            "weight_distribution": "normal",
            "input_distribution": "normal",
            "input_scaling": width**-0.5,
            "bias_scaling": bias_scaling,
            "seed": seed + layer,
            **changes,
        }
        for layer, radius in enumerate(radii)
    ]


@cache
def _norm_at_radius_1(nodes: int, seed: int) -> float:
    """The spectral norm of the W that such a configuration draws, scaled to the spectral radius 1."""
    drawn = draw_weights(nodes, 1, seed=seed, weight_distribution="normal", spectral_radius=1.0)
    return float(np.linalg.norm(drawn.recurrent(), 2))


def norm_scaled_weights(
    width: int, layers: int, *, nodes: int | None = None, norm: float = 0.9, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    """Reservoir weights as the authors' published code draws them, for `Reservoir.upload`: W, W_in and bias.

    Normal weights of variance 1/R in W (R × R), scaled to the spectral norm `norm`, the same in all layers, and of
    variance 1/D in W_in (R × D); no bias. (The paper scales the spectral radius, which is about half the norm of such
    a matrix.)
    """
    width, layers = whole_number("width", width), whole_number("layers", layers)
    nodes = 4 * width if nodes is None else whole_number("nodes", nodes)
    norm = number_in("norm", norm, 0.0, float("inf"))
    weights = []
    for layer in range(layers):
        random = generator(whole_number("seed", seed, least=0) + layer, "laerc reservoir")
        W = random.standard_normal((nodes, nodes))
        W_in = random.standard_normal((nodes, width)) * width**-0.5
        weights.append({"W": W * (norm / np.linalg.norm(W, 2)), "W_in": W_in, "bias": np.zeros(nodes)})
    return weights
