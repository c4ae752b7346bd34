"""The weights of echo state networks, gated or not: validated, scaled, saved and loaded."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import save_file

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import read_safetensors, write_safetensors
from reservoir_hw.core.validation import check_finite, number_in, real_array, whole_number
from reservoir_hw.networks.random_matrices import (
    Distribution,
    Entries,
    FloatArray,
    Matrix,
    draw_leak,
    draw_matrix,
    draw_values,
    scale_to,
    scipy_sparse,
)
from reservoir_hw.networks.random_matrices import spectral_radius as spectral_radius_of
from reservoir_hw.networks.topologies import Topology, as_topology

csr_array = scipy_sparse().csr_array


class StoredWeights(ABC):
    """Weights that a safetensors file can hold."""

    format: ClassVar[str]

    @classmethod
    def header(cls) -> dict[str, str]:
        """The metadata by which a file is known."""
        return {"format": cls.format, "version": "1"}

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; a CSR matrix is stored as its three arrays."""
        write_safetensors(path, save_file, self.stored(), self.header())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote, bit for bit.

        Raises `ConfigurationError` where the file is missing, is not a weights file of a known version, or holds arrays
        that do not fit together.
        """
        arrays, metadata = read_safetensors(path, "weights file")
        header = cls.header()
        found = {key: metadata.get(key) for key in header}
        if found != header:
            raise ConfigurationError(
                f"{path}: not a weights file of {', version '.join(header.values())}: its metadata says "
                + ", ".join(f"{key}={value!r}" for key, value in found.items())
            )
        try:
            return cls.from_stored(arrays)
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigurationError(f"{path}: damaged weights file: {error}") from error

    @abstractmethod
    def stored(self) -> dict[str, NDArray[Any]]:
        """The arrays that a file holds by their names."""

    @classmethod
    @abstractmethod
    def from_stored(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Weights from what `stored` gave. Raises `KeyError` and `ValueError` where that is incomplete."""


@dataclass(frozen=True, eq=False)
class EsnWeights(StoredWeights):
    """The weights of s_t = (1-a) ⊙ s_{t-1} + a ⊙ f(W s_{t-1} + W_in u_t + b) (Jaeger et al. 2007, eq. 1).

    All arrays are float64. `W` (nodes × nodes) is a dense array or a canonical `csr_array`, *before* its
    spectral scale: the equation's W is `recurrent()`, that is `spectral_scale * W`. `W_in` is
    (nodes × inputs), `bias` (nodes,) and `leak` (nodes,) with every rate in 0..1.

    Raises `ConfigurationError` for shapes that do not fit together, values that are not finite, and leak
    rates outside 0..1. Anything array-like is accepted; scipy's sparse formats become CSR, a scalar bias
    or leak is repeated for every node.
    """

    format = "reservoir_hw.esn_weights"

    W: Matrix
    W_in: FloatArray
    bias: FloatArray
    leak: FloatArray
    spectral_scale: float = 1.0

    def __post_init__(self) -> None:
        W = _recurrent_matrix(self.W)
        nodes = int(W.shape[0])
        W_in = real_array("W_in", self.W_in)
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
        bias = _per_node("bias", self.bias, nodes)
        checked = {"W": W, "W_in": W_in, "bias": bias, "leak": leak, "spectral_scale": scale}
        for name, value in checked.items():
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
        scale = 1.0
        if spectral_radius is not None:
            W = _recurrent_matrix(W)
            scale = scale_to(number_in("spectral_radius", spectral_radius, 0.0, np.inf), spectral_radius_of(W))
        return cls(W, np.asarray(W_in), np.asarray(bias), np.asarray(leak), scale)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.W.shape[0])

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return int(self.W_in.shape[1])

    def parts(self) -> dict[str, EsnWeights]:
        """The weights that have a recurrent matrix each, as those of a gated network have three: these alone."""
        return {"state": self}

    def recurrent(self) -> Matrix:
        """The W of the equation, (nodes × nodes) float64: the stored matrix times its spectral scale."""
        return self.W if self.spectral_scale == 1.0 else self.W * self.spectral_scale

    def rounded(self, rounding: Callable[[FloatArray], FloatArray]) -> EsnWeights:
        """With every number of W, W_in and bias rounded; dense stays dense, and CSR stays CSR."""
        W = self.recurrent().copy()
        if isinstance(W, np.ndarray):
            W = rounding(W)
        else:
            W.data = rounding(W.data)
        return EsnWeights.from_arrays(W, rounding(self.W_in), rounding(self.bias), self.leak)

    def digest(self) -> str:
        """Hexadecimal sha256 over names, types, shapes and bytes of everything that `save` stores."""
        digest = hashlib.sha256(f"{' '.join(self.header().values())}\n".encode())
        for name, array in sorted(self.stored().items()):
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
            digest.update(little.data)
        return digest.hexdigest()

    @classmethod
    def from_stored(cls, arrays: Mapping[str, NDArray[Any]]) -> EsnWeights:
        """Weights from what `stored` gave. Raises `KeyError` and `ValueError` where that is incomplete."""
        if "W" in arrays:
            W = arrays["W"]
        else:
            nodes = len(arrays["W_in"])
            W = csr_array((arrays["W.data"], arrays["W.indices"], arrays["W.indptr"]), shape=(nodes, nodes))
        return cls(W, arrays["W_in"], arrays["bias"], arrays["leak"], float(arrays["spectral_scale"][()]))

    def stored(self) -> dict[str, NDArray[Any]]:
        """The arrays that a file holds by their names; a CSR matrix is its three arrays."""
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


def _recurrent_matrix(W: Any) -> Matrix:
    matrix: Any
    if scipy_sparse().issparse(W):
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
        check_finite("W", matrix.data)
    else:
        matrix = real_array("W", W)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ConfigurationError(f"W must have the shape (nodes, nodes), it has {matrix.shape}")
    return matrix


def _per_node(name: str, value: Any, nodes: int) -> FloatArray:
    array = real_array(name, value)
    if array.shape not in ((), (nodes,)):
        raise ConfigurationError(
            f"{name} must be one number or one per node, shape ({nodes},); its shape is {array.shape}"
        )
    return np.ascontiguousarray(np.broadcast_to(array, (nodes,)))


# ---- Draws the weights of an echo state network; the drawn numbers come from numpy Generators alone.


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
    weight_distribution: Distribution | None = None,
    input_connectivity: float = 1.0,
    input_distribution: Distribution = "uniform",
    input_scaling: float | Sequence[float] = 1.0,
    bias_scaling: float = 0.0,
    leak_rate: float | tuple[float, float] = 1.0,
) -> EsnWeights:
    """Draw the weights of an echo state network; the same seed gives the same numbers on every machine.

    `topology` says which nodes are linked: a name of `topologies.py` or one of its objects, such as
    `CycleJumps(jump=7)`. For random and block ones `connectivity` is the probability of each recurrent weight
    being nonzero (all of them if neither it nor `connections_per_node` is given), `connections_per_node` the
    exact number of nonzeros in each row.
    `weight_distribution` is that of the recurrent weights which the topology does not fix: `uniform` on -1..1 unless
    given, `normal` with unit variance, `bernoulli` a random sign. The recurrent matrix is scaled to
    `spectral_radius` (None: left as drawn; so it must be for a delay line, whose spectral radius is 0), input
    weights are multiplied by `input_scaling` (one number, or one per input), biases by `bias_scaling`. `leak_rate` is
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
        "weight_distribution": weight_distribution,
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
            weight_distribution or "uniform",
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
        draw_values(_stream(seed, "bias"), nodes, "uniform") * bias_scaling,
        np.asarray(draw_leak(leak_rate, nodes, _stream(seed, "leak"))),
        1.0 if spectral_radius is None else topology.spectral_scale(W, spectral_radius),
    )


def _stream(seed: int | np.random.SeedSequence, name: str) -> np.random.Generator:
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    key = (*root.spawn_key, _STREAMS[name])
    # PCG64 by name: default_rng may come to mean another generator.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(root.entropy, spawn_key=key)))


# ---- Weights of the gated echo state network: three echo state networks' worth of matrices, each with its own scale.


@dataclass(frozen=True, eq=False)
class GatedWeights(StoredWeights):
    """The weights of the gated echo state network (Di Sarli, Gallicchio & Micheli 2022, eq. 6).

    r_t = σ(W^r_in u_t + W^r x_{t-1} + b^r)
    z_t = σ(W^z_in u_t + W^z x_{t-1} + b^z)
    h_t = tanh(W_in u_t + W (r_t ⊙ x_{t-1}) + b)
    x_t = z_t ⊙ x_{t-1} + (1 - z_t) ⊙ h_t

    The reset gate acts before the recurrent product, and an update gate of 1 keeps the old state. The equation as
    printed has no biases; they are 0 unless given. `state` holds W, W_in and b, `reset` and `update` those of the
    gates: each an `EsnWeights` whose leak is 1.

    Raises `ConfigurationError` where the three are not for the same number of nodes and inputs, or one has a leak.
    """

    format = "reservoir_hw.gated_esn_weights"

    state: EsnWeights
    reset: EsnWeights
    update: EsnWeights

    def __post_init__(self) -> None:
        expected = (self.state.nodes, self.state.inputs)
        for name, part in self.parts().items():
            if (part.nodes, part.inputs) != expected:
                raise ConfigurationError(
                    f"the {name} weights are for {part.nodes} nodes and {part.inputs} inputs, those of the state for "
                    f"{expected[0]} and {expected[1]}"
                )
            if (part.leak != 1.0).any():
                raise ConfigurationError(f"the {name} weights have a leak; in a gated network the update gate is that")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> GatedWeights:
        """Weights from a user's own arrays, used as they are.

        `arrays` holds "state.W" (nodes × nodes, dense or scipy sparse), "state.W_in" (nodes × inputs), and "reset.W",
        "reset.W_in", "update.W", "update.W_in" likewise; if wanted "state.bias", "reset.bias" and "update.bias"
        (scalar or one per node), otherwise 0. Raises `ConfigurationError` for names other than these, and for arrays
        that `EsnWeights` refuses.
        """
        needed = {f"{part}.{array}" for part in _PARTS for array in ("W", "W_in")}
        known = needed | {f"{part}.bias" for part in _PARTS}
        if not needed <= set(arrays) <= known:
            problems = [f"{name} is missing" for name in sorted(needed - set(arrays))]
            problems += [f"{name} is unknown" for name in sorted(set(arrays) - known)]
            raise ConfigurationError(f"the weights of a gated_esn do not fit: {', '.join(problems)}")
        parts: dict[str, EsnWeights] = {}
        for part in _PARTS:
            bias = arrays.get(f"{part}.bias", 0.0)
            try:
                parts[part] = EsnWeights.from_arrays(arrays[f"{part}.W"], arrays[f"{part}.W_in"], bias)
            except ConfigurationError as error:
                raise ConfigurationError(f"the {part} weights of a gated_esn: {error}") from error
        return cls(**parts)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.state.nodes

    @property
    def inputs(self) -> int:
        """Number of input channels."""
        return self.state.inputs

    def parts(self) -> dict[str, EsnWeights]:
        """The weights of "state", "reset" and "update"."""
        return {name: getattr(self, name) for name in _PARTS}

    def gates(self, u: ArrayLike, previous: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """The activations (r_t, z_t) for inputs u_t (..., inputs) and states x_{t-1} (..., nodes), in float64."""
        u, previous = np.asarray(u, np.float64), np.asarray(previous, np.float64)
        return _gate(self.reset, u, previous), _gate(self.update, u, previous)

    def rounded(self, rounding: Callable[[FloatArray], FloatArray]) -> GatedWeights:
        """With every number of the three parts rounded, as `EsnWeights.rounded` does."""
        return GatedWeights(**{name: part.rounded(rounding) for name, part in self.parts().items()})

    def digest(self) -> str:
        """Hexadecimal sha256 over the digests of the three parts."""
        digest = hashlib.sha256(f"{' '.join(self.header().values())}\n".encode())
        for name, part in self.parts().items():
            digest.update(f"{name} {part.digest()}\n".encode())
        return digest.hexdigest()

    def stored(self) -> dict[str, NDArray[Any]]:
        """The arrays of the three parts; every leak is 1, and is not stored."""
        return {
            f"{name}.{array}": value
            for name, part in self.parts().items()
            for array, value in part.stored().items()
            if array != "leak"
        }

    @classmethod
    def from_stored(cls, arrays: Mapping[str, NDArray[Any]]) -> GatedWeights:
        """Weights from what `stored` gave."""
        return cls(**{name: _part(arrays, name) for name in _PARTS})


_PARTS = tuple(field.name for field in fields(GatedWeights))


def draw_gated_weights(
    nodes: int,
    inputs: int,
    *,
    seed: int,
    spectral_radius: float | None = 0.9,
    reset_spectral_radius: float | None = 0.9,
    update_spectral_radius: float | None = 0.9,
    connectivity: float | None = None,
    connections_per_node: int | None = None,
    weight_distribution: Distribution | None = None,
    input_connectivity: float = 1.0,
    input_distribution: Distribution = "uniform",
    input_scaling: float | Sequence[float] = 1.0,
    reset_input_scaling: float | Sequence[float] = 1.0,
    update_input_scaling: float | Sequence[float] = 1.0,
    bias_scaling: float = 0.0,
    reset_bias: float = 0.0,
    update_bias: float = 0.0,
) -> GatedWeights:
    """Draw the weights of a gated echo state network; the same seed gives the same numbers on every machine.

    Each recurrent matrix is scaled to its own spectral radius (0: no recurrence; None: as drawn) and each input matrix
    by its own factor, as in the paper's section 6.2, which draws uniformly on -1..1. Biases are 0 in eq. 6; those of
    the gates are given, the state's is drawn uniformly and multiplied by `bias_scaling`. The other options are those
    of `draw_weights`, whose W and W_in for the same seed are the state's.

    Raises `ConfigurationError` as `draw_weights` does.
    """
    draw = partial(
        draw_weights,
        nodes,
        inputs,
        connectivity=connectivity,
        connections_per_node=connections_per_node,
        weight_distribution=weight_distribution,
        input_connectivity=input_connectivity,
        input_distribution=input_distribution,
    )

    def gate(key: int, radius: float | None, scaling: float | Sequence[float], bias: float) -> EsnWeights:
        # The state's matrices are those of a plain network of the same seed; the gates have streams of their own.
        stream = np.random.SeedSequence(seed, spawn_key=(key,))
        drawn = draw(seed=stream, spectral_radius=radius, input_scaling=scaling)
        return EsnWeights(drawn.W, drawn.W_in, np.full(nodes, bias), drawn.leak, drawn.spectral_scale)

    return GatedWeights(
        state=draw(seed=seed, spectral_radius=spectral_radius, input_scaling=input_scaling, bias_scaling=bias_scaling),
        reset=gate(1, reset_spectral_radius, reset_input_scaling, reset_bias),
        update=gate(2, update_spectral_radius, update_input_scaling, update_bias),
    )


def _gate(weights: EsnWeights, u: FloatArray, previous: FloatArray) -> FloatArray:
    rows = previous.reshape(-1, weights.nodes)
    recurrent = (weights.recurrent() @ rows.T).T.reshape(previous.shape)
    # σ by tanh, which does not overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * (u @ weights.W_in.T + recurrent + weights.bias))


def _part(arrays: Mapping[str, NDArray[Any]], part: str) -> EsnWeights:
    stored = {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}
    return EsnWeights.from_stored({**stored, "leak": np.asarray(1.0)})
