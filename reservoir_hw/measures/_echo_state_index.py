"""Echo-state index: how many different responses to one drive a device can end up in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.statistics import t_quantile
from reservoir_hw.measures._measured import CONFIDENCE, Interval, Measured, checked

# The last half of the drive in pieces tells whether two responses still approach each other: how often chance may
# say so of any pair, and the least share of their distance that they come closer by in half of these pieces.
_PIECES = 20
_FEWEST_PIECES = 6
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


def echo_state_index(states: Any, *, tolerance: float = 0.01, noise: float = 0.0) -> EchoStateIndex:
    """Number of distinct attracting responses to one drive (echo index; Ceni, Ashwin, Livi & Postlethwaite 2020).

    `states` (initial, time, nodes) are responses to the same inputs from different initial states, or after different
    pasts. Two are the same if their distance over the last quarter of the steps is at most `tolerance`
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
    if tolerance < 0 or noise < 0:
        raise ConfigurationError("tolerance and noise cannot be negative")
    last = x[:, -max(1, steps // 4) :]
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
    pieces = min(_PIECES, steps)
    if not len(first) or pieces < _FEWEST_PIECES:
        return closer
    edges = np.linspace(0, steps, pieces + 1).astype(int)[:-1]
    lengths = np.diff(edges, append=steps)
    squares = np.stack(
        [
            np.add.reduceat(np.mean((x[i] - x[j]) ** 2, axis=1), edges) / lengths
            for i, j in zip(first, second, strict=True)
        ]
    )
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
    count = len(linked)
    label = np.full(count, -1)
    for start in range(count):
        if label[start] >= 0:
            continue
        number = label.max() + 1
        reached = np.zeros(count, dtype=bool)
        reached[start] = True
        while True:
            further = linked[reached].any(axis=0)
            if (further <= reached).all():
                break
            reached |= further
        label[reached] = number
    return label
