"""How fast the difference between two responses to one drive shrinks or grows, and how many responses there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.statistics import jackknife_error, t_quantile
from reservoir_hw.core.validation import at_least
from reservoir_hw.measures._measured import (
    BATCHES,
    CONFIDENCE,
    Interval,
    Measured,
    batch_means,
    checked,
    precision,
    remark,
    t_interval,
)

Transition: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]

# The noise in a distance of three times the noise floor is small beside it.
_ABOVE_FLOOR = math.log(3)
_FEWEST_STEPS = 4
# A floor of this many times the precision of the states counts as noise of the device.
_NOISE = 100.0
_PIECES = 5


@dataclass(frozen=True, eq=False, kw_only=True)
class LyapunovExponent(Measured):
    """`value` is per time step, in natural logarithms: negative where the device forgets its past.

    `log_distance` (time,) is the mean logarithm of the distance between two responses, counted from its start; between
    the steps `first` and `last` it was read. `floor` is where the noise of the device hides it, on the same scale.
    `trials` (trials,) has an exponent for each pair of responses.
    """

    log_distance: np.ndarray
    first: int
    last: int
    floor: float
    trials: np.ndarray


def lyapunov_from_transition(
    transition: Transition,
    inputs: Any,
    states: Any,
    *,
    settle: int = 100,
    size: float | None = None,
    level: float = 0.0,
) -> LyapunovExponent:
    """Largest conditional Lyapunov exponent of a device whose state can be set (Benettin et al. 1980).

    Beside each trajectory runs a second one at a small distance, which is brought back to that distance after every
    step; the mean logarithm of what a step made of it is the exponent.

    Parameters
    ----------
    transition
        One step from given states: (batch, inputs), (batch, nodes) -> (batch, nodes), as `Reservoir.transition`.
    inputs
        (batch, time, inputs); each sequence is a trial of its own.
    states
        (batch, nodes), where the trials begin: states that the device can have.
    settle
        First steps, which turn the difference into the direction that grows most, and do not count.
    size
        The distance, relative to the size of the state; by default the square root of the precision of `states`.
    level
        The smallest difference between two states of a node, where that is coarser than their dtype. The distance is
        at least many levels, whatever `size` says.

    The interval is that of batch means over time of the mean over the trials. The exponent is minus infinity where
    nothing is left of a difference, as in a delay line. Raises `ShapeError`, `InputRangeError`, `ConfigurationError`.
    """
    u = checked(inputs, ("batch", "time", "inputs"), "inputs")
    given = np.asarray(as_numpy(states))
    x = checked(given, ("batch", "nodes"))
    if len(x) != len(u):
        raise ShapeError(f"there are inputs for {len(u)} trials and states for {len(x)}")
    if not 0 <= settle < u.shape[1]:
        raise ConfigurationError(f"settle is {settle}, but the inputs have {u.shape[1]} steps")
    relative = _relative(size, given.dtype)
    # For each node the geometric mean of a level and the state: many levels, and still a small part of the state.
    many_levels = math.sqrt(level * math.sqrt(np.mean(x**2)) * x.shape[1])
    direction = generator(0, "measures/lyapunov").standard_normal(x.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    growth = np.empty(u.shape[:2])
    for t in range(u.shape[1]):
        distance = np.maximum(relative * np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-3), many_levels)
        beside = x + distance * direction
        # What was set is not exactly what was asked for: the device rounds.
        difference = beside.astype(given.dtype) - x.astype(given.dtype)
        if level:
            difference = level * (np.rint(beside / level) - np.rint(x / level))
        distance = np.linalg.norm(difference, axis=1, keepdims=True)
        after = transition(np.concatenate([u[:, t], u[:, t]]), np.concatenate([x, beside])).astype(np.float64)
        x, apart = after[: len(u)], after[len(u) :] - after[: len(u)]
        length = np.linalg.norm(apart, axis=1, keepdims=True)
        if not length.all():
            return _vanished(t + 1)
        growth[:, t] = np.log(length / distance)[:, 0]
        direction = apart / length
    counted = growth[:, settle:]
    over_time = batch_means(counted.mean(axis=0))
    interval = over_time.interval(over_time.mean)
    note = f"From {len(u)} trials of {u.shape[1]} set steps (Benettin's method)."
    return LyapunovExponent(
        value=over_time.mean,
        interval=interval,
        note=" ".join(filter(None, [note, remark(interval)])),
        log_distance=np.cumsum(growth.mean(axis=0)),
        first=settle,
        last=u.shape[1] - 1,
        floor=-math.inf,
        trials=counted.mean(axis=1),
    )


def lyapunov_from_replicas(states: Any, *, floor: float | None = None, first: int | None = None) -> LyapunovExponent:
    """Largest conditional Lyapunov exponent of any device, from responses to one drive after different pasts.

    `states` is (pasts, time, nodes), or (drives, pasts, time, nodes) with a drive for each group of pasts; step 0 is
    the first that they have in common. Responses 0 and 1, 2 and 3, ... make pairs. The exponent is the slope of the
    mean logarithm of their distance (the replica, or auxiliary system, approach: Abarbanel, Rulkov & Sushchik 1996),
    from step `first` until the distance comes within a factor three of its `floor`. By default `first` is half of
    that, since at the beginning all directions fade, and later only the slowest; `floor` is the median distance of the
    last quarter of the steps, and at least the precision of the states. The mean square of the floor is taken off.

    The exponent is minus infinity where nothing is left of a difference long before its fall would reach the precision
    of the states. Such pairs show how a device forgets; one that does not, because it is chaotic or has several
    responses, is refused with `InputRangeError`, as are pasts that make no difference and a fall too fast to read.

    Where the floor is noise and not rounding, the slope is a lower bound: directions that fade more slowly than what
    was read may lie below the noise, and the interval reaches up to 0.

    The interval is Student's over the drives, or over the pairs of one drive; for fewer than three of these, over
    pieces of the fall. Raises `ShapeError` and `ConfigurationError` besides.
    """
    given = np.asarray(as_numpy(states))
    x = checked(given[None] if given.ndim == 3 else given, ("drives", "pasts", "time", "nodes"))
    pairs = x.shape[1] // 2
    if pairs < 1:
        raise ShapeError("an exponent from replicas needs responses after at least 2 different pasts")
    distance = np.linalg.norm(x[:, 0 : 2 * pairs : 2] - x[:, 1 : 2 * pairs : 2], axis=3)
    finest = float(precision(given.dtype)) * math.sqrt(np.mean((x**2).sum(axis=3)))
    if floor is None:
        floor = math.sqrt(np.mean(np.median(distance[:, :, -max(1, x.shape[2] // 4) :], axis=2) ** 2))
    floor = max(floor, finest, np.finfo(np.float64).tiny)
    logarithm = np.log(np.maximum(distance**2 - floor**2, (floor / 10) ** 2)) / 2
    curve = logarithm.mean(axis=(0, 1))
    seen = np.log(np.maximum(distance, floor / 10)).mean(axis=(0, 1))
    hidden = np.flatnonzero(curve < math.log(floor) + _ABOVE_FLOOR)
    last = int(hidden[0]) if len(hidden) else len(curve)
    if last == 0:
        raise InputRangeError(
            "the responses do not come closer to each other under the same drive: their pasts make no difference "
            "beyond the noise, or the exponent is not negative (chaos, or several responses). Consistency and "
            "echo-state index tell which"
        )
    if (distance[:, :, last:] == 0).all() and curve[last - 1] - math.log(floor) > (curve[0] - math.log(floor)) / 2:
        return _vanished(last)
    start = last // 2 if first is None and last >= 2 * _FEWEST_STEPS else first or 0
    if last - start < _FEWEST_STEPS:
        raise InputRangeError(
            f"the difference between the responses falls into the noise within {last} steps, too fast for a slope; "
            "average repeated drives, or take a faster input"
        )
    time = np.arange(start, last) - (start + last - 1) / 2
    trials = logarithm[:, :, start:last] @ time / (time @ time)
    interval = _interval(trials, curve[start:last])
    note = f"From {trials.size} pairs of responses, read over {last - start} steps before the noise floor."
    if floor > _NOISE * finest:
        method = f"lower end: {interval.method}; upper end: 0, since noise may hide what fades more slowly"
        interval = replace(interval, high=max(interval.high, 0.0), method=method)
        note += " At least this: noise may hide directions that fade more slowly."
    return LyapunovExponent(
        value=float(trials.mean()),
        interval=interval,
        note=note,
        log_distance=seen - seen[0],
        first=start,
        last=last - 1,
        floor=math.log(floor) - float(seen[0]),
        trials=trials.ravel(),
    )


def _relative(size: float | None, dtype: np.dtype) -> float:
    relative = float(precision(dtype) ** 0.5) if size is None else size
    if not relative > 0:
        raise ConfigurationError(f"size is {size}; it must be more than 0")
    return relative


def _vanished(steps: int) -> LyapunovExponent:
    return LyapunovExponent(
        value=-math.inf,
        interval=Interval(-math.inf, -math.inf, "exact: nothing was left of a difference"),
        note=f"Nothing is left of a difference after {steps} steps.",
        log_distance=np.zeros(0),
        first=0,
        last=0,
        floor=-math.inf,
        trials=np.zeros(0),
    )


def _interval(trials: np.ndarray, curve: np.ndarray) -> Interval:
    """Of the mean of `trials` (drives, pairs); `curve` is the mean log distance where it was read."""
    value = float(trials.mean())
    independent = trials.mean(axis=1) if len(trials) > 1 else trials[0]
    what = "drives" if len(trials) > 1 else "pairs under one drive"
    if len(independent) < 3:
        growth = np.diff(curve)
        independent = np.array([piece.mean() for piece in np.array_split(growth, min(_PIECES, len(growth)))])
        what = "pieces of the fall"
    error = float(independent.std(ddof=1) / len(independent) ** 0.5)
    return t_interval(value, error, len(independent) - 1, f"{len(independent)} {what}, Student's t")


# ---- Lyapunov spectrum and Kaplan–Yorke dimension of a system whose state can be set.


Step: TypeAlias = Callable[[int, np.ndarray], np.ndarray]

# A state smaller than this counts as this large where a small distance from it is chosen.
_SMALL = 1e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class LyapunovSpectrum(Measured):
    """`value` is the largest exponent, per time step, in natural logarithms.

    `exponents` (exponents,), falling, with `exponent_intervals`; `growth` (time, exponents) is what each step did to
    each direction. `dimension` is the Kaplan–Yorke dimension, NaN where more exponents would be needed. `known`
    (known,) are exponents of the system that this one should imitate, empty where there is none.
    """

    exponents: np.ndarray
    exponent_intervals: tuple[Interval, ...]
    dimension: float
    dimension_interval: Interval
    growth: np.ndarray
    known: np.ndarray


def lyapunov_spectrum(
    step: Step,
    states: Any,
    *,
    steps: int,
    exponents: int | None = None,
    settle: int = 100,
    size: float | None = None,
    known: Sequence[float] = (),
) -> LyapunovSpectrum:
    """The largest Lyapunov exponents, by QR decompositions (Benettin et al. 1980; Shimada & Nagashima 1979).

    Beside each trajectory run others at small distances in orthogonal directions. After every step these are made
    orthogonal again; the mean logarithm of what the step made of each of them is an exponent. For a driven system
    these are the conditional exponents; for a closed loop those of the autonomous system.

    Parameters
    ----------
    step
        One time step: number of the step, and states (any number, dimension) -> the states after it. The rows are the
        trajectories, then all of them displaced in the first direction, and so on.
    states
        (trials, dimension), where the trajectories begin.
    steps
        Of each trajectory; the first `settle` turn the directions and do not count.
    exponents
        How many of the largest ones; by default all.
    size
        The distance, relative to the size of the state; by default the square root of the precision of `states`. What
        a step shrinks by more than this factor cannot be told.

    The intervals are those of batch means over time of the mean over the trials; that of the dimension is of the
    jackknife over as many pieces of time. Raises `InputRangeError` where a trajectory is not finite, and
    `ConfigurationError`.
    """
    given = np.asarray(states)
    x = checked(given, ("trials", "dimension"))
    trials, dimension = x.shape
    count = dimension if exponents is None else exponents
    at_least(exponents=(count, 1), settle=(settle, 0))
    if count > dimension:
        raise ConfigurationError(f"exponents is {count}, but the state has {dimension} numbers")
    if steps - settle < 2 * BATCHES:
        raise ConfigurationError(f"{steps} steps are too few: {settle} to settle and {2 * BATCHES} for an interval")
    relative = _relative(size, given.dtype)
    random = generator(0, "measures/lyapunov spectrum").standard_normal((trials, dimension, count))
    directions = np.linalg.qr(random)[0]
    growth = np.empty((steps, count))
    for t in range(steps):
        distance = relative * np.maximum(np.linalg.norm(x, axis=1), _SMALL)
        beside = x + distance[:, None] * np.moveaxis(directions, 2, 0)
        after = step(t, np.concatenate([x[None], beside]).reshape(-1, dimension).astype(given.dtype))
        after = after.astype(np.float64).reshape(count + 1, trials, dimension)
        if not np.isfinite(after).all():
            raise InputRangeError(f"a trajectory is not finite after {t + 1} steps: the system diverges")
        x = after[0]
        directions, upper = np.linalg.qr(np.moveaxis(after[1:] - x, 0, 2) / distance[:, None, None])
        lengths = np.abs(np.diagonal(upper, axis1=1, axis2=2))
        # What has vanished in rounding is known to have shrunk at least so far.
        growth[t] = np.log(np.maximum(lengths, np.finfo(np.float64).tiny)).mean(axis=0)
    counted = growth[settle:]
    over_time = [batch_means(series) for series in counted.T]
    found = np.array([one.mean for one in over_time])
    intervals = tuple(one.interval(one.mean) for one in over_time)
    order = np.argsort(-found, kind="stable")
    value = kaplan_yorke(found[order])
    pieces = np.array_split(counted, BATCHES)
    without = [np.concatenate(pieces[:left] + pieces[left + 1 :]).mean(axis=0) for left in range(BATCHES)]
    error = jackknife_error(np.array([kaplan_yorke(np.sort(means)[::-1]) for means in without]))
    method = f"jackknife over {BATCHES} pieces of time, Student's t"
    first = intervals[order[0]]
    known_dimension = f"Kaplan–Yorke dimension {value:.4g}."
    dimension_note = f"The dimension needs more than {count} exponents." if math.isnan(value) else known_dimension
    return LyapunovSpectrum(
        value=float(found[order[0]]),
        interval=first,
        note=" ".join(filter(None, [dimension_note, f"From {trials} trials of {steps} steps.", remark(first)])),
        exponents=found[order],
        exponent_intervals=tuple(intervals[place] for place in order),
        dimension=value,
        dimension_interval=t_interval(value, error, BATCHES - 1, method),
        growth=growth[:, order],
        known=np.asarray(known, dtype=np.float64),
    )


def kaplan_yorke(exponents: np.ndarray) -> float:
    """Kaplan–Yorke dimension of falling exponents: j + Σ_{i≤j} λ_i / |λ_{j+1}|, with the largest j whose sum is >= 0.

    (Kaplan & Yorke 1979.) NaN where the sum of all that are known is not negative.
    """
    sums = np.cumsum(exponents)
    below = np.flatnonzero(sums < 0)
    if not len(below):
        return math.nan
    j = int(below[0])
    return j + (float(sums[j - 1]) / abs(float(exponents[j])) if j else 0.0)


# ---- Echo-state index: how many different responses to one drive a device can end up in.


# The last half of the drive in pieces tells whether two responses still approach each other: how often chance may
# say so of any pair, and the least share of their distance that they come closer by in half of these pieces.
_HALF_PIECES = 20
_FEWEST_HALF_PIECES = 6
_CHANCE = 0.01
_LEAST_FALL = 0.001


@dataclass(frozen=True, eq=False, kw_only=True)
class EchoStateIndex(Measured):
    """`value` is the number of different responses.

    `response` (initial,) numbers the response that each initial state ended up in; those that still approach each other
    are one. `distances` (initial, initial) are root mean squares over window and nodes, relative to the spread of the
    states; up to `tolerance` they are the same response. `approach` (initial, time) is the distance to the first
    initial state's response over time.
    """

    response: np.ndarray
    distances: np.ndarray
    approach: np.ndarray
    tolerance: float


def echo_state_index(
    states: Any, *, window: int | None = None, tolerance: float = 0.01, noise: float = 0.0
) -> EchoStateIndex:
    """Number of distinct attracting responses to one drive (echo index; Ceni, Ashwin, Livi & Postlethwaite 2020).

    `states` (initial, time, nodes) are responses to the same inputs from different initial states, or after different
    pasts. Two are the same if their distance over the last `window` steps (by default a quarter) is at most `tolerance`
    of the spread of the states plus three times `noise`, the root mean square difference of a node between two drives
    from the same initial state; responses linked by a chain of such pairs are one. An index of 1 is the echo state
    property, as far as this drive and these initial states can show it. In a chaotic device each
    initial state keeps a response of its own.

    Responses that have not met but come closer all through the last half of the drive, by more than their fluctuation
    explains, are not known to be different. They count as one, and the interval reaches up to the number of all that
    have not met.

    Otherwise what was found is the lower end of the interval, and it has no upper end: a response that is reached from
    a share p of the initial states is missed with the probability (1 - p)^initial; the note gives the share above which
    it would have been seen with the probability `CONFIDENCE`. Raises `ShapeError`, `ConfigurationError`, and
    `InputRangeError` also where the noise is more than a third of the spread.
    """
    x = checked(states, ("initial", "time", "nodes"))
    initial, steps = x.shape[:2]
    if initial < 2:
        raise ShapeError("an echo-state index needs responses from at least 2 initial states")
    window = max(1, steps // 4) if window is None else window
    if not 1 <= window <= steps:
        raise ConfigurationError(f"window is {window}; it lies between 1 and the {steps} steps there are")
    if tolerance < 0 or noise < 0:
        raise ConfigurationError("tolerance and noise cannot be negative")
    last = x[:, -window:]
    spread = float((last - last.mean(axis=(0, 1))).std()) or 1.0
    last = last.reshape(initial, -1)
    distances = np.stack([np.sqrt(np.mean((last - row) ** 2, axis=1)) for row in last]) / spread
    if 3 * noise > spread:
        raise InputRangeError(
            f"two drives from the same initial state already differ by {noise / spread:.0%} of the spread of the "
            "states: the device is chaotic, or too noisy to tell its responses apart"
        )
    limit = tolerance + 3 * noise / spread
    met = distances <= limit
    apart = _components(met)
    response = _components(met | _approaching(x[:, steps // 2 :], apart))
    found, most = int(response.max()) + 1, int(apart.max()) + 1
    share = 1 - (1 - CONFIDENCE) ** (1 / initial)
    note = f"Seen from {initial} initial states: one that more than {share:.0%} of all lead to would have been found."
    interval = Interval(float(found), np.inf, "what was found; no upper end (binomial, see the note)")
    if found < most:
        note += f" {most} have not met, but some of them are still approaching each other: drive longer."
        method = "of the responses seen: those that still approach each other counted as one, and counted each"
        interval = Interval(float(found), float(most), method)
    elif found == initial:
        note += " None of them met: chaos, noise beyond the tolerance, or too short a drive."
    return EchoStateIndex(
        value=float(found),
        interval=interval,
        note=note,
        response=response,
        distances=distances,
        approach=np.sqrt(np.mean((x - x[0]) ** 2, axis=2)) / spread,
        tolerance=limit,
    )


def _approaching(x: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Which pairs of different responses come closer all the time in `x` (initial, time, nodes).

    That is a falling line through the logarithm of their distance in consecutive pieces, which is as good for
    distances that fall like exp(-t) as for slower ones and those that end in noise. What is left about the line is
    correlated from piece to piece (first-order), so it counts for fewer pieces.
    """
    initial, steps = x.shape[:2]
    closer = np.zeros((initial, initial), dtype=bool)
    first, second = np.nonzero(np.triu(response[:, None] != response))
    pieces = min(_HALF_PIECES, steps)
    if not len(first) or pieces < _FEWEST_HALF_PIECES:
        return closer
    edges = np.linspace(0, steps, pieces + 1).astype(int)[:-1]
    lengths = np.diff(edges, append=steps)
    pairs = zip(first, second, strict=True)
    squares = np.stack([np.add.reduceat(np.mean((x[i] - x[j]) ** 2, axis=1), edges) / lengths for i, j in pairs])
    curves = np.log(np.maximum(squares, np.finfo(float).tiny)) / 2
    at = np.arange(pieces) - (pieces - 1) / 2
    slope = curves @ at / (at @ at)
    rest = curves - curves.mean(axis=1, keepdims=True) - slope[:, None] * at
    power = np.maximum((rest**2).sum(axis=1), np.finfo(float).tiny)
    correlation = np.clip((rest[:, 1:] * rest[:, :-1]).sum(axis=1) / power, 0.0, 0.9)
    error = np.sqrt(power / (pieces - 2) / (at @ at) * (1 + correlation) / (1 - correlation))
    # In slow chaos pairs come closer for a while, and others go apart as fast: no fall counts that is not steeper than
    # the steepest rise.
    least = max(_LEAST_FALL / (pieces / 2), float(slope.max()))
    falling = (-slope > least) & (-slope > error * t_quantile(1 - _CHANCE / len(slope), pieces - 2))
    closer[first, second] = closer[second, first] = falling
    return closer


def _components(linked: np.ndarray) -> np.ndarray:
    """Number of the connected component that each row belongs to, from 0 in the order of their first rows."""
    first, count = np.arange(len(linked)), len(linked)
    while True:
        # Every row is linked to itself.
        reached = np.where(linked, first, count).min(axis=1)
        if (reached == first).all():
            return np.unique(first, return_inverse=True)[1]
        first = reached
