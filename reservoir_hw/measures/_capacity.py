"""How well linear readouts of the states compute functions of past inputs: memory, and all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.validation import at_least
from reservoir_hw.measures._measured import (
    Block,
    Interval,
    Measured,
    Recording,
    batch_means,
    bounded,
    chi2_quantile,
    remark,
)
from reservoir_hw.measures._rank import StateBasis

# Targets that are made and projected at once.
_TARGETS = 512

# Variance of a target below this, relative to its mean square, is rounding.
_CONSTANT = 1e-12


class Targets:
    """Products of polynomials of delayed inputs.

    Parameters
    ----------
    polynomials
        (degrees + 1, channels, sequences, time).
    factors
        (targets, factors, 3): degree, channel and delay of each factor. Factors of degree 0 are 1 and come last.
    """

    def __init__(self, polynomials: np.ndarray, factors: np.ndarray) -> None:
        self._polynomials = polynomials
        self._factors = factors
        needed = factors[:, : np.count_nonzero(factors[:, :, 0], axis=1).max()]
        self._used, places = np.unique(needed.reshape(-1, 3), axis=0, return_inverse=True)
        self._places = places.reshape(needed.shape[:2])

    def __len__(self) -> int:
        return len(self._factors)

    def only(self, wanted: np.ndarray) -> Targets:
        """Some of the targets, by a truth value for each or by their numbers."""
        return Targets(self._polynomials, self._factors[wanted])

    def columns(self, block: Block) -> np.ndarray:
        """The targets over the steps of a block: (targets, rows)."""
        length = len(block.states)
        atoms = np.empty((len(self._used), length))
        for atom, (degree, channel, delay) in zip(atoms, self._used, strict=True):
            begin = block.first - delay
            atom[:] = self._polynomials[degree, channel, block.sequence, begin : begin + length]
        columns = atoms[self._places[:, 0]]
        for place in self._places.T[1:]:
            columns *= atoms[place]
        return columns


@dataclass(frozen=True, eq=False)
class Capacities:
    """What `capacities` found for each target.

    `raw` (targets,) is the squared multiple correlation, `chance` (targets,) what a useless target has on average,
    `threshold` (targets,) what such a target exceeds rarely,
    `corrected` (targets,) the capacity of the targets above it, less what fitting to a finite recording adds,
    and 0 for the others. `influence` (groups, rows), with mean 0, is by how much each step moves the sum over a group,
    times the number of steps. `targets` over the steps of `recording` are what it was found of.
    """

    recording: Recording
    targets: Targets
    raw: np.ndarray
    chance: np.ndarray
    threshold: np.ndarray
    corrected: np.ndarray
    influence: np.ndarray


class _Fit(NamedTuple):
    """Targets projected on the orthonormal states; arrays have one row for each target."""

    projection: np.ndarray
    mean: np.ndarray
    power: np.ndarray
    chance: np.ndarray
    raw: np.ndarray

    def only(self, wanted: np.ndarray) -> _Fit:
        return _Fit(*(array[wanted] for array in self))


def capacities(
    recording: Recording, basis: StateBasis, targets: Targets, groups: np.ndarray, significance: float
) -> Capacities:
    """Capacities of all targets (Dambre et al. 2012), with what chance alone would give.

    With Q the orthonormal states, y a centred target and e its residual, the raw capacity is C = |Qᵀy|² / |y|². Even
    a target the states know nothing of has one: on average Σ_t h_t y_t² / |y|², where h_t = |Q_t|² is the leverage of
    step t. That is rank / steps where states and target are independent, and more where they share an input
    (White 1980). Scaled to this mean, C follows nearly a chi-square distribution with `rank` degrees of freedom; the
    threshold is its quantile at 1 - `significance`.

    The excess Σ_t h_t e_t² / |y|² is taken off what counts: the correction of an R² for its degrees of freedom
    (Wherry 1931), in a form that does not need e to be independent of the states.

    The weights are at their optimum, so to first order step t moves C by [(1 - C) y_t² - e_t²] / |y|²: its influence
    (Hampel 1974). `groups` (targets,) numbers the group that a target belongs to.
    """
    quantile = chi2_quantile(1 - significance, basis.rank) / basis.rank
    raw, chance, corrected = np.zeros((3, len(targets)))
    influence = np.zeros((groups.max() + 1, recording.rows))
    for begin in range(0, len(targets), _TARGETS):
        chosen = np.arange(begin, min(begin + _TARGETS, len(targets)))
        some = targets.only(chosen)
        fit = _project(recording, basis, some)
        raw[chosen], chance[chosen] = fit.raw, fit.chance
        above = fit.raw > quantile * fit.chance
        if above.any():
            counted = chosen[above]
            excess = _excess(recording, basis, some.only(above), fit.only(above), groups[counted], influence)
            corrected[counted] = np.maximum(raw[counted] - excess, 0.0)
    return Capacities(recording, targets, raw, chance, quantile * chance, corrected, influence)


def _project(recording: Recording, basis: StateBasis, targets: Targets) -> _Fit:
    products = np.zeros((len(targets), recording.nodes))
    total, squares, weighted = np.zeros((3, len(targets)))
    for block in recording.blocks():
        y = targets.columns(block)
        products += y @ basis.centred(block.states)
        total += y.sum(axis=1)
        y *= y
        squares += y.sum(axis=1)
        weighted += y @ basis.leverage[block.rows]
    power = squares - total**2 / recording.rows
    # A target that is constant over these rows has no capacity.
    power[power <= _CONSTANT * squares] = np.inf
    projection = products @ basis.weights
    return _Fit(projection, total / recording.rows, power, weighted / power, (projection**2).sum(axis=1) / power)


def _excess(
    recording: Recording, basis: StateBasis, targets: Targets, fit: _Fit, groups: np.ndarray, influence: np.ndarray
) -> np.ndarray:
    """The excess of each target; adds to `influence` what their steps tell."""
    excess = np.zeros(len(targets))
    scale = (groups == np.arange(len(influence))[:, None]) * (recording.rows / fit.power)
    readout = fit.projection @ basis.weights.T
    for block in recording.blocks():
        y = targets.columns(block) - fit.mean[:, None]
        e = y - readout @ basis.centred(block.states).T
        y *= y
        e *= e
        excess += e @ basis.leverage[block.rows]
        influence[:, block.rows] += (scale * (1 - fit.raw)) @ y - scale @ e
    return excess / fit.power


# ---- Whether inputs are independent from step to step, which capacities presuppose.


_LAGS = 100

# A correlation of independent inputs is beyond this many standard errors once in a billion lags.
_SUSPICIOUS = 6.0


def strongest_correlation(recording: Recording, power: int = 1) -> tuple[int, float] | None:
    """Lag and value of the largest autocorrelation of an input channel, or of its `power`.

    None where all may be chance. Inputs whose squares are correlated (an amplitude that changes, a pause) are not
    independent although they are not correlated.
    """
    worst: tuple[int, float] | None = None
    for channel in np.moveaxis(recording.inputs**power, 2, 0):
        moved = channel - channel.mean()
        if (moved**2).mean() <= 1e-12 * (channel**2).mean():
            # The squares of ±1.
            continue
        samples, steps = moved.size, moved.shape[1]
        for lag in range(1, min(_LAGS, steps - 1) + 1):
            value = float((moved[:, lag:] * moved[:, :-lag]).sum() / (moved**2).sum())
            if abs(value) > max(_SUSPICIOUS / samples**0.5, abs(worst[1]) if worst else 0.0):
                worst = lag, value
    return worst


# ---- Polynomials that are orthonormal under the distribution of the inputs.


Distribution = Literal["uniform", "normal", "empirical"]


def orthonormal(
    inputs: np.ndarray, degree: int, distribution: Distribution, input_range: tuple[float, float] | None
) -> np.ndarray:
    """The polynomials of the degrees 0 ... `degree` at each input: (sequences, time) -> (degree + 1, sequences, time).

    They follow p_(n+1) sqrt(b_(n+1)) = (x - a_n) p_n - sqrt(b_n) p_(n-1) (Gautschi 2004, theorem 1.29): Legendre
    polynomials for inputs uniform in `input_range`, Hermite polynomials for normal ones, and for "empirical" those that
    are orthonormal over the very values of `inputs` (the arbitrary polynomial chaos of Kubota et al. 2021).

    Raises `InputRangeError` where the inputs are not so distributed, or take too few values for the degree.
    """
    if distribution == "empirical":
        return _empirical(inputs, degree)
    if distribution == "uniform":
        low, high = input_range or (float(inputs.min()), float(inputs.max()))
        if inputs.min() < low or inputs.max() > high:
            raise InputRangeError(f"inputs lie outside the input_range [{low:g}, {high:g}] that was given")
        x = (2 * inputs - low - high) / (high - low)
        b = [1.0] + [n**2 / (4 * n**2 - 1) for n in range(1, degree + 1)]
    elif distribution == "normal":
        x = (inputs - inputs.mean()) / inputs.std()
        b = [1.0] + [float(n) for n in range(1, degree + 1)]
    else:
        raise ConfigurationError(f"distribution is {distribution!r}; choose uniform, normal or empirical")
    p = np.empty((degree + 1, *inputs.shape))
    p[0] = 1.0
    p[1] = x / b[1] ** 0.5
    for n in range(1, degree):
        p[n + 1] = (x * p[n] - b[n] ** 0.5 * p[n - 1]) / b[n + 1] ** 0.5
    _check(p, distribution)
    return p


def _empirical(inputs: np.ndarray, degree: int) -> np.ndarray:
    """The recurrence with coefficients from the sample itself (Stieltjes' procedure; Gautschi 2004, section 2.2.3)."""
    x = (inputs - inputs.mean()) / inputs.std()
    p = np.empty((degree + 1, *inputs.shape))
    p[0] = 1.0
    before, b = np.zeros_like(x), 0.0
    for n in range(degree):
        a = np.mean(x * p[n] ** 2)
        p[n + 1] = (x - a) * p[n] - b * before
        b = np.mean(p[n + 1] ** 2) ** 0.5
        if b < 1e-6:
            raise InputRangeError(
                f"the inputs take too few different values for degree {n + 1}: a drive with k levels has polynomials "
                "up to degree k - 1"
            )
        p[n + 1] /= b
        before = p[n]
    return p


def _check(p: np.ndarray, distribution: Distribution) -> None:
    """Raise unless means and products of the polynomials are what they are for such inputs, within their errors."""
    flat = p.reshape(len(p), -1)
    for n in range(1, len(flat)):
        for m in range(n + 1):
            product = flat[n] * flat[m]
            off = abs(product.mean() - (n == m))
            if off > _SUSPICIOUS * product.std() / flat.shape[1] ** 0.5 + 1e-9:
                raise InputRangeError(
                    f"the inputs are not {distribution}: their polynomials of degree {n} and {m} are off by {off:.2g}. "
                    'Check input_range, or say distribution="empirical"'
                )


# ---- Linear memory capacity: how well past inputs can be read from the present states.


# Capacity at the longest delay from which on longer ones are worth trying.
_REMARKABLE = 0.01


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryCapacity(Measured):
    """`value` is the sum of `capacities` over channels and delays.

    `recall` (channels, max_delay + 1) is the squared correlation of the best linear readout with the input `delay`
    steps ago, as it was measured; `threshold` is what chance exceeds with the probability `significance`, and
    `capacities` what is left of `recall` above it, less the expected effect of fitting. `rank` is the upper bound.
    """

    recall: np.ndarray
    threshold: np.ndarray
    capacities: np.ndarray
    rank: int
    significance: float


def memory_capacity(
    inputs: Any,
    states: Any,
    *,
    max_delay: int,
    washout: int = 0,
    significance: float = 1e-4,
    tolerance: float | None = None,
) -> MemoryCapacity:
    """Linear memory capacity (Jaeger 2002, definition 1): Σ_k r²(u_(t-k), best readout of the states of step t).

    Delays run from 0 to `max_delay`; the states of step t are the response after u_t was applied. Jaeger's sum begins
    at delay 1: leave out `capacities[:, 0]` for that. With several input channels each has delays of its own. With
    independent inputs the sum is at most the rank of the states, and so the number of nodes.

    Parameters
    ----------
    inputs, states
        (sequences, time, channels) and (sequences, time, nodes), or two axes for one sequence. Only slices are read of
        the states, so they may lie on disk.
    washout
        First steps of each sequence that do not count.
    significance
        Probability with which a delay that is not remembered passes for remembered.
    tolerance
        Directions of the states weaker than this, relative to the strongest, do not count; by default rounding errors.

    The interval is that of batch means of the influence of each step on the sum; what lies below the threshold or
    beyond `max_delay` is not in it. Raises `ShapeError`, `InputRangeError` and `ConfigurationError`.
    """
    at_least(max_delay=(max_delay, 0))
    recording = Recording(inputs, states, max(washout, max_delay))
    basis = StateBasis(recording, tolerance)
    channels = recording.channels
    delays = np.arange(max_delay + 1)
    factors = np.ones((channels * len(delays), 1, 3), dtype=np.int64)
    factors[:, 0, 1] = np.repeat(np.arange(channels), len(delays))
    factors[:, 0, 2] = np.tile(delays, channels)
    centred = np.moveaxis(recording.inputs - recording.inputs.mean(axis=(0, 1)), 2, 0)
    targets = Targets(np.stack([np.ones_like(centred), centred]), factors)
    found = capacities(recording, basis, targets, np.zeros(len(factors), dtype=np.int64), significance)
    total = float(found.corrected.sum())
    by_delay = (channels, len(delays))
    interval = batch_means(found.influence[0]).interval(total)
    found_by_delay = found.corrected.reshape(by_delay)
    notes = [f"{found_by_delay[:, 0].sum():.3g} of it at delay 0."]
    if found_by_delay[:, -1].max() > _REMARKABLE:
        notes.append(f"The longest delay, {max_delay}, is still remembered: a larger max_delay would find more.")
    if strongest := strongest_correlation(recording):
        notes.append(
            f"The inputs are correlated over time ({strongest[1]:.2f} at lag {strongest[0]}): different delays hold "
            "the same information, and the sum counts it more than once."
        )
    return MemoryCapacity(
        value=min(total, float(basis.rank)),
        interval=bounded(interval, 0.0, basis.rank),
        note=" ".join(filter(None, [*notes, remark(interval)])),
        recall=found.raw.reshape(by_delay),
        threshold=found.threshold.reshape(by_delay),
        capacities=found_by_delay,
        rank=basis.rank,
        significance=significance,
    )


# ---- Information processing capacity: which functions of the past inputs the states compute, by degree and delay.


_MOST_TARGETS = 1_000_000

# A sum this many standard errors beyond its bound is not chance.
_IMPOSSIBLE = 5.0


@dataclass(frozen=True, eq=False, kw_only=True)
class ProcessingCapacity(Measured):
    """`value` is the total over all functions that were tried, at most `rank`.

    `by_degree` (degrees,) and `degree_intervals` split it by the degree of the functions, from 1 on. Each function is
    a row of `factors` (functions, degrees, 3): degree, channel and delay of each factor, degree 0 for none; its
    capacity is in `capacities` (functions,), its longest delay in `delays`. `by_delay` (degrees, delays) sums them by
    the longest delay.
    """

    by_degree: np.ndarray
    degree_intervals: tuple[Interval, ...]
    by_delay: np.ndarray
    capacities: np.ndarray
    delays: np.ndarray
    factors: np.ndarray
    rank: int
    significance: float


def information_processing_capacity(
    inputs: Any,
    states: Any,
    *,
    max_delays: Sequence[int],
    washout: int = 0,
    distribution: Distribution = "uniform",
    input_range: tuple[float, float] | None = None,
    significance: float = 1e-4,
    tolerance: float | None = None,
) -> ProcessingCapacity:
    """Information processing capacity (Dambre et al. 2012), for inputs that are independent from step to step.

    The functions are all products of orthonormal polynomials of delayed inputs with a total degree of d and delays up
    to `max_delays[d - 1]`, for d from 1 to the number of `max_delays`. Their capacities add up to at most the number
    of linearly independent states, and to exactly that for a device that forgets and has no noise, if all functions
    that matter are among them.

    A function counts if it is above a threshold that one in 1 / `significance` useless ones exceeds. What fitting to a
    finite recording adds is subtracted, as `_capacity.capacities` describes; the uncorrected sum of Dambre et al. is
    too large. Both follow the leverage of each step instead of rank / steps, because functions and states share
    inputs; Dambre et al. double their threshold for that, Kubota et al. 2021 shuffle.

    Parameters
    ----------
    inputs, states
        (sequences, time, channels) and (sequences, time, nodes), or two axes for one sequence. Only slices are read of
        the states, so they may lie on disk.
    max_delays
        Longest delay for each degree: (100, 30, 10) tries degrees up to 3.
    washout
        First steps of each sequence that do not count.
    distribution, input_range
        "uniform" over `input_range` (by default what the inputs cover): Legendre polynomials. "normal": Hermite
        polynomials. "empirical": polynomials that are orthonormal over the inputs as they are.
    tolerance
        Directions of the states weaker than this, relative to the strongest, do not count; by default rounding errors.

    The interval is that of batch means of the influence of each step on the sum; functions below the threshold
    are not in it. Raises `ShapeError`, `ConfigurationError`, and `InputRangeError` also for inputs that are
    correlated over time or not so distributed.
    """
    return with_details(inputs, states, max_delays, washout, distribution, input_range, significance, tolerance)[0]


def with_details(
    inputs: Any,
    states: Any,
    max_delays: Sequence[int],
    washout: int,
    distribution: Distribution,
    input_range: tuple[float, float] | None,
    significance: float = 1e-4,
    tolerance: float | None = None,
) -> tuple[ProcessingCapacity, Capacities]:
    """`information_processing_capacity`, and what was found for each function; the influences are by degree."""
    if not max_delays or min(max_delays) < 0:
        raise ConfigurationError(f"max_delays is {max_delays}; give one delay of at least 0 for each degree")
    recording = Recording(inputs, states, max(washout, *max_delays))
    for power, what in ((1, "the inputs"), (2, "the squares of the inputs")):
        found = strongest_correlation(recording, power)
        if found is not None:
            raise InputRangeError(
                f"{what} are correlated over time ({found[1]:.2f} at lag {found[0]}), so that functions of different "
                "delays are not independent; drive the device with inputs drawn anew in each step"
            )
    basis = StateBasis(recording, tolerance)
    degrees = len(max_delays)
    by_channel = np.moveaxis(recording.inputs, 2, 0)
    polynomials = np.stack([orthonormal(u, degrees, distribution, input_range) for u in by_channel], axis=1)
    factors = np.concatenate(
        [_products(degree, delay, recording.channels, degrees) for degree, delay in enumerate(max_delays, 1)]
    )
    degree_of = factors[:, :, 0].sum(axis=1)
    measured = capacities(recording, basis, Targets(polynomials, factors), degree_of - 1, significance)
    by_degree = np.bincount(degree_of - 1, measured.corrected, degrees)
    delays = factors[:, :, 2].max(axis=1)
    by_delay = np.zeros((degrees, max(max_delays) + 1))
    np.add.at(by_delay, (degree_of - 1, delays), measured.corrected)

    total = float(by_degree.sum())
    over_time = batch_means(measured.influence.sum(axis=0))
    if total > basis.rank + _IMPOSSIBLE * over_time.error + 0.01 * basis.rank:
        raise InputRangeError(
            f"the capacities add up to {total:.1f}, more than the {basis.rank} independent states can have: the inputs "
            "are not independent from step to step, or not distributed as said; draw them anew in each step"
        )
    interval = over_time.interval(total)
    notes = [f"{len(factors):,} functions were tried, of which {len(factors) * significance:.2g} count by chance."]
    cut = [str(degree) for degree, delay in enumerate(max_delays, 1) if by_delay[degree - 1, delay] > _REMARKABLE]
    if cut:
        notes.append(f"Degree {', '.join(cut)} reaches its longest delay: larger max_delays would find more.")
    found = ProcessingCapacity(
        value=min(total, float(basis.rank)),
        interval=bounded(interval, 0.0, basis.rank),
        note=" ".join(filter(None, [*notes, remark(interval)])),
        by_degree=by_degree,
        degree_intervals=tuple(
            bounded(batch_means(influence).interval(value), 0.0, basis.rank)
            for value, influence in zip(by_degree, measured.influence, strict=True)
        ),
        by_delay=by_delay,
        capacities=measured.corrected,
        delays=delays,
        factors=factors,
        rank=basis.rank,
        significance=significance,
    )
    return found, measured


def _products(degree: int, max_delay: int, channels: int, width: int) -> np.ndarray:
    """All products of total degree `degree`: (functions, width, 3), filled up with factors of degree 0."""
    variables = [(channel, delay) for channel in range(channels) for delay in range(max_delay + 1)]
    count = math.comb(len(variables) + degree - 1, degree)
    if count > _MOST_TARGETS:
        raise ConfigurationError(
            f"there are {count:,} functions of degree {degree} with delays up to {max_delay}; give a smaller delay for "
            f"this degree, so that they are at most {_MOST_TARGETS:,}"
        )
    factors = np.zeros((count, width, 3), dtype=np.int64)
    for row, combination in zip(factors, itertools.combinations_with_replacement(variables, degree), strict=True):
        for place, (variable, times) in enumerate(itertools.groupby(combination)):
            row[place] = len(list(times)), *variable
    return factors
