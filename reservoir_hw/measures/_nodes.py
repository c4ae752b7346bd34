"""What each node of a device does: its range, its noise, how often it lies at a limit; which are dead, which equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from reservoir_hw.core import provenance
from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ShapeError

# Correlations of noise beyond so many of their standard errors are once in ten thousand nodes.
_SURE = 4.0

# Of the power of the responses: two nodes that differ by less are equal.
_EQUAL = 0.01

# What differs by this part of a state is rounding.
_ROUNDING = 1e-12

_FEWEST_STEPS = 50
_BLOCK = 256
_SHOWN = 8

RAILED = 0.01
"""Of the samples of a node: so many exactly at its largest or smallest value are no chance."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """`lowest`, `highest`, `noise` and `at_limit` (nodes,) of repeated drives, the last as a share of all samples.

    `noise` is the standard deviation of what differs between repeats. A limit is an end of the range that the device
    declares, or else the largest or smallest value of the node itself. `still` nodes show nothing but their noise, or
    nothing at all. `equal` are groups of nodes that show the same. `railed` says whose share at a limit is no chance.
    """

    lowest: np.ndarray
    highest: np.ndarray
    noise: np.ndarray
    at_limit: np.ndarray
    still: np.ndarray
    equal: tuple[tuple[int, ...], ...]
    railed: np.ndarray

    def sentences(self) -> list[str]:
        """What casts doubt on nodes."""
        found = []
        silent = self.still & (self.noise == 0)
        if silent.any():
            found.append(f"{_named(silent)} not move: look at the wiring, or leave {_them(silent)} out")
        noisy = self.still & ~silent
        if noisy.any():
            found.append(
                f"{_named(noisy)} not move: nothing but noise is seen of {_them(noisy)} (standard deviation "
                f"{self.noise[noisy].max():.2g}); look at the wiring, or leave {_them(noisy)} out"
            )
        for group in self.equal[:_SHOWN]:
            numbers = ", ".join(map(str, group[:-1])) + f" and {group[-1]}"
            found.append(f"nodes {numbers} are equal, within their noise: a readout gains nothing by the second")
        if len(self.equal) > _SHOWN:
            found.append(f"so are {len(self.equal) - _SHOWN} more groups of nodes")
        if self.railed.any():
            found.append(
                f"{_named(self.railed, verb='lay')} at the end of the range in up to "
                f"{self.at_limit[self.railed].max():.2g} of the samples: lower the gain, or widen the range"
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return provenance.plain(vars(self))

    def rows(self, most: int) -> list[list[str]]:
        """Number, range, noise, share at a limit: of all nodes, or of `most`, those that are worth a look first."""
        doubtful = self.still | self.railed
        doubtful[[node for group in self.equal for node in group]] = True
        width = np.maximum(self.highest - self.lowest, np.finfo(np.float64).tiny)
        order = np.lexsort((-self.noise / width, ~doubtful))[:most]
        chosen = range(len(order)) if len(order) == len(self.still) else np.sort(order)
        return [
            [
                str(node),
                f"{self.lowest[node]:.4g} to {self.highest[node]:.4g}",
                f"{self.noise[node]:.2g}",
                f"{self.at_limit[node]:.2%}",
            ]
            for node in chosen
        ]


def nodes_of(states: Any, *, state_range: tuple[float, float] | None = None, simulated: bool = False) -> Nodes:
    """Of states (repeats, time, nodes), the responses to the same drive, twice at least.

    A node is still where two halves of the repeats are not correlated: what it shows is no answer to the inputs. Two
    nodes are equal where what they differ by is not, and is less than a hundredth of their power. Where there is so
    much noise, or there are so few steps, that neither could be told, nothing is said.

    `railed` needs a declared `state_range`, or a device that is no simulation, whose equations may have limits.
    Raises `ShapeError` for another shape.
    """
    x = np.asarray(as_numpy(states))
    if x.ndim != 3 or len(x) < 2 or 0 in x.shape:
        raise ShapeError(f"states must be (repeats, time, nodes) of two repeats or more, not {x.shape}")
    lowest, highest = x.min(axis=(0, 1)), x.max(axis=(0, 1))
    noise = x.std(axis=0, ddof=1, dtype=np.float64)
    noise = np.sqrt((noise**2).mean(axis=0))
    low, high = (lowest, highest) if state_range is None else state_range
    at_limit = np.maximum((x <= low).sum(axis=(0, 1)), (x >= high).sum(axis=(0, 1)))
    # One sample is the largest in any case.
    at_limit = (at_limit - (state_range is None)) / (x.shape[0] * x.shape[1])
    constant = lowest == highest
    halves = [half.mean(axis=0, dtype=np.float64) for half in (x[::2], x[1::2])]
    one, other = ((half - half.mean(axis=0)) for half in halves)
    together, apart = (one * other).mean(axis=0), np.sqrt((one**2).mean(axis=0) * (other**2).mean(axis=0))
    steps = x.shape[1]
    still = constant.copy()
    if steps >= _FEWEST_STEPS:
        still |= together <= _SURE / np.sqrt(steps) * apart
    share = RAILED if state_range is None else 0.0
    railed = (at_limit > share) & ~still & (state_range is not None or not simulated)
    return Nodes(lowest, highest, noise, at_limit, still, tuple(_equal(one, other, ~still)), railed)


def _equal(one: np.ndarray, other: np.ndarray, moving: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Groups of nodes whose difference in one half of the repeats says nothing of that in the other half."""
    steps = len(one)
    if steps < _FEWEST_STEPS:
        return
    power = ((one**2).mean(axis=0) + (other**2).mean(axis=0)) / 2
    shown = (one * other).mean(axis=0)
    left = moving.copy()
    for begin in range(0, one.shape[1], _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        crossed = (one[:, rows].T @ other + other[:, rows].T @ one) / (2 * steps)
        own = (one[:, rows].T @ one + other[:, rows].T @ other) / (2 * steps)
        answer = shown[rows, None] + shown - 2 * crossed
        size = np.maximum(power[rows, None] + power - 2 * own, 0.0)
        error = size / np.sqrt(steps)
        both = np.minimum(shown[rows, None], shown)
        alike = (answer <= _SURE * error + _ROUNDING * both) & (np.maximum(answer, 0.0) + 2 * error <= _EQUAL * both)
        for place, row in enumerate(alike):
            node = begin + place
            if not left[node]:
                continue
            group = np.flatnonzero(row & left)
            group = np.union1d(group[group > node], [node])
            if len(group) > 1:
                left[group] = False
                yield tuple(int(member) for member in group)


def _named(which: np.ndarray, verb: str = "do") -> str:
    """ "node 4 does", "nodes 4, 7 do"."""
    numbers = np.flatnonzero(which)
    if len(numbers) == 1:
        return f"node {numbers[0]} {'does' if verb == 'do' else verb}"
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} of {len(which)} nodes ({shown}) {verb}"


def _them(which: np.ndarray) -> str:
    return "it" if np.count_nonzero(which) == 1 else "them"


# ---- How many steps late the states of a device are, from their cross-correlation with its inputs.


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
_SURE_OF_DELAY = 2.0


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
    before = shares[:first] - chance + _SURE_OF_DELAY * error
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
