"""Weights of the gated echo state network: three echo state networks' worth of matrices, each with its own scale."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.networks.random_matrices import FloatArray
from reservoir_hw.networks.weights import EsnWeights, StoredWeights, draw_weights


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
    input_scaling: float | Sequence[float] = 1.0,
    reset_input_scaling: float | Sequence[float] = 1.0,
    update_input_scaling: float | Sequence[float] = 1.0,
    bias_scaling: float = 0.0,
    reset_bias: float = 0.0,
    update_bias: float = 0.0,
    **options: Any,
) -> GatedWeights:
    """Draw the weights of a gated echo state network; the same seed gives the same numbers on every machine.

    Each recurrent matrix is scaled to its own spectral radius (0: no recurrence; None: as drawn) and each input matrix
    by its own factor, as in the paper's section 6.2, which draws uniformly on -1..1. Biases are 0 in eq. 6; those of
    the gates are given, the state's is drawn uniformly and multiplied by `bias_scaling`. `options` are connectivity,
    connections_per_node, weight_distribution, input_connectivity and input_distribution of `draw_weights`, whose W and
    W_in for the same seed are the state's.

    Raises `ConfigurationError` as `draw_weights` does.
    """
    draw = partial(draw_weights, nodes, inputs, **options)

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
