"""What responses to the same drive have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ShapeError
from reservoir_hw.core.statistics import jackknife_error
from reservoir_hw.measures._arrays import after_washout, checked
from reservoir_hw.measures._measured import Interval
from reservoir_hw.measures._statistics import (
    BATCHES,
    FEWEST,
    correlation_times,
    independent_pieces,
    no_interval,
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
    confidence: float,
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
    confidence
        Of the interval.

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
        return no_interval(confidence)
    edges = np.linspace(0, steps, pieces + 1).astype(int)
    left = (steps - np.diff(edges))[:, None]
    common, power = (_without(part, edges) / left for part in shared_power(x))
    offsets = shared_power(_without(x, edges) / left)
    value = share(*(part.mean(axis=0)[None] for part in shared_power(x)))[0]
    without = share(common - offsets[0], power - offsets[1])
    error = jackknife_error(without)
    centre = float(pieces * value - (pieces - 1) * without.mean())
    return t_interval(centre, error, pieces - 1, confidence, f"jackknife over {pieces} pieces of time, Student's t")


def _without(series: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sums over time without one of the pieces that begin at `edges`: (..., time, nodes) -> (..., pieces, nodes)."""
    sums = np.add.reduceat(series, edges[:-1], axis=-2)
    return sums.sum(axis=-2, keepdims=True) - sums
