"""Consistency: how alike the responses to repeated drives are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.measures._arrays import deviations, refuse_still
from reservoir_hw.measures._measured import Measured
from reservoir_hw.measures._repeats import checked_repeats, share_interval, shared_power
from reservoir_hw.measures._statistics import bounded, check_confidence, remark


@dataclass(frozen=True, eq=False, kw_only=True)
class Consistency(Measured):
    """`value` is the mean of `nodes` (nodes,) over the nodes that move; a node that does not has NaN.

    `profile` (rank,), falling, is the consistency of the orthonormal directions of the states, each from about 0
    (unrelated) to 1 (fully reproduced), and `capacity` its sum.
    """

    nodes: np.ndarray
    profile: np.ndarray
    capacity: float


def consistency(states: Any, *, washout: int = 0, confidence: float = 0.95) -> Consistency:
    """Consistency of responses to the same drive: `states` (repeats, time, nodes).

    For each node the correlation over time between two responses, averaged over all pairs of repeats (Uchida,
    McAllister & Roy 2004). Each response has its own mean and variance taken out, so that an offset or gain that
    differs between repeats does not count: that is drift.

    The profile belongs to all nodes together (Lymburn et al. 2019; Jüngling, Lymburn & Small 2022): the eigenvalues
    γ² of C^(-1/2) S C^(-1/2), with the covariance C of the states and the covariance S between the states of different
    repeats. Their sum, the consistency capacity, is the number of directions in which the device answers to its
    drive rather than to its noise or its own chaos; no memory or processing capacity can be larger.

    The interval is that of the jackknife over pieces of time, which are longer than the responses are correlated; a
    recording too short for that has none, from -1 to 1. Raises `ShapeError` for fewer than
    two repeats or too few steps, `InputRangeError` for NaN and if nothing moves, `ConfigurationError` for a washout
    that leaves nothing.
    """
    check_confidence(confidence)
    x = checked_repeats(states, washout)
    moved = deviations(x, axis=1)
    spread = moved.std(axis=1, keepdims=True)
    moving = (spread > 0).all(axis=(0, 1))
    refuse_still(moving)
    z = moved[:, :, moving] / spread[:, :, moving]
    common, power = shared_power(z)
    of_node = common.mean(axis=0)
    value = float(of_node.mean())
    influence = (common - of_node * power).mean(axis=1)
    interval = share_interval(z, lambda shared, whole: (shared / whole).mean(axis=1), influence, confidence)
    nodes = np.full(x.shape[2], np.nan)
    nodes[moving] = of_node
    profile = _profile(z)
    still = np.count_nonzero(~moving)
    notes = [
        f"Consistency capacity {profile.sum():.3g} of {len(profile)}.",
        f"{still} nodes do not move and are left out." if still else "",
        remark(interval),
    ]
    return Consistency(
        value=value,
        interval=bounded(interval, -1.0, 1.0),
        note=" ".join(filter(None, notes)),
        nodes=nodes,
        profile=profile,
        capacity=float(profile.sum()),
    )


def _profile(z: np.ndarray) -> np.ndarray:
    """Eigenvalues of the covariance between repeats in directions that are orthonormal over all repeats."""
    repeats, steps, nodes = z.shape
    _, singular, directions = np.linalg.svd(np.linalg.qr(z.reshape(-1, nodes), mode="r"))
    kept = singular > nodes * np.finfo(np.float64).eps * singular[0]
    q = z @ (directions[kept].T * ((repeats * steps) ** 0.5 / singular[kept]))
    total = q.sum(axis=0)
    # Over all repeats the covariance is 1, so the products within repeats sum up to `repeats` times the identity.
    between = (total.T @ total / steps - repeats * np.eye(q.shape[2])) / (repeats * (repeats - 1))
    return np.linalg.eigvalsh(between)[::-1]
