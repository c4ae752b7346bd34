"""What responses to the same drive have in common, and what noise takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.statistics import jackknife_error, t_quantile
from reservoir_hw.measures._capacity import Capacities, Distribution, ProcessingCapacity, with_details
from reservoir_hw.measures._measured import (
    BATCHES,
    FEWEST,
    Interval,
    Measured,
    Rows,
    batch_means,
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
from reservoir_hw.measures._rank import StateBasis

# Nodes that are looked at for the time over which responses are correlated.
_NODES = 100

# Correlation times of the responses in a piece: their means and variances must be known, too.
_SPAN = 6


def checked_repeats(states: Any, washout: int) -> np.ndarray:
    """States of repeated drives (repeats, time, nodes) in float64, without the washout; at least two repeats."""
    array = checked(states, ("repeats", "time", "nodes"))
    if len(array) < 2:
        raise ShapeError("one drive alone tells nothing about repetition: drive the device with the same inputs again")
    if not 0 <= washout < array.shape[1]:
        raise ConfigurationError(f"washout is {washout}, but the recording has {array.shape[1]} steps")
    return array[:, washout:]


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
    # What is left of the variance, without the difference of two numbers that are nearly equal.
    rest = moved.var(axis=0, ddof=1).mean(axis=0) * (steps / (steps - 1))
    share = float(signal.sum() / whole.sum())
    influence = (common - share * power).sum(axis=1)
    around = share_interval(moved, lambda shared, every: shared.sum(axis=1) / every.sum(axis=1), influence)
    method = f"of the share of the signal: {around.method}"
    with np.errstate(invalid="ignore"):
        nodes = np.where(moving, _decibels(signal / whole), np.nan)
    still = np.count_nonzero(~moving)
    notes = [
        f"{still} nodes do not move and are left out." if still else "",
        f"{'Hardly any' if rest.any() else 'No'} noise was found between the repeats." if share > 1 - 1e-12 else "",
        remark(around),
    ]
    return SignalToNoise(
        value=float(_decibels(np.array(share))),
        interval=Interval(float(_decibels(np.array(around.low))), float(_decibels(np.array(around.high))), method),
        note=" ".join(filter(None, notes)),
        nodes=nodes,
        signal=np.sqrt(np.maximum(signal, 0.0)),
        noise=np.sqrt(rest),
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
    return np.linalg.eigvalsh(_between(q, np.eye(q.shape[2])))[::-1]


def _between(x: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The covariance between repeats (repeats, time, nodes) whose covariance over all repeats is known."""
    repeats, steps, _ = x.shape
    total = x.sum(axis=0)
    return (total.T @ total / steps - repeats * covariance) / (repeats * (repeats - 1))


# ---- Noise budget: where the rank of the states goes, to functions of the input or to noise.


# How many repetitions the forecast of an average looks at.
_AVERAGED = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

# Steps whose pairs tell how far chance moves what weak functions have.
_PAIRED = 800

# A correlation of pairs below this no longer counts.
_UNCORRELATED = 0.01

# Confidence at which responses are called opposed: that of many budgets without signal should not be, by chance.
_SURE = 0.9995


@dataclass(frozen=True, eq=False, kw_only=True)
class NoiseBudget(Measured):
    """`value` is the capacity that single responses lose to noise: NaN where nothing was repeated.

    `repetitions` (points,) says how many responses were averaged; `rank`, `linear`, `nonlinear`, `lost` and `rest`
    (points,) are the budget of such averages: rank = linear + nonlinear + lost + rest, with intervals for each but
    the rank. `nonlinear` has the functions that are too weak to be named, too. The `rest` is 0, up to chance, where all
    functions that matter were tried. `forecast` (averages,) is what averages of `averaged` (averages,) responses would
    lose. Without repetitions `lost` is NaN, and the `rest` has it, too.
    """

    repetitions: np.ndarray
    rank: np.ndarray
    linear: np.ndarray
    nonlinear: np.ndarray
    lost: np.ndarray
    rest: np.ndarray
    linear_intervals: tuple[Interval, ...]
    nonlinear_intervals: tuple[Interval, ...]
    lost_intervals: tuple[Interval, ...]
    rest_intervals: tuple[Interval, ...]
    averaged: np.ndarray
    forecast: np.ndarray


def noise_budget(
    inputs: Any,
    states: Any,
    *,
    max_delays: Sequence[int],
    washout: int = 0,
    distribution: Distribution = "uniform",
    input_range: tuple[float, float] | None = None,
) -> NoiseBudget:
    """Linear capacity, nonlinear capacity and what is lost to noise, which add up to the rank of the states.

    The capacities of all functions of the inputs add up to the rank for a device that forgets and has no noise
    (Dambre et al. 2012). With noise, a state x is s + n, where s is its mean over many repetitions, a
    function of the inputs. The capacities then add up to tr(C⁻¹ S), with the covariance C of x and S of s: the
    consistency capacity (Jüngling, Lymburn & Small 2022). S is the covariance between two repetitions, so this sum is
    known without trying any function. The noise has the rest of the rank, tr(C⁻¹ (C - S)).

    Capacities come from one response and its inputs, the lost part from the differences between responses: that they
    add up is a check and not an identity. Chaos, and memory that is longer than what the repetitions have in common,
    count as noise.

    Functions that are no more than chance alone make up for one another: over all of them, what they have beyond their
    expectation is the capacity that is too weak to be seen in one of them.

    Averages of k repetitions have the covariance S + (C - S)/k. They are measured for each k of which there are two
    averages or more, and forecast beyond that. No part lies beyond what is possible, 0 and the rank, and each lies
    within its interval. Of a single response the capacities are known, and that noise takes no
    more than what they leave.

    Parameters
    ----------
    inputs
        (time, channels), the same in all repetitions and independent from step to step.
    states
        (repeats, time, nodes).
    max_delays, washout, distribution, input_range
        As for `information_processing_capacity`. The first `max(max_delays)` steps belong to no result.

    The intervals are those of batch means over time; that of the rest knows that capacities and loss were measured on
    the same steps. Raises as `information_processing_capacity`.
    """
    x = checked(states, ("repeats", "time", "nodes"))
    repeated = len(x) > 1
    repetitions = [k for k in _AVERAGED if 2 * k <= len(x)] if repeated else [1]
    rows, intervals, opposed = [], [], False
    forecast = np.zeros(0)
    for k in repetitions:
        groups = x[: len(x) // k * k].reshape(-1, k, *x.shape[1:]).mean(axis=1)
        capacity, found = with_details(inputs, groups[0], max_delays, washout, distribution, input_range)
        recording = found.recording
        of_linear, of_nonlinear = found.influence[0], found.influence[1:].sum(axis=0)
        if repeated:
            q, estimate, influence, profile = _kept(groups[:, recording.skipped :])
            rank = q.shape[1]
            # The estimate has no bias, so chance takes it beyond what is possible where noise is all or nothing.
            kept = min(max(estimate, 0.0), float(rank))
            linear, nonlinear, uncertain = _parts(capacity, found, q)
            lost, rest = rank - kept, kept - linear - nonlinear
            of_lost = bounded(_interval(influence, 0.0, lost), 0.0, rank)
            of_rest = _interval(influence - of_linear - of_nonlinear, uncertain, rest)
            opposed |= _opposed(influence, estimate)
            if k == 1:
                forecast = np.array([rank - (profile / (profile + (1 - profile) / many)).sum() for many in _AVERAGED])
        else:
            # What the capacities leave is noise, or functions that were not tried.
            basis = StateBasis(recording)
            q, rank = basis.centred(x[0, recording.skipped :]) @ (basis.weights * recording.rows**0.5), basis.rank
            linear, nonlinear, uncertain = _parts(capacity, found, q)
            lost, rest = np.nan, rank - linear - nonlinear
            of_rest = bounded(_interval(of_linear + of_nonlinear, uncertain, rest), 0.0, rank)
            method = "from nothing to all that the capacities leave: nothing was repeated"
            of_lost = replace(of_rest, low=0.0, method=method)
        rows.append((rank, linear, nonlinear, lost, rest))
        linear_interval = bounded(_interval(of_linear, 0.0, linear), 0.0, rank)
        nonlinear_interval = bounded(_interval(of_nonlinear, uncertain, nonlinear), 0.0, rank)
        intervals.append((linear_interval, nonlinear_interval, of_lost, of_rest))
    ranks, linear, nonlinear, lost, rest = np.array(rows).T
    linear_intervals, nonlinear_intervals, lost_intervals, rest_intervals = zip(*intervals, strict=True)
    first = rest_intervals[0]
    note = f"Rank {ranks[0]:.0f} = linear {linear[0]:.3g} + nonlinear {nonlinear[0]:.3g} + "
    if not repeated:
        note += (
            f"{rest[0]:.3g} of noise, or of functions that were not tried: without repeated drives these cannot be "
            "told apart."
        )
    else:
        note += f"noise {lost[0]:.3g} + rest {rest[0]:.2g} [{first.low:.2g}, {first.high:.2g}]."
        if first.low > 0:
            note += (
                " The rest is functions of the input that were not tried: longer delays or higher degrees find more."
            )
        if opposed:
            note += (
                " The responses are opposed from one repetition to the next, which noise is not: what differs follows "
                "a pattern, so this is no measure of noise."
            )
        note = " ".join(filter(None, [note, remark(lost_intervals[0])]))
    return NoiseBudget(
        value=float(lost[0]),
        interval=lost_intervals[0],
        note=note,
        repetitions=np.array(repetitions),
        rank=ranks,
        linear=linear,
        nonlinear=nonlinear,
        lost=lost,
        rest=rest,
        linear_intervals=linear_intervals,
        nonlinear_intervals=nonlinear_intervals,
        lost_intervals=lost_intervals,
        rest_intervals=rest_intervals,
        averaged=np.array(_AVERAGED if repeated else (), dtype=np.int64),
        forecast=forecast,
    )


def _opposed(influence: np.ndarray, estimate: float) -> bool:
    """Whether what responses have in common lies below 0 for certain."""
    over_time = batch_means(influence)
    sure = over_time.batches >= FEWEST
    return sure and estimate + t_quantile((1 + _SURE) / 2, over_time.batches - 1) * over_time.error < 0


def _parts(capacity: ProcessingCapacity, found: Capacities, q: np.ndarray) -> tuple[float, float, float]:
    """Linear and nonlinear capacity, and the standard error of what the weak functions add to the second."""
    weak, uncertain = _weak(found, q) if len(capacity.by_degree) > 1 else (0.0, 0.0)
    # What the weak functions have beyond chance lies around 0 where they have nothing.
    return float(capacity.by_degree[0]), max(float(capacity.by_degree[1:].sum()) + weak, 0.0), uncertain


def _kept(x: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Orthonormal states of the first of the responses (repeats, time, nodes), tr(C⁻¹ S), and two parts of it.

    The trace is freed from its bias of the first order in 1 / time by that of two halves (Quenouille 1956); chance may
    take it below 0 and beyond the rank. The two parts are the influence of each step (time,), and the terms (rank,) of
    directions in which signal and noise are uncorrelated, between 0 and 1.
    """
    moved = deviations(x, axis=1)
    recording = Rows(moved, 0)
    basis = StateBasis(recording)
    # In these directions C is the identity.
    q = moved @ (basis.weights * recording.rows**0.5)
    common, _ = shared_power(q)
    shared = _between(q, np.eye(basis.rank))
    # A fit to fewer steps finds less in common. The error falls with the number of steps, so that halves tell it.
    halves = [_in_common(half) for half in np.array_split(q, 2, axis=1)]
    kept = 2 * float(common.sum(axis=1).mean()) - sum(halves) / 2
    own = np.einsum("rti,ij,rtj->t", q, shared, q, optimize=True) / len(q)
    return q[0], kept, common.sum(axis=1) - own, np.clip(np.linalg.eigvalsh(shared), 0.0, 1.0)


def _in_common(x: np.ndarray) -> float:
    """tr(C⁻¹ S) of responses (repeats, time, nodes) with linearly independent nodes."""
    moved = x - x.mean(axis=1, keepdims=True)
    rows = moved.reshape(-1, moved.shape[2])
    C = rows.T @ rows / len(rows)
    return float(np.trace(np.linalg.solve(C, _between(moved, C))))


def _weak(found: Capacities, q: np.ndarray) -> tuple[float, float]:
    """What the functions below the threshold have together beyond chance, and its standard error.

    With the orthonormal states q_t, rows of `q` (time, rank), and the values f_t of a function, scaled to Σ_t f_t² = 1,
    the sum over all functions of what they have beyond chance is Σ_{t≠s} m_ts / T, m_ts = (q_t · q_s) Σ_f f_t f_s. Of
    pairs of steps that are far apart, only those that are moved by the same lag have to do with one another. So the
    variance is twice the sum over lags l of the covariance of m_ts and m_{t+l,s+l}. The pairs of some hundred steps
    tell it: functions of few inputs are large together, and that is no matter of correlations.
    """
    below = found.raw <= found.threshold
    beyond = float((found.raw - found.chance)[below].sum())
    block = next(iter(found.recording.blocks()))
    block = replace(block, states=block.states[:_PAIRED])
    steps = len(block.states)
    m = np.zeros((steps, steps))
    for chosen in np.array_split(np.flatnonzero(below), 1 + len(below) // _PAIRED):
        f = found.targets.only(chosen).columns(block) if len(chosen) else np.zeros((1, steps))
        f -= f.mean(axis=1, keepdims=True)
        power = (f**2).mean(axis=1, keepdims=True)
        f /= np.sqrt(np.where(power > 0, power, 1.0) * len(q))
        m += f.T @ f
    m *= q[:steps] @ q[:steps].T
    apart = np.triu(np.ones(m.shape, dtype=bool), steps // 4)
    m -= m[apart].mean()
    variance = 0.0
    for lag in range(steps // 4):
        together = m[lag:, lag:] * m[: steps - lag, : steps - lag]
        covariance = float(together[apart[lag:, lag:]].mean())
        if covariance < _UNCORRELATED * variance:
            break
        variance += 2 * covariance if lag else covariance
    return beyond, (2 * variance) ** 0.5


def _interval(influence: np.ndarray, more: float, value: float) -> Interval:
    """Batch means over time, with the standard error `more` of what does not depend on single steps."""
    over_time = batch_means(influence)
    return replace(over_time, error=float(np.hypot(over_time.error, more))).interval(value)
