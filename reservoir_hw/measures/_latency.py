"""How many steps late the states of a device are, from their cross-correlation with its inputs."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import as_numpy

# As far as it is looked for, and of that no more than a quarter of a short drive.
_LONGEST = 64
_PART = 4

# How often a delay that shows nothing of the input passes for one that does, in all that is looked at.
_FALSE_ALARMS = 1e-4

# Correlations before the latency must be smaller than this part of the largest, by so many of their errors.
_BEFORE = 0.5
_SURE = 2.0


def latency_of(inputs: Any, states: Any) -> int | None:
    """Steps after which an input is first seen in any state: 0 where its own row shows it; None where nobody can tell.

    `inputs` (time, channels) are independent from step to step, `states` (time, nodes) what they gave, or (repeats,
    time, nodes) of repeated drives, whose mean is looked at. Every node is correlated with every input some steps ago,
    and with its square: what sees the power of light cannot tell an input from its negative. With independent inputs a
    correlation over n steps that nothing is behind has the standard error 1/√n, whatever the states are.
    """
    u = np.asarray(as_numpy(inputs), dtype=np.float64)
    x = np.asarray(as_numpy(states), dtype=np.float64)
    x = x.mean(axis=0) if x.ndim == 3 else x
    delays = min(_LONGEST, len(u) // _PART)
    if not delays:
        return None
    seen = np.concatenate([u, (u - u.mean(axis=0)) ** 2], axis=1)
    count = delays * seen.shape[1] * x.shape[1]
    needed = NormalDist().inv_cdf(1 - _FALSE_ALARMS / (2 * count))
    largest = np.zeros(delays)
    for delay in range(delays):
        largest[delay] = np.abs(_normal(seen[: len(u) - delay]).T @ _normal(x[delay:])).max()
    steps = len(u) - np.arange(delays)
    found = np.flatnonzero(largest * np.sqrt(steps) > needed)
    if not len(found):
        return None
    first = int(found[0])
    # What grows slowly is no latency: before it there must be next to nothing.
    before = (largest[:first] - largest[found].max() * _BEFORE) * np.sqrt(steps[:first])
    return first if (before < -_SURE).all() else None


def about_latency(steps: int) -> str:
    """A sentence for a device that is late."""
    return (
        f"the states are late by {steps} step{'s' * (steps > 1)}: an input is first seen so many rows below its own "
        f"(latency_steps: {steps} of kind python puts them right)"
    )


def _normal(values: np.ndarray) -> np.ndarray:
    """Columns (time, ·) without their mean, of length 1; those that do not move are 0."""
    centred = values - values.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    still = length <= 1e-9 * np.sqrt(len(values)) * np.abs(values).max(axis=0)
    return centred / np.where(still, np.inf, length)
