"""Information processing capacity: which functions of the past inputs the states compute, by degree and delay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.measures._blocks import Recording
from reservoir_hw.measures._capacity import (
    Capacities,
    Distribution,
    Targets,
    capacities,
    orthonormal,
    strongest_correlation,
)
from reservoir_hw.measures._measured import Interval, Measured, batch_means, bounded, remark
from reservoir_hw.measures._rank import StateBasis

_MOST_TARGETS = 1_000_000

# Capacity at the longest delay from which on longer ones are worth trying.
_REMARKABLE = 0.01


# A sum this many standard errors beyond its bound is not chance.
_IMPOSSIBLE = 5.0


@dataclass(frozen=True, eq=False, kw_only=True)
class ProcessingCapacity(Measured):
    """`value` is the total over all functions that were tried, at most `rank`.

    `by_degree` (degrees,) and `degree_intervals` split it by the degree of the functions, from 1 on. Each function is
    a row of `factors` (functions, degrees, 3): degree, channel and delay of each factor, degree 0 for none; its
    capacity is in `capacities` (functions,), its longest delay in `delays`. `by_delay` (degrees, delays) sums them by
    the longest delay.
    """

    by_degree: np.ndarray
    degree_intervals: tuple[Interval, ...]
    by_delay: np.ndarray
    capacities: np.ndarray
    delays: np.ndarray
    factors: np.ndarray
    rank: int
    significance: float


def information_processing_capacity(
    inputs: Any,
    states: Any,
    *,
    max_delays: Sequence[int],
    washout: int = 0,
    distribution: Distribution = "uniform",
    input_range: tuple[float, float] | None = None,
    significance: float = 1e-4,
) -> ProcessingCapacity:
    """Information processing capacity (Dambre et al. 2012), for inputs that are independent from step to step.

    The functions are all products of orthonormal polynomials of delayed inputs with a total degree of d and delays up
    to `max_delays[d - 1]`, for d from 1 to the number of `max_delays`. Their capacities add up to at most the number
    of linearly independent states, and to exactly that for a device that forgets and has no noise, if all functions
    that matter are among them.

    A function counts if it is above a threshold that one in 1 / `significance` useless ones exceeds. What fitting to a
    finite recording adds is subtracted, as `_capacity.capacities` describes; the uncorrected sum of Dambre et al. is
    too large. Both follow the leverage of each step instead of rank / steps, because functions and states share
    inputs; Dambre et al. double their threshold for that, Kubota et al. 2021 shuffle.

    Parameters
    ----------
    inputs, states
        (sequences, time, channels) and (sequences, time, nodes), or two axes for one sequence. Only slices are read of
        the states, so they may lie on disk.
    max_delays
        Longest delay for each degree: (100, 30, 10) tries degrees up to 3.
    washout
        First steps of each sequence that do not count.
    distribution, input_range
        "uniform" over `input_range` (by default what the inputs cover): Legendre polynomials. "normal": Hermite
        polynomials. "empirical": polynomials that are orthonormal over the inputs as they are.

    The interval is that of batch means of the influence of each step on the sum; functions below the threshold
    are not in it. Raises `ShapeError`, `ConfigurationError`, and `InputRangeError` also for inputs that are
    correlated over time or not so distributed.
    """
    return with_details(inputs, states, max_delays, washout, distribution, input_range, significance)[0]


def with_details(
    inputs: Any,
    states: Any,
    max_delays: Sequence[int],
    washout: int,
    distribution: Distribution,
    input_range: tuple[float, float] | None,
    significance: float = 1e-4,
) -> tuple[ProcessingCapacity, Capacities]:
    """`information_processing_capacity`, and what was found for each function; the influences are by degree."""
    if not max_delays or min(max_delays) < 0:
        raise ConfigurationError(f"max_delays is {max_delays}; give one delay of at least 0 for each degree")
    recording = Recording(inputs, states, max(washout, *max_delays))
    for power, what in ((1, "the inputs"), (2, "the squares of the inputs")):
        found = strongest_correlation(recording, power)
        if found is not None:
            raise InputRangeError(
                f"{what} are correlated over time ({found[1]:.2f} at lag {found[0]}), so that functions of different "
                "delays are not independent; drive the device with inputs drawn anew in each step"
            )
    basis = StateBasis(recording)
    degrees = len(max_delays)
    polynomials = np.stack(
        [
            orthonormal(recording.inputs[..., channel], degrees, distribution, input_range)
            for channel in range(recording.channels)
        ],
        axis=1,
    )
    factors = np.concatenate(
        [_products(degree, delay, recording.channels, degrees) for degree, delay in enumerate(max_delays, 1)]
    )
    degree_of = factors[:, :, 0].sum(axis=1)
    measured = capacities(recording, basis, Targets(polynomials, factors), degree_of - 1, significance)
    by_degree = np.bincount(degree_of - 1, measured.corrected, degrees)
    delays = factors[:, :, 2].max(axis=1)
    by_delay = np.zeros((degrees, max(max_delays) + 1))
    np.add.at(by_delay, (degree_of - 1, delays), measured.corrected)

    total = float(by_degree.sum())
    over_time = batch_means(measured.influence.sum(axis=0))
    if total > basis.rank + _IMPOSSIBLE * over_time.error + 0.01 * basis.rank:
        raise InputRangeError(
            f"the capacities add up to {total:.1f}, more than the {basis.rank} independent states can have: the inputs "
            "are not independent from step to step, or not distributed as said; draw them anew in each step"
        )
    interval = over_time.interval(total)
    found = ProcessingCapacity(
        value=min(total, float(basis.rank)),
        interval=bounded(interval, 0.0, basis.rank),
        note=" ".join(filter(None, [_note(by_delay, max_delays, len(factors), significance), remark(interval)])),
        by_degree=by_degree,
        degree_intervals=tuple(
            bounded(batch_means(influence).interval(value), 0.0, basis.rank)
            for value, influence in zip(by_degree, measured.influence, strict=True)
        ),
        by_delay=by_delay,
        capacities=measured.corrected,
        delays=delays,
        factors=factors,
        rank=basis.rank,
        significance=significance,
    )
    return found, measured


def _products(degree: int, max_delay: int, channels: int, width: int) -> np.ndarray:
    """All products of total degree `degree`: (functions, width, 3), filled up with factors of degree 0."""
    variables = [(channel, delay) for channel in range(channels) for delay in range(max_delay + 1)]
    count = math.comb(len(variables) + degree - 1, degree)
    if count > _MOST_TARGETS:
        raise ConfigurationError(
            f"there are {count:,} functions of degree {degree} with delays up to {max_delay}; give a smaller delay for "
            f"this degree, so that they are at most {_MOST_TARGETS:,}"
        )
    factors = np.zeros((count, width, 3), dtype=np.int64)
    for row, combination in zip(factors, itertools.combinations_with_replacement(variables, degree), strict=True):
        for place, (variable, times) in enumerate(itertools.groupby(combination)):
            row[place] = len(list(times)), *variable
    return factors


def _note(by_delay: np.ndarray, max_delays: Sequence[int], functions: int, significance: float) -> str:
    note = f"{functions:,} functions were tried, of which {functions * significance:.2g} count by chance."
    cut = [str(degree) for degree, delay in enumerate(max_delays, 1) if by_delay[degree - 1, delay] > _REMARKABLE]
    if cut:
        note += f" Degree {', '.join(cut)} reaches its longest delay: larger max_delays would find more."
    return note
