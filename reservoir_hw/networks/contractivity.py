"""When a gated echo state network forgets: contractivity of its state transition, and the norms it depends on.

Di Sarli, Gallicchio & Micheli 2022, section 5. The map τ(u, x) of eq. 6 is looked at on the states within ±1, which no
trajectory that begins there leaves. From eq. 11 on the paper bounds the derivative

    ∂τ/∂x = diag(1 - z) diag(1 - h²) W [diag(r) + diag(x ⊙ r ⊙ (1 - r)) W^r] + diag((x - h) ⊙ z ⊙ (1 - z)) W^z + diag(z)

by replacing each factor by the largest value that it could have, in spectral norms. It takes 1 for r(1 - r) and for
z(1 - z), which are at most 1/4, and 0 for the smallest z; `contractivity_bound` gives the bound as printed,
`lipschitz_bound` the one with the factors' actual limits, which is never larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import svds

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.networks.gated_weights import GatedWeights
from reservoir_hw.networks.spectral_radius import spectral_radius

# Below this many rows LAPACK's full decomposition is quick; beyond it the Krylov space holds this many vectors.
_DENSE_BELOW = 1000
_KRYLOV = 100


@dataclass(frozen=True)
class MatrixNorms:
    """Three sizes of a square matrix.

    A square matrix of independent entries has a spectral norm near twice its spectral radius and a Frobenius norm near
    √nodes times it. Table 4 of the paper prints Frobenius norms, the bounds need spectral ones.
    """

    spectral_radius: float
    spectral_norm: float
    frobenius_norm: float


@dataclass(frozen=True)
class Contractivity:
    """The three terms of eqs. 9 and 12, and what follows from their sum."""

    state_term: float
    """‖W‖ (1 + ‖W^r‖)"""
    update_term: float
    """2 ‖W^z‖"""
    z_max: float
    """The largest activation of the update gate."""

    @property
    def total(self) -> float:
        """The sum of the terms: the left side of eqs. 9 and 12, at least the Lipschitz constant of τ."""
        return self.state_term + self.update_term + self.z_max

    @property
    def contractive(self) -> bool:
        """Lemma 1 (eq. 9): with a sum below 1 the network is contractive and forgets. Sufficient, not necessary."""
        return self.total < 1.0

    @property
    def may_be_non_contractive(self) -> bool:
        """Proposition 1 (eq. 12): a network that is not contractive has a sum above 1. Necessary, not sufficient.

        The negation of Lemma 1 would only give "at least 1". The printed ">" is true all the same: at a sum of exactly
        1 the inequalities of eq. 11 still have room, because r and z stay inside (0, 1).
        """
        return self.total > 1.0


def contractivity_bound(norm_W: float, norm_Wr: float, norm_Wz: float, z_max: float) -> Contractivity:
    """The bound of Lemma 1 and Proposition 1 from the spectral norms of the recurrent matrices.

    Parameters
    ----------
    norm_W, norm_Wr, norm_Wz
        ‖W‖₂, ‖W^r‖₂ and ‖W^z‖₂: of the state, the reset gate and the update gate.
    z_max
        max_t ‖z(t)‖_∞. For a statement about all trajectories the z of every state and input counts
        (`update_gate_range`); the largest of one drive (`GatedEsn.gate_statistics`) speaks for that drive.

    Raises `ConfigurationError` for a negative norm and for z_max outside 0..1.
    """
    _check(norm_W, norm_Wr, norm_Wz, 0.0, z_max)
    return Contractivity(state_term=norm_W * (1.0 + norm_Wr), update_term=2.0 * norm_Wz, z_max=z_max)


def lipschitz_bound(norm_W: float, norm_Wr: float, norm_Wz: float, z_max: float, z_min: float = 0.0) -> float:
    """(1 - z_min) ‖W‖ (1 + ‖W^r‖ / 4) + ‖W^z‖ / 2 + z_max: a Lipschitz constant of τ, sharper than Lemma 1's.

    Eq. 11 with the limits that the factors have: r(1 - r) and z(1 - z) are at most 1/4, |x - h| at most 2, 1 - z at
    most 1 - z_min. Two states that are driven alike come nearer at least by this factor at each step.
    Raises `ConfigurationError` for a negative norm and for z_min, z_max not ordered within 0..1.
    """
    _check(norm_W, norm_Wr, norm_Wz, z_min, z_max)
    return (1.0 - z_min) * norm_W * (1.0 + norm_Wr / 4.0) + norm_Wz / 2.0 + z_max


def recurrent_norms(weights: GatedWeights) -> dict[str, MatrixNorms]:
    """The norms of Table 4: of the recurrent matrices of "state", "reset" and "update"."""
    return {name: matrix_norms(part.recurrent()) for name, part in weights.parts().items()}


def matrix_norms(W: Any) -> MatrixNorms:
    """Spectral radius (within 0.02 %), spectral norm and Frobenius norm of a square matrix, dense or sparse."""
    entries = W.data if issparse(W) else np.asarray(W, np.float64)
    if not entries.any():
        return MatrixNorms(0.0, 0.0, 0.0)
    try:
        radius = spectral_radius(W)
    except ConfigurationError:
        # What it refuses are nilpotent matrices.
        radius = 0.0
    return MatrixNorms(radius, _spectral_norm(W), float(np.sqrt(np.square(entries).sum())))


def update_gate_range(weights: GatedWeights, largest_input: float | Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest z that inputs |u_k| <= `largest_input` and states within ±1 can cause.

    `largest_input` is one number, or one per input. Raises `ConfigurationError` for another number of them.
    """
    largest = np.abs(np.asarray(largest_input, np.float64))
    if largest.shape not in ((), (weights.inputs,)):
        raise ConfigurationError(
            f"largest_input must be one number or one per input ({weights.inputs}), its shape is {largest.shape}"
        )
    part = weights.update
    recurrent = np.asarray(abs(part.recurrent()).sum(axis=1)).ravel()
    reach = (np.abs(part.W_in) * largest).sum(axis=1) + recurrent
    lowest, highest = float((part.bias - reach).min()), float((part.bias + reach).max())
    return 0.5 + 0.5 * float(np.tanh(0.5 * lowest)), 0.5 + 0.5 * float(np.tanh(0.5 * highest))


def _spectral_norm(W: Any) -> float:
    if W.shape[0] < _DENSE_BELOW:
        return float(np.linalg.norm(W.toarray() if issparse(W) else W, 2))
    # A start vector of its own keeps ARPACK from drawing one.
    start = np.random.default_rng(0).random(W.shape[0]) - 0.5
    values: Any = svds(W, k=1, ncv=_KRYLOV, v0=start, return_singular_vectors=False)
    return float(values[0])


def _check(norm_W: float, norm_Wr: float, norm_Wz: float, z_min: float, z_max: float) -> None:
    for name, value in (("‖W‖", norm_W), ("‖W^r‖", norm_Wr), ("‖W^z‖", norm_Wz)):
        if not value >= 0.0:
            raise ConfigurationError(f"{name} must not be negative, it is {value}")
    if not 0.0 <= z_min <= z_max <= 1.0:
        raise ConfigurationError(f"0 <= z_min <= z_max <= 1 must hold, z_min is {z_min} and z_max {z_max}")
