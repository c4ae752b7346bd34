"""Drift: slow change of the response over a recording or from repeat to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.measures._arrays import checked, moving_nodes
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._statistics import check_confidence, independent_pieces

_SEGMENTS = 20

# Parts of a segment, whose means tell over what time a node is correlated.
_PARTS = 50

# Independent segments that a line with an error needs.
_FEWEST = 5

# Changes below this, in standard deviations, are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class Drift(Measured):
    """`value` is the largest change of a node's mean, from start to end, in its standard deviations.

    `mean_change` and `spread_change` (nodes,) are the changes of each node's mean and of its standard deviation, in
    units of the latter over the whole; `mean_significant` and `spread_significant` (nodes,) say which are more than
    chance. `means` and `spreads` (segments, nodes) are what the lines were fitted to, relative to the whole.
    """

    mean_change: np.ndarray
    spread_change: np.ndarray
    mean_significant: np.ndarray
    spread_significant: np.ndarray
    means: np.ndarray
    spreads: np.ndarray


def drift(states: Any, *, washout: int = 0, segments: int = _SEGMENTS, confidence: float = 0.95) -> Drift:
    """Trend of each node's mean and standard deviation over time.

    `states` (time, nodes), of one long drive with stationary inputs, is cut into `segments` equal pieces; `states`
    (repeats, time, nodes), the responses to the same drive in the order in which they were taken, are the segments
    themselves. These find much smaller drifts, because the inputs are the same in each.

    A straight line is fitted to the segments of each node. A change is significant where it exceeds Student's quantile
    for `confidence` shared by means and spreads of all nodes (Bonferroni). Repeats are taken for independent. Of one
    long drive, segments are joined until each is several times as long as the time over which the node is correlated,
    as it was measured about the line; a node with too few such segments may be drifting or just be slow, and nothing
    is said of it. The interval of the largest change is simultaneous for all nodes, too: it reaches from 0 if no node
    drifts significantly, and has no upper end if there are nodes that nothing is said of.

    Raises `ShapeError` for fewer than three segments or less than two steps in each, `InputRangeError` for NaN and if
    nothing moves, `ConfigurationError` for a washout that leaves nothing.
    """
    check_confidence(confidence)
    pieces = _pieces(states, washout, segments)
    repeats = len(np.shape(states)) == 3
    found = [_moments(piece, 0 if repeats else _PARTS) for piece in pieces]
    means, deviation = np.stack([moments for moments, _ in found], axis=1)
    centre = means.mean(axis=0)
    spread = np.sqrt((deviation**2 + (means - centre) ** 2).mean(axis=0))
    moving = moving_nodes(centre, spread)
    scale = np.where(moving, spread, np.inf)
    means, spreads = (means - centre) / scale, deviation / scale
    nodes = len(scale)
    independent = np.full((2, nodes), len(pieces))
    if not repeats:
        courses = np.concatenate([course for _, course in found], axis=1)
        independent[:, moving] = [_independent(course[:, moving], len(pieces)) for course in courses]
    probability = 1 - (1 - confidence) / (4 * nodes)
    mean_change, half = _trend(means, independent[0], probability)
    spread_change, spread_half = _trend(spreads, independent[1], probability)
    size = np.abs(mean_change)
    mean_significant = size > half + _ROUNDING
    spread_significant = np.abs(spread_change) > spread_half + _ROUNDING
    slow = np.count_nonzero(np.isinf(half))
    notes = [
        f"The mean drifts in {np.count_nonzero(mean_significant)} of {nodes} nodes, the size of the response in "
        f"{np.count_nonzero(spread_significant)}.",
        f"{slow} nodes are too slow for a verdict: record longer, or repeat the drive." if slow else "",
    ]
    return Drift(
        value=float(size.max()),
        interval=Interval(
            float(np.maximum(size - half, 0.0).max()),
            float((size + half).max()),
            confidence,
            f"lines through {_counted(independent[0])} segments, Student's t, simultaneous for all nodes (Bonferroni)",
        ),
        note=" ".join(filter(None, notes)),
        mean_change=mean_change,
        spread_change=spread_change,
        mean_significant=mean_significant,
        spread_significant=spread_significant,
        means=means,
        spreads=spreads,
    )


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
