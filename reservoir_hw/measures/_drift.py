"""Drift: slow change of the response over a recording or from repeat to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.errors import ConfigurationError, ShapeError
from reservoir_hw.measures._arrays import checked, moving_nodes
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._statistics import check_confidence, t_quantile

_SEGMENTS = 20

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
    for `confidence` shared by means and spreads of all nodes (Bonferroni). The segments are taken for independent: they
    must be much longer than the memory of the device. The interval of the largest change is simultaneous for all
    nodes, too: it reaches from 0 if no node drifts significantly.

    Raises `ShapeError` for fewer than three segments or less than two steps in each, `InputRangeError` for NaN and if
    nothing moves, `ConfigurationError` for a washout that leaves nothing.
    """
    check_confidence(confidence)
    pieces = _pieces(states, washout, segments)
    means, deviation = np.stack([_moments(piece) for piece in pieces], axis=1)
    centre = means.mean(axis=0)
    spread = np.sqrt((deviation**2 + (means - centre) ** 2).mean(axis=0))
    scale = np.where(moving_nodes(centre, spread), spread, np.inf)
    means, spreads = (means - centre) / scale, deviation / scale
    nodes = len(scale)
    quantile = t_quantile(1 - (1 - confidence) / (4 * nodes), len(pieces) - 2)
    mean_change, mean_error = _trend(means)
    spread_change, spread_error = _trend(spreads)
    size, half = np.abs(mean_change), quantile * mean_error
    mean_significant = size > half + _ROUNDING
    spread_significant = np.abs(spread_change) > quantile * spread_error + _ROUNDING
    return Drift(
        value=float(size.max()),
        interval=Interval(
            float(np.maximum(size - half, 0.0).max()),
            float((size + half).max()),
            confidence,
            f"lines through {len(pieces)} segments, Student's t, simultaneous for all nodes (Bonferroni)",
        ),
        note=(
            f"The mean drifts in {np.count_nonzero(mean_significant)} of {nodes} nodes, the size of the response in "
            f"{np.count_nonzero(spread_significant)}."
        ),
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


def _moments(piece: Any) -> np.ndarray:
    """Means and standard deviations of the nodes (2, nodes)."""
    x = checked(piece, ("time", "nodes"))
    return np.stack([x.mean(axis=0), x.std(axis=0)])


def _trend(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Change of the fitted line from the first to the last segment, and its standard error; (nodes,) each."""
    count = len(values)
    time = np.arange(count) - (count - 1) / 2
    slope = time @ values / (time @ time)
    rest = values - values.mean(axis=0) - time[:, None] * slope
    error = np.sqrt((rest**2).sum(axis=0) / (count - 2) / (time @ time))
    return slope * (count - 1), error * (count - 1)
