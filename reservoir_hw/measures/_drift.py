"""Drift: slow change of the response over a recording or from repeat to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.measures._measured import CONFIDENCE, Interval, Measured, checked, independent_pieces, moving_nodes

_SEGMENTS = 20

# Parts of a segment, whose means tell over what time a node is correlated.
_PARTS = 50

# Independent segments that a line with an error needs.
_FEWEST = 5

# Changes below this, in standard deviations, are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Course:
    """How one thing about each node changes, from start to end, (nodes,); `values` (segments, nodes) is its course.

    `half` is half the interval of `change`, infinite for a node of which nothing is said. `weight` (nodes,) is what a
    change of 1 does to the states of a node, in their standard deviations.
    """

    change: np.ndarray
    half: np.ndarray
    values: np.ndarray
    weight: np.ndarray

    @property
    def significant(self) -> np.ndarray:
        """Which nodes change by more than chance (nodes,)."""
        return np.abs(self.change) > self.half + _ROUNDING

    @property
    def most(self) -> int:
        """The node in which it changes most, of those that change significantly if there are any."""
        counted = self.significant if self.significant.any() else np.ones(len(self.change), dtype=bool)
        return int(np.where(counted, np.abs(self.change) * self.weight, -1.0).argmax())

    def interval(self) -> Interval:
        """Of the node in which it changes most."""
        change, half = float(self.change[self.most]), float(self.half[self.most])
        return Interval(change - half, change + half, "a line through segments, Student's t (Bonferroni)")


@dataclass(frozen=True, eq=False, kw_only=True)
class Drift(Measured):
    """`value` is the largest change of a node from start to end, of its mean or by its gain, in its deviations.

    `mean_change`, `offset_change` and `noise_change` (nodes,) are in standard deviations of a node, `gain_change` is a
    share of its gain; `..._significant` say which are more than chance. `means`, `gains`, `offsets` and `noises`
    (segments, nodes) are what the lines were fitted to. `mean`, `gain`, `offset` and `noise` are the intervals of the
    node in which each changes most. A gain that falls takes a mean with it that is not 0, and leaves the offset.

    Of a single drive the gain is that of the whole response, and offset and noise are not known: `offset` and `noise`
    are None, and NaN their numbers.
    """

    mean_change: np.ndarray
    offset_change: np.ndarray
    gain_change: np.ndarray
    noise_change: np.ndarray
    mean_significant: np.ndarray
    offset_significant: np.ndarray
    gain_significant: np.ndarray
    noise_significant: np.ndarray
    means: np.ndarray
    offsets: np.ndarray
    gains: np.ndarray
    noises: np.ndarray
    mean: Interval
    gain: Interval
    offset: Interval | None
    noise: Interval | None


def drift(states: Any, *, washout: int = 0, segments: int = _SEGMENTS) -> Drift:
    """Trend of each node's mean, gain, offset and noise over time.

    `states` (time, nodes), of one long drive with stationary inputs, is cut into `segments` equal pieces; `states`
    (repeats, time, nodes), the responses to the same drive in the order in which they were taken, are the segments
    themselves. These find much smaller drifts, because the inputs are the same in each: gain and offset of a node are
    those of the line from its mean response to the response of a repeat, noise is what is left. Of a single drive they
    are its standard deviation and its mean.

    A straight line is fitted to the segments of each node. A change is significant where it exceeds Student's quantile
    for `CONFIDENCE` shared by all that is fitted of all nodes (Bonferroni). Repeats are taken for independent. Of one
    long drive, segments are joined until each is several times as long as the time over which the node is correlated,
    as it was measured about the line; a node with too few such segments may be drifting or just be slow, and nothing
    is said of it. The interval of the largest change is simultaneous for all nodes, too: it reaches from 0 if no node
    drifts significantly, and has no upper end if there are nodes that nothing is said of.

    Raises `ShapeError` for fewer than three segments or less than two steps in each, `InputRangeError` for NaN and if
    nothing moves, `ConfigurationError` for a washout that leaves nothing.
    """
    pieces = _pieces(states, washout, segments)
    repeats = len(np.shape(states)) == 3
    found = [_moments(piece, 0 if repeats else _PARTS) for piece in pieces]
    means, deviation = np.stack([moments for moments, _ in found], axis=1)
    centre = means.mean(axis=0)
    spread = np.sqrt((deviation**2 + (means - centre) ** 2).mean(axis=0))
    moving = moving_nodes(centre, spread)
    scale = np.where(moving, spread, np.inf)
    nodes = len(scale)
    gains, noises, weight = deviation / scale, np.full_like(means, np.nan), np.ones(nodes)
    offsets = noises
    if repeats:
        gains, noises, response = _of_repeats(pieces, means)
        noises, weight, offsets = noises / scale, response / scale, (means - gains * centre) / scale
    probability = 1 - (1 - CONFIDENCE) / ((8 if repeats else 4) * nodes)
    independent = np.full((2, nodes), len(pieces))
    if not repeats:
        courses = np.concatenate([course for _, course in found], axis=1)
        independent[:, moving] = [_independent(course[:, moving], len(pieces)) for course in courses]
    means = (means - centre) / scale
    mean, offset, noise = (
        Course(*_trend(values, independent[0], probability), values, np.ones(nodes))
        for values in (means, offsets, noises)
    )
    gain = Course(*_trend(gains, independent[1], probability), gains, weight)
    sizes = np.concatenate([np.abs(course.change) * course.weight for course in (mean, gain)])
    halves = np.concatenate([np.where(np.isinf(one.half), np.inf, one.half * one.weight) for one in (mean, gain)])
    slow = np.count_nonzero(np.isinf(mean.half) | np.isinf(gain.half))
    courses = {"mean": mean, "offset": offset, "gain": gain, "noise": noise}
    return Drift(
        value=float(sizes.max()),
        interval=Interval(
            float(np.maximum(sizes - halves, 0.0).max()),
            float((sizes + halves).max()),
            f"lines through {_counted(independent[0])} segments, Student's t, simultaneous for all nodes (Bonferroni)",
        ),
        note=" ".join(
            [
                _said("mean", mean, " standard deviations", 1),
                _said("gain" if repeats else "size of the response", gain, " %", 100),
                *(_said(name, courses[name], " standard deviations", 1) for name in ("offset", "noise") if repeats),
                *([f"{slow} nodes are too slow for a verdict: record longer, or repeat the drive."] if slow else []),
            ]
        ),
        **{f"{name}_change": course.change for name, course in courses.items()},
        **{f"{name}_significant": course.significant for name, course in courses.items()},
        **{f"{name}s": course.values for name, course in courses.items()},
        mean=mean.interval(),
        gain=gain.interval(),
        offset=offset.interval() if repeats else None,
        noise=noise.interval() if repeats else None,
    )


def _of_repeats(pieces: list[Any], means: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gains and noise (repeats, nodes), of the lines from the mean response to each, and its deviation (nodes,)."""
    response = np.mean([np.asarray(piece, dtype=np.float64) for piece in pieces], axis=0)
    response -= response.mean(axis=0)
    power = (response**2).sum(axis=0)
    gains, noises = np.ones_like(means), np.zeros_like(means)
    for number, piece in enumerate(pieces):
        moved = np.asarray(piece, dtype=np.float64) - means[number]
        gains[number] = (moved * response).sum(axis=0) / np.where(power > 0, power, np.inf)
        noises[number] = np.sqrt(((moved - gains[number] * response) ** 2).mean(axis=0))
    return gains, noises, np.sqrt(power / len(response))


def _said(what: str, course: Course, unit: str, factor: float) -> str:
    """ "The gain changes in 8 of 8 nodes, by -9.9 % in node 3." """
    count, most = np.count_nonzero(course.significant), course.most
    largest = f", by {factor * course.change[most]:+.3g}{unit} in node {most}" if count else ""
    return f"The {what} changes in {count} of {len(course.change)} nodes{largest}."


def _pieces(states: Any, washout: int, segments: int) -> list[Any]:
    """The segments (time, nodes), which are still to be read."""
    shape = np.shape(states)
    if len(shape) not in (2, 3) or 0 in shape:
        raise ShapeError(f"states must be (time, nodes) or (repeats, time, nodes), not {shape}")
    steps = shape[-2] - washout
    if washout < 0 or steps < 1:
        raise ConfigurationError(f"washout is {washout}, but the recording has {shape[-2]} steps")
    count, length = (segments, steps // max(segments, 1)) if len(shape) == 2 else (shape[0], steps)
    if count < 3 or length < 2:
        raise ShapeError(f"a trend needs at least 3 segments or repeats of at least 2 steps, not {count} of {length}")
    if len(shape) == 3:
        return [states[repeat, washout:] for repeat in range(count)]
    first = shape[0] - length * count
    return [states[first + length * number : first + length * (number + 1)] for number in range(count)]


def _moments(piece: Any, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the nodes (2, nodes), and the course of both over time (2, parts, nodes).

    The course is the means of equal parts, as many as there are steps for, of the states and of their squared
    deviations; of no parts it is empty.
    """
    x = checked(piece, ("time", "nodes"))
    mean = x.mean(axis=0)
    moments = np.stack([mean, x.std(axis=0)])
    parts = min(parts, len(x))
    if not parts:
        return moments, np.empty((2, 0, x.shape[1]))
    last = x[len(x) % parts :].reshape(parts, -1, x.shape[1])
    return moments, np.stack([last.mean(axis=1), ((last - mean) ** 2).mean(axis=1)])


def _independent(course: np.ndarray, segments: int) -> np.ndarray:
    """How many segments of each node (nodes,) are nearly independent, from its course (time, nodes); 0: too few."""
    time = np.arange(len(course)) - (len(course) - 1) / 2
    rest = course - course.mean(axis=0)
    rest -= time[:, None] * (time @ rest / (time @ time))
    found = independent_pieces(rest, segments)
    return np.where(found >= min(_FEWEST, segments), found, 0)


def _trend(values: np.ndarray, independent: np.ndarray, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Change of the fitted line from the first to the last segment, and how much of it may be chance; (nodes,) each.

    `values` is (segments, nodes); neighbouring segments are joined to `independent` (nodes,) ones or a few less.
    """
    segments = len(values)
    change, _ = _line(values)
    half = np.full(len(change), np.inf)
    for count in np.unique(independent[independent > 0]):
        chosen = independent == count
        joined = -(-segments // count)
        left = segments // joined
        rows = values[segments - left * joined :, chosen].reshape(left, joined, -1).mean(axis=1)
        half[chosen] = t_quantile(probability, left - 2) * _line(rows)[1] * (segments - 1) / (joined * (left - 1))
    return change, half


def _line(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Change of the line through (segments, nodes) from first to last, and its standard error; (nodes,) each."""
    count = len(values)
    time = np.arange(count) - (count - 1) / 2
    slope = time @ values / (time @ time)
    rest = values - values.mean(axis=0) - time[:, None] * slope
    error = np.sqrt((rest**2).sum(axis=0) / (count - 2) / (time @ time))
    return slope * (count - 1), error * (count - 1)


def _counted(independent: np.ndarray) -> str:
    """ "20", or "5 to 20"."""
    known = independent[independent > 0]
    if not len(known):
        return "too few"
    return f"{known.max()}" if known.min() == known.max() else f"{known.min()} to {known.max()}"
