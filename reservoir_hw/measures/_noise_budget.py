"""Noise budget: where the rank of the states goes, to functions of the input or to noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.measures._blocks import Rows
from reservoir_hw.measures._capacity import Capacities, Distribution
from reservoir_hw.measures._measured import (
    FEWEST,
    Interval,
    Measured,
    batch_means,
    bounded,
    checked,
    deviations,
    remark,
)
from reservoir_hw.measures._processing_capacity import ProcessingCapacity, with_details
from reservoir_hw.measures._rank import StateBasis
from reservoir_hw.measures._repeats import shared_power

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
    u = np.asarray(as_numpy(inputs), dtype=np.float64)
    skipped = max(washout, *max_delays)
    repeated = len(x) > 1
    repetitions = [k for k in _AVERAGED if 2 * k <= len(x)] if repeated else [1]
    rows, intervals, opposed = [], [], False
    forecast = np.zeros(0)
    for k in repetitions:
        groups = x[: len(x) // k * k].reshape(-1, k, *x.shape[1:]).mean(axis=1)
        capacity, found = with_details(u, groups[0], max_delays, washout, distribution, input_range)
        of_linear, of_nonlinear = found.influence[0], found.influence[1:].sum(axis=0)
        if repeated:
            q, estimate, influence, profile = _kept(groups[:, skipped:])
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
            recording = Rows(x[0], skipped)
            basis = StateBasis(recording)
            q, rank = basis.centred(x[0, skipped:]) @ (basis.weights * recording.rows**0.5), basis.rank
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
    total, repeats = q.sum(axis=0), len(q)
    shared = (total.T @ total / q.shape[1] - repeats * np.eye(basis.rank)) / (repeats * (repeats - 1))
    # A fit to fewer steps finds less in common. The error falls with the number of steps, so that halves tell it.
    halves = [_in_common(half) for half in np.array_split(q, 2, axis=1)]
    kept = 2 * float(common.sum(axis=1).mean()) - sum(halves) / 2
    own = np.einsum("rti,ij,rtj->t", q, shared, q, optimize=True) / repeats
    return q[0], kept, common.sum(axis=1) - own, np.clip(np.linalg.eigvalsh(shared), 0.0, 1.0)


def _in_common(x: np.ndarray) -> float:
    """tr(C⁻¹ S) of responses (repeats, time, nodes) with linearly independent nodes."""
    moved = x - x.mean(axis=1, keepdims=True)
    repeats, steps, nodes = moved.shape
    rows = moved.reshape(-1, nodes)
    C = rows.T @ rows / len(rows)
    total = moved.sum(axis=0)
    S = (total.T @ total / steps - repeats * C) / (repeats * (repeats - 1))
    return float(np.trace(np.linalg.solve(C, S)))


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
