"""Echo-state index: how many different responses to one drive a device can end up in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.measures._arrays import checked
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._statistics import check_confidence


@dataclass(frozen=True, eq=False, kw_only=True)
class EchoStateIndex(Measured):
    """`value` is the number of different responses.

    `response` (initial,) numbers the response that each initial state ended up in. `distances` (initial, initial) are
    root mean squares over window and nodes, relative to the spread of the states; up to `tolerance` they are the same
    response. `approach` (initial, time) is the distance to the first initial state's response over time.
    """

    response: np.ndarray
    distances: np.ndarray
    approach: np.ndarray
    tolerance: float


def echo_state_index(
    states: Any, *, window: int | None = None, tolerance: float = 0.01, noise: float = 0.0, confidence: float = 0.95
) -> EchoStateIndex:
    """Number of distinct attracting responses to one drive (echo index; Ceni, Ashwin, Livi & Postlethwaite 2020).

    `states` (initial, time, nodes) are responses to the same inputs from different initial states, or after different
    pasts. Two are the same if their distance over the last `window` steps (by default a quarter) is at most `tolerance`
    of the spread of the states plus three times `noise`, the root mean square difference of a node between two drives
    from the same initial state; responses linked by a chain of such pairs are one. An index of 1 is the echo state
    property, as far as this drive and these initial states can show it. In a chaotic device each
    initial state keeps a response of its own.

    What was found is the lower end of the interval. It has no upper end: a response that is reached from a share p of
    the initial states is missed with the probability (1 - p)^initial; the note gives the share above which it would
    have been seen with the probability `confidence`. Raises `ShapeError`, `ConfigurationError`, and
    `InputRangeError` also where the noise is more than a third of the spread.
    """
    check_confidence(confidence)
    x = checked(states, ("initial", "time", "nodes"))
    initial, steps = x.shape[:2]
    if initial < 2:
        raise ShapeError("an echo-state index needs responses from at least 2 initial states")
    window = max(1, steps // 4) if window is None else window
    if not 1 <= window <= steps:
        raise ConfigurationError(f"window is {window}; it lies between 1 and the {steps} steps there are")
    if tolerance < 0 or noise < 0:
        raise ConfigurationError("tolerance and noise cannot be negative")
    last = x[:, -window:].reshape(initial, -1)
    spread = float((x[:, -window:] - x[:, -window:].mean(axis=(0, 1))).std()) or 1.0
    distances = np.stack([np.sqrt(np.mean((last - row) ** 2, axis=1)) for row in last]) / spread
    if 3 * noise > spread:
        raise InputRangeError(
            f"two drives from the same initial state already differ by {noise / spread:.0%} of the spread of the "
            "states: the device is chaotic, or too noisy to tell its responses apart"
        )
    limit = tolerance + 3 * noise / spread
    response = _components(distances <= limit)
    found = int(response.max()) + 1
    share = 1 - (1 - confidence) ** (1 / initial)
    note = f"Seen from {initial} initial states: one that more than {share:.0%} of all lead to would have been found."
    if found == initial:
        note += " None of them met: chaos, noise beyond the tolerance, or too short a drive."
    return EchoStateIndex(
        value=float(found),
        interval=Interval(float(found), np.inf, confidence, "what was found; no upper end (binomial, see the note)"),
        note=note,
        response=response,
        distances=distances,
        approach=np.sqrt(np.mean((x - x[0]) ** 2, axis=2)) / spread,
        tolerance=limit,
    )


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
