"""How many steps late the states of a device are, from their cross-correlation with its inputs."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import as_numpy

# As far as it is looked for, and of that no more than a quarter of a short drive.
_LONGEST = 64
_PART = 4

# Steps and nodes that are looked at: of more they say no more.
_STEPS, _NODES = 8192, 64

# Steps for each direction of the states.
_STEPS_FOR_EACH = 10

# How often a delay that shows nothing of the input passes for one that does, in all that is looked at.
_FALSE_ALARMS = 1e-4

# What is seen before the latency must be less than this part of the most that is seen, by so many of its errors.
_BEFORE = 0.25
_SURE = 2.0


def latency_of(inputs: Any, states: Any) -> int | None:
    """Steps after which an input is first seen in the states: 0 where its own row shows it; None: nobody can tell.

    `inputs` (time, channels) are independent from step to step, `states` (time, nodes) what they gave, or (repeats,
    time, nodes) of repeated drives, whose mean is looked at.

    For each delay this is the squared correlation of the input so many steps ago with what the nodes say of it
    together, in the directions in which they move most; and that of its square, because what sees the power of light
    cannot tell an input from its negative. Of independent inputs chance exceeds it as the F distribution says, whatever
    the states are (Wilson & Hilferty's approximation).
    """
    u = np.asarray(as_numpy(inputs), dtype=np.float64)[:_STEPS]
    x = np.asarray(as_numpy(states))[..., :_STEPS, :]
    x = x[..., np.unique(np.linspace(0, x.shape[-1] - 1, _NODES).astype(int))].astype(np.float64)
    x = x.mean(axis=0) if x.ndim == 3 else x
    steps, delays = len(u), min(_LONGEST, len(u) // _PART)
    directions = _directions(x, steps // _STEPS_FOR_EACH)
    free = steps - 1 - directions.shape[1]
    if not delays or not directions.shape[1]:
        return None
    seen = np.concatenate([u, (u - u.mean(axis=0)) ** 2], axis=1)
    seen -= seen.mean(axis=0)
    shares = np.zeros(delays)
    for delay in range(delays):
        earlier = seen[: steps - delay]
        power = np.maximum((earlier**2).sum(axis=0), np.finfo(np.float64).tiny)
        shares[delay] = (((directions[delay:].T @ earlier) ** 2).sum(axis=0) / power).max()
    level = NormalDist().inv_cdf(1 - _FALSE_ALARMS / (delays * seen.shape[1]))
    found = np.flatnonzero(_deviate(np.minimum(shares, 1 - 1e-9), directions.shape[1], free) > level)
    if not len(found):
        return None
    first, chance = int(found[0]), directions.shape[1] / (steps - 1)
    # What grows slowly is no latency: before it there must be next to nothing.
    error = np.sqrt(2 * directions.shape[1]) / (steps - 1)
    before = shares[:first] - chance + _SURE * error
    return first if (before < _BEFORE * (shares[found].max() - chance)).all() else None


def about_latency(steps: int) -> str:
    """A sentence for a device that is late."""
    return (
        f"the states are late by {steps} step{'s' * (steps > 1)}: an input is first seen so many rows below its own "
        f"(latency_steps: {steps} of kind python puts them right)"
    )


def _directions(x: np.ndarray, most: int) -> np.ndarray:
    """Orthonormal time courses (time, ·) in which the states (time, nodes) move most, every node of equal weight."""
    centred = x - x.mean(axis=0)
    size = np.sqrt((centred**2).sum(axis=0))
    moving = size > 1e-9 * np.sqrt(len(x)) * np.maximum(np.abs(x).max(axis=0), np.finfo(np.float64).tiny)
    if not moving.any():
        return np.empty((len(x), 0))
    courses, strength, _ = np.linalg.svd(centred[:, moving] / size[moving], full_matrices=False)
    return courses[:, : min(most, int((strength > 1e-6 * strength[0]).sum()))]


def _deviate(share: np.ndarray, directions: int, free: int) -> np.ndarray:
    """The normal deviate that is as rare as this share of the power in so many directions, of independent numbers."""
    ratio = np.cbrt(share / directions / ((1 - share) / free))
    of_share, of_rest = 2 / (9 * directions), 2 / (9 * free)
    return ((1 - of_rest) * ratio - (1 - of_share)) / np.sqrt(of_rest * ratio**2 + of_share)
