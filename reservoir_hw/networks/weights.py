"""Weights of the simulated echo state network: drawing, validating, scaling, saving.

The drawn numbers come from numpy Generators alone. The one quantity that linear algebra computes, the
factor that brings the recurrent matrix to its spectral radius, is kept beside them and saved with them, so
that another BLAS can never change a weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import coo_array, csc_array, csr_array, eye_array, issparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, eigs, splu

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replacing
from reservoir_hw.core.validation import at_least
from reservoir_hw.networks.topologies import Block, CycleJumps, Orthogonal, Random, Topology, as_topology

Distribution = Literal["uniform", "normal", "bernoulli"]
FloatArray: TypeAlias = NDArray[np.float64]
# FloatArray or csr_array: scipy has no type information that would bear the union.
Matrix: TypeAlias = Any

_FORMAT = "reservoir_hw.esn_weights"
_VERSION = "1"

# One stream per drawn quantity: what is changed in one leaves the others as they were.
_STREAMS = {
    name: key
    for key, name in enumerate(("recurrent links", "recurrent values", "input links", "input values", "bias", "leak"))
}

# Below this many nodes LAPACK's full spectrum is the quicker and the safer way to a spectral radius.
_DENSE_SPECTRUM_BELOW = 1000
# Of the Krylov residual; the eigenvalue itself comes out within about 0.02 %.
_ARPACK_TOLERANCE: Any = 1e-2
# Random networks converge within ten restarts; eigenvalues on one circle do not within thousands.
_ARPACK_RESTARTS = 50
# Up to so many nodes LAPACK takes seconds where ARPACK gave up.
_DENSE_SPECTRUM_UP_TO = 3000


@dataclass(frozen=True, eq=False)
class EsnWeights:
    """The weights of s_t = (1-a) ⊙ s_{t-1} + a ⊙ f(W s_{t-1} + W_in u_t + b) (Jaeger et al. 2007, eq. 1).

    All arrays are float64. `W` (nodes × nodes) is a dense array or a canonical `csr_array`, *before* its
    spectral scale: the equation's W is `recurrent()`, that is `spectral_scale * W`. `W_in` is
    (nodes × inputs), `bias` (nodes,) and `leak` (nodes,) with every rate in 0..1.

    Raises `ConfigurationError` for shapes that do not fit together, values that are not finite, and leak
    rates outside 0..1. Anything array-like is accepted; scipy's sparse formats become CSR, a scalar bias
    or leak is repeated for every node.
    """

    W: Matrix
    W_in: FloatArray
    bias: FloatArray
    leak: FloatArray
    spectral_scale: float = 1.0

    def __post_init__(self) -> None:
        W = _recurrent_matrix(self.W)
        nodes = int(W.shape[0])
        W_in = _real_array("W_in", self.W_in)
        if W_in.ndim != 2 or W_in.shape[0] != nodes:
            raise ConfigurationError(
                f"W_in must have the shape (nodes, inputs) = ({nodes}, inputs), it has {W_in.shape}"
            )
        leak = _per_node("leak", self.leak, nodes)
        if leak.min() < 0 or leak.max() > 1:
            raise ConfigurationError(f"leak rates must lie in 0..1, these reach from {leak.min():g} to {leak.max():g}")
        scale = float(self.spectral_scale)
        if not np.isfinite(scale):
            raise ConfigurationError(f"spectral_scale must be a finite number, it is {scale}")
        for name, value in (
            ("W", W),
            ("W_in", W_in),
            ("bias", _per_node("bias", self.bias, nodes)),
            ("leak", leak),
            ("spectral_scale", scale),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_arrays(
        cls,
        W: Any,
        W_in: ArrayLike,
        bias: ArrayLike = 0.0,
        leak: ArrayLike = 1.0,
        *,
        spectral_radius: float | None = None,
    ) -> EsnWeights:
        """Weights from a user's own arrays, kept in the storage they came in.

        `W` (nodes × nodes) dense or scipy sparse, `W_in` (nodes × inputs), `bias` and `leak` scalar or
        (nodes,). With `spectral_radius` the recurrent matrix is scaled to it, else it is used as it is.
        Raises `ConfigurationError` as the class does, and where W has no spectral radius to scale.
        """
        W = _recurrent_matrix(W)
        scale = 1.0 if spectral_radius is None else _spectral_scale(W, spectral_radius)
        return cls(W, np.asarray(W_in), np.asarray(bias), np.asarray(leak), scale)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.W.shape[0])

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return int(self.W_in.shape[1])

    def recurrent(self) -> Matrix:
        """The W of the equation, (nodes × nodes) float64: the stored matrix times its spectral scale."""
        return self.W if self.spectral_scale == 1.0 else self.W * self.spectral_scale

    def digest(self) -> str:
        """Hexadecimal sha256 over names, types, shapes and bytes of everything that `save` stores."""
        digest = hashlib.sha256(f"{_FORMAT} {_VERSION}\n".encode())
        for name, array in sorted(self._arrays().items()):
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
            digest.update(little.data)
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; a CSR matrix is stored as its three arrays."""
        metadata = {
            "format": _FORMAT,
            "version": _VERSION,
            "nodes": str(self.nodes),
            "inputs": str(self.inputs),
            "storage": "csr" if isinstance(self.W, csr_array) else "dense",
        }
        with replacing(path) as partial:
            save_file(self._arrays(), partial, metadata=metadata)

    @classmethod
    def load(cls, path: str | Path) -> EsnWeights:
        """Read what `save` wrote, bit for bit.

        Raises `ConfigurationError` where the file is missing, is not a weights file of a known version,
        or holds arrays that do not fit together.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, TypeError) as error:
            raise ConfigurationError(f"{path}: cannot be read as a weights file: {error}") from error
        if metadata.get("format") != _FORMAT or metadata.get("version") != _VERSION:
            raise ConfigurationError(
                f"{path}: not a weights file of version {_VERSION}: its metadata says "
                f"format={metadata.get('format')!r}, version={metadata.get('version')!r}"
            )
        try:
            if metadata.get("storage") == "csr":
                nodes = int(metadata["nodes"])
                W = csr_array((arrays["W.data"], arrays["W.indices"], arrays["W.indptr"]), shape=(nodes, nodes))
            else:
                W = arrays["W"]
            return cls(W, arrays["W_in"], arrays["bias"], arrays["leak"], float(arrays["spectral_scale"][()]))
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigurationError(f"{path}: damaged weights file: {error}") from error

    def _arrays(self) -> dict[str, NDArray[Any]]:
        W = self.W
        recurrent = (
            {"W.data": W.data, "W.indices": W.indices, "W.indptr": W.indptr} if isinstance(W, csr_array) else {"W": W}
        )
        return {
            **recurrent,
            "W_in": self.W_in,
            "bias": self.bias,
            "leak": self.leak,
            "spectral_scale": np.array(self.spectral_scale),
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
    at_least(nodes=(nodes, 1))
    if inputs < 0:
        raise ConfigurationError(f"inputs must not be negative, it is {inputs}")
    topology = as_topology(topology)
    given = {
        "connectivity": connectivity,
        "connections_per_node": connections_per_node,
        "distribution": distribution,
        "spectral_radius": spectral_radius,
    }
    topology.check(nodes, given)
    if connectivity is not None and connections_per_node is not None:
        raise ConfigurationError("give connectivity or connections_per_node, not both")
    if connections_per_node is not None and not 0 < connections_per_node <= nodes:
        raise ConfigurationError(
            f"connections_per_node must lie in 1..{nodes} (the nodes), it is {connections_per_node}"
        )
    scaling = np.asarray(input_scaling, np.float64)
    if scaling.shape not in ((), (inputs,)):
        raise ConfigurationError(
            f"input_scaling must be one number or one per input ({inputs}), its shape is {scaling.shape}"
        )
    W = _draw_recurrent(
        nodes,
        topology,
        _stream(seed, "recurrent links"),
        _stream(seed, "recurrent values"),
        distribution or "uniform",
        _probability("connectivity", 1.0 if connectivity is None else connectivity),
        connections_per_node,
    )
    W_in = _draw_matrix(
        (nodes, inputs),
        _stream(seed, "input links"),
        _stream(seed, "input values"),
        input_distribution,
        _probability("input_connectivity", input_connectivity),
    )
    W_in = W_in.toarray() if isinstance(W_in, csr_array) else W_in
    if isinstance(leak, int | float):
        rates = np.full(nodes, float(leak))
    else:
        low, high = leak
        if low > high:
            raise ConfigurationError(f"the leak range must rise, it is ({low:g}, {high:g})")
        rates = low + (high - low) * _stream(seed, "leak").random(nodes)
    return EsnWeights(
        W,
        W_in * scaling,
        _draw_values(_stream(seed, "bias"), nodes, bias_distribution) * bias_scaling,
        rates,
        1.0 if spectral_radius is None else _spectral_scale(W, spectral_radius, topology),
    )


def dense_is_faster(nodes: int, nonzeros: int) -> bool:
    """Whether a recurrent matrix of that many nonzeros is better stored dense than as CSR.

    Measured on the time loop of `esn/cpu_loop.py`, one sequence: a streamed dense weight costs a tenth to an eighth
    of a gathered one while the matrix stays in a core's cache, about a fifth beyond it.
    """
    return nonzeros >= (0.1 if nodes <= 500 else 0.2) * nodes * nodes


def spectral_radius(W: Matrix) -> float:
    """Largest absolute eigenvalue of a square matrix, dense or CSR, within about 0.02 %.

    LAPACK below 1000 nodes. Above it the product of the weights around each loop where no two loops meet, as in a
    ring, else ARPACK (Lehoucq, Sorensen & Yang 1998) with a wide Krylov space and a fixed start; where that does not
    converge, LAPACK up to 3000 nodes and `block_power_radius` (within about 1 %) beyond. 65,536 nodes with 32 links
    each take seconds.
    Raises `ConfigurationError` for a zero or nilpotent matrix: scaling cannot give it a radius.
    """
    links = csr_array(W)
    if _is_acyclic(links):
        raise ConfigurationError(
            "the recurrent matrix has the spectral radius 0 (no link, or no closed loop among its links): "
            "no scaling can change that; use more links or another seed, or leave spectral_radius out"
        )
    nodes = W.shape[0]
    loops = None if nodes < _DENSE_SPECTRUM_BELOW else _loops_radius(links)
    del links
    if nodes < _DENSE_SPECTRUM_BELOW:
        radius = _dense_radius(W)
    elif loops is not None:
        radius = loops
    else:
        # A start vector of its own keeps ARPACK from drawing one.
        start = np.random.default_rng(0).random(nodes) - 0.5
        try:
            values = eigs(
                W, k=1, which="LM", ncv=100, maxiter=_ARPACK_RESTARTS, tol=_ARPACK_TOLERANCE, v0=start,
                return_eigenvectors=False,
            )  # fmt: skip
            radius = float(np.abs(values).max())
        except ArpackError:
            radius = _dense_radius(W) if nodes <= _DENSE_SPECTRUM_UP_TO else block_power_radius(W)
    # Numerically nilpotent: rounding alone gives such a matrix eigenvalues near the root of the precision.
    if not radius > 1e-7 * float(abs(W).max()):
        raise ConfigurationError(
            f"the recurrent matrix is nilpotent to machine precision (spectral radius {radius:.1e}): "
            "no scaling can change that; use more links or another seed, or leave spectral_radius out"
        )
    return radius


def block_power_radius(W: Matrix, *, width: int = 8, settle: int = 50, measure: int = 100) -> float:
    """Spectral radius from the growth of a block of `width` vectors under repeated multiplication by W.

    The mean growth per multiplication over `measure` of them, after `settle`, tends to the radius (Gelfand's
    formula without the transient). Within about 1 %, whatever the spectrum: eigenvalues crowd at the
    rim of a random matrix's spectrum, so that single ones cannot be told apart in reasonable time.
    """
    block = np.random.default_rng(0).random((W.shape[0], width)) - 0.5
    growth = 0.0
    for step in range(settle + measure):
        block = W @ block
        norm = float(np.linalg.norm(block))
        if norm == 0.0:
            return 0.0
        block /= norm
        if step >= settle:
            growth += float(np.log(norm))
    return float(np.exp(growth / measure))


def perron_root(W: Matrix) -> float:
    """Spectral radius of a nonnegative matrix whose graph is strongly connected, dense or CSR, to 1e-10.

    Noda 1971: inverse iteration shifted to the largest of (W x)ᵢ / xᵢ, which with the smallest encloses the
    radius (Collatz and Wielandt) and falls to it quadratically, however close the other eigenvalues are. For
    matrices whose factorisation stays sparse, such as a cycle with jumps.
    """
    x = np.ones(W.shape[0])
    last = np.inf
    while True:
        # The vector may fade to nothing along a path; there it has no digits left to compare.
        alive = x > 1e-290
        growth = (W @ x)[alive] / x[alive]
        highest = float(growth.max())
        # It falls until rounding stops it.
        if highest - growth.min() <= 1e-10 * highest or highest >= last:
            return highest
        last = highest
        # A little above it: at the radius itself there is nothing to invert.
        x = splu(csc_array(highest * (1 + 1e-13) * eye_array(W.shape[0]) - W)).solve(x)
        x /= x.max()


def _spectral_scale(W: Matrix, target: float, topology: Topology | None = None) -> float:
    if not target >= 0:
        raise ConfigurationError(f"spectral_radius must not be negative, it is {target}")
    if topology is not None and topology.radius is not None:
        return target / topology.radius
    radius = perron_root(W) if isinstance(topology, CycleJumps) else spectral_radius(W)
    # Nine digits: finer ones are rounding of the eigenvalue solver and would differ between machines.
    return float(f"{target / radius:.8e}")


def _is_acyclic(W: Matrix) -> bool:
    """Whether the graph of the nonzeros has no closed loop: exactly then every such matrix is nilpotent.

    Eigenvalue solvers cannot tell: rounding gives a permuted delay line of 100 nodes radii near 0.7.
    """
    if W.diagonal().any():
        return False
    parts, _ = connected_components(W, connection="strong")
    return parts == W.shape[0]


def _dense_radius(W: Matrix) -> float:
    return float(np.abs(np.linalg.eigvals(W.toarray() if issparse(W) else W)).max())


def _loops_radius(W: Matrix) -> float | None:
    """The spectral radius, exactly, of a matrix whose closed loops share no node; None for any other matrix."""
    parts, part = connected_components(W, connection="strong")
    if parts == 1 and W.nnz > W.shape[0]:
        return None
    links = coo_array(W)
    rows, columns = links.coords
    inside = part[rows] == part[columns]
    if np.bincount(rows[inside], minlength=1).max() > 1:
        return None
    # One link per node: each part is one loop, whose eigenvalues are the roots of the product of its weights.
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.abs(links.data[inside]))
    of = part[rows[inside]]
    sizes = np.bincount(of, minlength=parts)
    means = np.bincount(of, logarithms, minlength=parts)[sizes > 0] / sizes[sizes > 0]
    return float(np.exp(means.max()))


def _stream(seed: int | np.random.SeedSequence, name: str) -> np.random.Generator:
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    key = (*root.spawn_key, _STREAMS[name])
    # PCG64 by name: default_rng may come to mean another generator.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(root.entropy, spawn_key=key)))


def _draw_recurrent(
    nodes: int,
    topology: Topology,
    links: np.random.Generator,
    values: np.random.Generator,
    distribution: Distribution,
    probability: float,
    per_row: int | None,
) -> Matrix:
    shape = (nodes, nodes)
    if isinstance(topology, Random):
        return _draw_matrix(shape, links, values, distribution, probability, per_row)
    if isinstance(topology, Orthogonal):
        return topology.matrix(nodes, values)
    if isinstance(topology, Block):
        positions, fixed = _draw_blocks(nodes, topology, links, probability, per_row), None
    else:
        positions, fixed = topology.links(nodes, links)
    drawn = _draw_values(values, len(positions), distribution) if fixed is None else fixed
    return _matrix(shape, positions, drawn)


def _draw_matrix(
    shape: tuple[int, int],
    links: np.random.Generator,
    values: np.random.Generator,
    distribution: Distribution,
    probability: float,
    per_row: int | None = None,
) -> Matrix:
    if per_row is None and probability == 1.0:
        return _draw_values(values, shape[0] * shape[1], distribution).reshape(shape)
    positions = _draw_links(shape, links, probability, per_row)
    return _matrix(shape, positions, _draw_values(values, len(positions), distribution))


def _draw_links(
    shape: tuple[int, int], links: np.random.Generator, probability: float, per_row: int | None
) -> NDArray[np.int64]:
    """Rising positions in the flattened matrix."""
    rows, columns = shape
    if per_row is None and probability == 1.0:
        return np.arange(rows * columns)
    counts = (links.binomial(columns, probability, size=rows) if per_row is None else np.full(rows, per_row)).astype(
        np.int64
    )
    chosen = [
        links.choice(columns, count, replace=False, shuffle=False) if count else np.empty(0, np.int64)
        for count in counts.tolist()
    ]
    flat = np.concatenate(chosen) + np.repeat(np.arange(rows) * columns, counts)
    flat.sort()
    return flat


def _draw_blocks(
    nodes: int, topology: Block, links: np.random.Generator, probability: float, per_row: int | None
) -> NDArray[np.int64]:
    """Rising positions in the flattened matrix, those between blocks included."""
    parts = []
    for first, end in pairwise(topology.bounds(nodes).tolist()):
        size = end - first
        rows, columns = np.divmod(_draw_links((size, size), links, probability, per_row), size)
        parts.append((rows + first) * nodes + columns + first)
    return np.sort(np.concatenate([*parts, topology.between(nodes, links)]))


def _matrix(shape: tuple[int, int], positions: NDArray[np.int64], values: FloatArray) -> Matrix:
    """The matrix with those values at those rising positions, in the storage that the time loop is faster with."""
    rows, columns = shape
    if dense_is_faster(rows, len(positions)):
        dense = np.zeros(rows * columns)
        dense[positions] = values
        return dense.reshape(shape)
    indptr = np.searchsorted(positions, np.arange(rows + 1) * columns)
    return csr_array((values, positions % max(columns, 1), indptr), shape=shape)


def _draw_values(rng: np.random.Generator, count: int, distribution: Distribution) -> FloatArray:
    if distribution == "uniform":
        return 2.0 * rng.random(count) - 1.0
    if distribution == "normal":
        return rng.standard_normal(count)
    if distribution == "bernoulli":
        return rng.integers(0, 2, count) * np.float64(2.0) - 1.0
    raise ConfigurationError(
        f"unknown distribution {distribution!r}: choose one of {', '.join(get_args(Distribution))}"
    )


def _probability(name: str, value: float) -> float:
    if not 0.0 < value <= 1.0:
        raise ConfigurationError(f"{name} must lie in 0..1 (0 excluded), it is {value}")
    return float(value)


def _recurrent_matrix(W: Any) -> Matrix:
    matrix: Any
    if issparse(W):
        matrix = csr_array(W, dtype=np.float64, copy=True)
        # The kernels trust the indices, so they are looked at once, here.
        try:
            matrix.check_format(full_check=True)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"W is not a valid sparse matrix: {error}") from error
        matrix.sum_duplicates()
        # One index type wherever it suffices: a digest must not depend on who built the matrix.
        index = np.int32 if matrix.nnz < 2**31 else np.int64
        matrix.indices = matrix.indices.astype(index)
        matrix.indptr = matrix.indptr.astype(index)
        _check_finite("W", matrix.data)
    else:
        matrix = _real_array("W", W)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ConfigurationError(f"W must have the shape (nodes, nodes), it has {matrix.shape}")
    return matrix


def _real_array(name: str, value: Any) -> FloatArray:
    try:
        given = np.asarray(value)
        if np.iscomplexobj(given):
            raise TypeError("complex numbers")
        array: FloatArray = np.array(given, np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} must be an array of real numbers: {error}") from error
    _check_finite(name, array)
    return array


def _per_node(name: str, value: Any, nodes: int) -> FloatArray:
    array = _real_array(name, value)
    if array.shape not in ((), (nodes,)):
        raise ConfigurationError(
            f"{name} must be one number or one per node, shape ({nodes},); its shape is {array.shape}"
        )
    return np.ascontiguousarray(np.broadcast_to(array, (nodes,)))


def _check_finite(name: str, values: NDArray[Any]) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ConfigurationError(
            f"{name} holds {bad.size} value(s) that are not finite, the first at flat position {bad[0]}"
        )
