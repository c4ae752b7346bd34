"""Weights of the echo state networks of the language-model papers, one input channel per token.

They suit the `esn` kind as well as `EsnLM`:

    weights = sparse_esn_weights(1024, 59, seed=0)
    esn = Esn(EsnWeights.from_arrays(weights.W, weights.dense_W_in(), leak=weights.leak))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.networks.random_matrices import Matrix, draw_leak, scipy_sparse
from reservoir_hw.networks.spectral_radius import scale_to
from reservoir_hw.networks.spectral_radius import spectral_radius as radius_of


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
    target = number_in("spectral_radius", target, 0.0, np.inf)
    return W * scale_to(target, radius_of(W, by_graph=False))


def _sparse_columns(sparse: Any, nodes: int, columns: int, each: int, exact: bool, seed: int, name: str) -> Matrix:
    """A CSC matrix (nodes × columns) of normal numbers at drawn links, in time and memory of the nonzeros."""
    links, values = generator(seed, f"{name} links"), generator(seed, f"{name} values")
    counts = np.full(columns, each) if exact else links.binomial(nodes, each / nodes, columns)
    rows = [np.sort(links.choice(nodes, count, replace=False, shuffle=False)) for count in counts.tolist()]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csc_array((values.standard_normal(indptr[-1]), np.concatenate(rows), indptr), shape=(nodes, columns))
