"""What responses to the same drive have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ShapeError
from reservoir_hw.core.statistics import jackknife_error
from reservoir_hw.measures._measured import (
    BATCHES,
    FEWEST,
    Interval,
    Measured,
    after_washout,
    bounded,
    checked,
    correlation_times,
    deviations,
    independent_pieces,
    no_interval,
    refuse_still,
    remark,
    require_steps,
    t_interval,
)

# Nodes that are looked at for the time over which responses are correlated.
_NODES = 100

# Correlation times of the responses in a piece: their means and variances must be known, too.
_SPAN = 6


def checked_repeats(states: Any, washout: int) -> np.ndarray:
    """States of repeated drives (repeats, time, nodes) in float64, without the washout; at least two repeats."""
    array = checked(states, ("repeats", "time", "nodes"))
    if len(array) < 2:
        raise ShapeError("one drive alone tells nothing about repetition: drive the device with the same inputs again")
    return after_washout(array, washout, axis=1)


def shared_power(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What two repeats share and what each has, (time, nodes) each, from deviations (repeats, time, nodes).

    The mean over pairs of repeats of their product, and the mean square.
    """
    repeats = len(x)
    squares = (x**2).sum(axis=0)
    return (x.sum(axis=0) ** 2 - squares) / (repeats * (repeats - 1)), squares / repeats


def share_interval(
    x: np.ndarray,
    share: Callable[[np.ndarray, np.ndarray], np.ndarray],
    influence: np.ndarray,
) -> Interval:
    """Interval of a share of what is common in what there is, by the jackknife over pieces of time (Quenouille 1956).

    Parameters
    ----------
    x
        Deviations of the responses from their means over time, (repeats, time, nodes).
    share
        From the common and the whole power of each node, (pieces, nodes) each, to (pieces,).
    influence
        (time,): by how much each step moves the share, but for a factor.

    Each piece is several times as long as the times over which the influence and the responses are correlated. The
    jackknife also takes off what the means that were subtracted hide of slow responses. With fewer than `FEWEST`
    pieces the interval is infinite. Raises `ShapeError` for fewer than two steps for each of `BATCHES` pieces.
    """
    steps = x.shape[1]
    require_steps(steps)
    response = x.mean(axis=0)
    times = [correlation_times(response[:, [node]])[0] for node in range(0, x.shape[2], -(-x.shape[2] // _NODES))]
    pieces = min(int(independent_pieces(influence[:, None], BATCHES)[0]), int(steps / (_SPAN * np.mean(times))))
    if pieces < FEWEST:
        return no_interval()
    edges = np.linspace(0, steps, pieces + 1).astype(int)
    left = (steps - np.diff(edges))[:, None]
    common, power = (_without(part, edges) / left for part in shared_power(x))
    offsets = shared_power(_without(x, edges) / left)
    value = share(*(part.mean(axis=0)[None] for part in shared_power(x)))[0]
    without = share(common - offsets[0], power - offsets[1])
    error = jackknife_error(without)
    centre = float(pieces * value - (pieces - 1) * without.mean())
    return t_interval(centre, error, pieces - 1, f"jackknife over {pieces} pieces of time, Student's t")


def _without(series: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sums over time without one of the pieces that begin at `edges`: (..., time, nodes) -> (..., pieces, nodes)."""
    sums = np.add.reduceat(series, edges[:-1], axis=-2)
    return sums.sum(axis=-2, keepdims=True) - sums


# ---- Signal-to-noise ratio of each node, from repeated drives.


@dataclass(frozen=True, eq=False, kw_only=True)
class SignalToNoise(Measured):
    """`value` and `nodes` (nodes,) in dB; NaN for a node that does not move, infinite without noise or without signal.

    `signal` and `noise` (nodes,) are standard deviations in units of the state; `value` is the ratio of their summed
    squares.
    """

    nodes: np.ndarray
    signal: np.ndarray
    noise: np.ndarray


def signal_to_noise(states: Any, *, washout: int = 0) -> SignalToNoise:
    """Signal-to-noise ratio from responses to the same drive: `states` (repeats, time, nodes).

    Signal is what two repeats have in common: the mean product of their deviations from their own means over time.
    Noise is the rest of the variance (the two-way layout without interaction; Searle, Casella & McCulloch 1992,
    section 4.5). An offset that differs between repeats is in neither; it is drift. A chaotic device has its own
    dynamics in the noise.

    The interval is that of the share of the signal in the whole variance, from the jackknife over pieces of time.
    Raises as `consistency` does.
    """
    x = checked_repeats(states, washout)
    steps = x.shape[1]
    moved = deviations(x, axis=1)
    moving = (moved != 0).any(axis=(0, 1))
    refuse_still(moving)
    common, power = shared_power(moved)
    signal, whole = (part.mean(axis=0) * (steps / (steps - 1)) for part in (common, power))
    share = float(signal.sum() / whole.sum())
    influence = (common - share * power).sum(axis=1)
    around = share_interval(moved, lambda shared, every: shared.sum(axis=1) / every.sum(axis=1), influence)
    method = f"of the share of the signal: {around.method}"
    with np.errstate(invalid="ignore"):
        nodes = np.where(moving, _decibels(signal / whole), np.nan)
    still = np.count_nonzero(~moving)
    notes = [
        f"{still} nodes do not move and are left out." if still else "",
        "No noise was found between the repeats." if share > 1 - 1e-12 else "",
        remark(around),
    ]
    return SignalToNoise(
        value=float(_decibels(np.array(share))),
        interval=Interval(float(_decibels(np.array(around.low))), float(_decibels(np.array(around.high))), method),
        note=" ".join(filter(None, notes)),
        nodes=nodes,
        signal=np.sqrt(np.maximum(signal, 0.0)),
        noise=np.sqrt(np.maximum(whole - signal, 0.0)),
    )


def _decibels(share: np.ndarray) -> np.ndarray:
    """10 log10 of signal over noise, from the share of the signal in both."""
    rest = 1 - share
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels = 10 * np.log10(share / rest)
    return np.where(share <= 0, -np.inf, np.where(rest <= 1e-12, np.inf, decibels))


# ---- Consistency: how alike the responses to repeated drives are.


@dataclass(frozen=True, eq=False, kw_only=True)
class Consistency(Measured):
    """`value` is the mean of `nodes` (nodes,) over the nodes that move; a node that does not has NaN.

    `profile` (rank,), falling, is the consistency of the orthonormal directions of the states, each from about 0
    (unrelated) to 1 (fully reproduced), and `capacity` its sum.
    """

    nodes: np.ndarray
    profile: np.ndarray
    capacity: float


def consistency(states: Any, *, washout: int = 0) -> Consistency:
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
    interval = share_interval(z, lambda shared, whole: (shared / whole).mean(axis=1), influence)
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
