"""Weights of the gated echo state network: three echo state networks' worth of matrices, each with its own scale."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_array

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replacing
from reservoir_hw.networks.weights import Distribution, EsnWeights, FloatArray, draw_weights

_FORMAT = "reservoir_hw.gated_esn_weights"
_VERSION = "1"

# The state's matrices are those of a plain network of the same seed; the gates have streams of their own.
_GATE_STREAMS = {"reset": (1,), "update": (2,)}


@dataclass(frozen=True, eq=False)
class GatedWeights:
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

    def digest(self) -> str:
        """Hexadecimal sha256 over the digests of the three parts."""
        digest = hashlib.sha256(f"{_FORMAT} {_VERSION}\n".encode())
        for name, part in self.parts().items():
            digest.update(f"{name} {part.digest()}\n".encode())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; a CSR matrix is stored as its three arrays."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, part in self.parts().items():
            W = part.W
            if isinstance(W, csr_array):
                arrays |= {f"{name}.W.data": W.data, f"{name}.W.indices": W.indices, f"{name}.W.indptr": W.indptr}
            else:
                arrays[f"{name}.W"] = W
            arrays[f"{name}.W_in"] = part.W_in
            arrays[f"{name}.bias"] = part.bias
            arrays[f"{name}.spectral_scale"] = np.array(part.spectral_scale)
        with replacing(path) as partial:
            save_file(arrays, partial, metadata={"format": _FORMAT, "version": _VERSION})

    @classmethod
    def load(cls, path: str | Path) -> GatedWeights:
        """Read what `save` wrote, bit for bit.

        Raises `ConfigurationError` where the file is missing, is not a weights file of a known version, or holds
        arrays that do not fit together.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, TypeError) as error:
            raise ConfigurationError(f"{path}: cannot be read as a weights file: {error}") from error
        if metadata.get("format") != _FORMAT or metadata.get("version") != _VERSION:
            raise ConfigurationError(
                f"{path}: not a weights file of a gated_esn, version {_VERSION}: its metadata says "
                f"format={metadata.get('format')!r}, version={metadata.get('version')!r}"
            )
        try:
            return cls(**{name: _loaded(arrays, name) for name in _PARTS})
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigurationError(f"{path}: damaged weights file: {error}") from error


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
    distribution: Distribution = "uniform",
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

    def draw(key: tuple[int, ...], radius: float | None, scaling: float | Sequence[float], bias: float) -> EsnWeights:
        return draw_weights(
            nodes,
            inputs,
            seed=np.random.SeedSequence(seed, spawn_key=key),
            spectral_radius=radius,
            connectivity=connectivity,
            connections_per_node=connections_per_node,
            distribution=distribution,
            input_connectivity=input_connectivity,
            input_distribution=input_distribution,
            input_scaling=scaling,
            bias_scaling=bias,
        )

    def gate(name: str, radius: float | None, scaling: float | Sequence[float], bias: float) -> EsnWeights:
        drawn = draw(_GATE_STREAMS[name], radius, scaling, 0.0)
        return EsnWeights(drawn.W, drawn.W_in, np.full(nodes, bias), drawn.leak, drawn.spectral_scale)

    return GatedWeights(
        state=draw((), spectral_radius, input_scaling, bias_scaling),
        reset=gate("reset", reset_spectral_radius, reset_input_scaling, reset_bias),
        update=gate("update", update_spectral_radius, update_input_scaling, update_bias),
    )


def _gate(weights: EsnWeights, u: FloatArray, previous: FloatArray) -> FloatArray:
    rows = previous.reshape(-1, weights.nodes)
    recurrent = (weights.recurrent() @ rows.T).T.reshape(previous.shape)
    # σ by tanh, which does not overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * (u @ weights.W_in.T + recurrent + weights.bias))


def _loaded(arrays: Mapping[str, NDArray[Any]], part: str) -> EsnWeights:
    W: Any = arrays.get(f"{part}.W")
    if W is None:
        nodes = len(arrays[f"{part}.W_in"])
        stored = (arrays[f"{part}.W.data"], arrays[f"{part}.W.indices"], arrays[f"{part}.W.indptr"])
        W = csr_array(stored, shape=(nodes, nodes))
    scale = float(arrays[f"{part}.spectral_scale"][()])
    return EsnWeights(W, arrays[f"{part}.W_in"], arrays[f"{part}.bias"], np.asarray(1.0), scale)
