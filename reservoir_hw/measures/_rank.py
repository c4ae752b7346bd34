"""Kernel rank and generalisation rank: how many directions different, and similar, input streams lead to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.measures._arrays import checked, precision
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._statistics import bounded, check_confidence, t_interval

Streams = Literal["different", "similar"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Rank(Measured):
    """`value` is the mean of `ranks` (sets,), one for each set of streams.

    `singular_values` (sets, min(streams, nodes)) are falling; those above `threshold` count. `streams` says whether
    the input streams were different or similar.
    """

    streams: Streams
    ranks: np.ndarray
    singular_values: np.ndarray
    threshold: float


def kernel_rank(
    states: Any,
    *,
    noise: Any = None,
    threshold: float | None = None,
    confidence: float = 0.95,
) -> Rank:
    """Rank of the states that *different* input streams lead to (Legenstein & Maass 2007; Büsing et al. 2010).

    `states` (streams, nodes) are those at the end of each stream, or (sets, streams, nodes) for several sets of
    streams. The rank is at most the number of streams: take as many as nodes. The larger it is, the more streams a
    linear readout can tell apart.

    Singular values count above `threshold`, in units of the state. By default that is the larger of two: what rounding
    makes (of the dtype of `states`), and where `noise` is given, the standard deviation of the noise of the states
    ((nodes,) or one number, of which the largest counts), noise · (√streams + √nodes + t), which a matrix of pure noise
    exceeds with less than the probability 1 - `confidence` (Davidson & Szarek 2001, theorem II.13).

    With three sets or more the interval is Student's over the sets. Otherwise it is the rank at twice and at half the
    threshold, which is no statement about other streams. Raises `ShapeError`, `InputRangeError` and
    `ConfigurationError`.
    """
    return _rank(states, noise, threshold, confidence, "different")


def generalisation_rank(
    states: Any,
    *,
    noise: Any = None,
    threshold: float | None = None,
    confidence: float = 0.95,
) -> Rank:
    """Rank of the states that *similar* input streams lead to (Legenstein & Maass 2007; Büsing et al. 2010).

    As `kernel_rank`, for streams that should lead to the same answer: those that agree in their last steps, say, or
    noisy copies of one stream. The smaller it is, the less the device makes of what does not matter. Streams that
    share everything leave rank 1.
    """
    return _rank(states, noise, threshold, confidence, "similar")


def _rank(states: Any, noise: Any, threshold: float | None, confidence: float, kind: Streams) -> Rank:
    check_confidence(confidence)
    given = np.asarray(as_numpy(states))
    x = checked(given[None] if given.ndim == 2 else given, ("sets", "streams", "nodes"))
    _, streams, nodes = x.shape
    if streams < 2:
        raise ShapeError("a rank needs at least 2 streams; as many as nodes are usual")
    singular = np.linalg.svd(x, compute_uv=False)
    if threshold is None:
        threshold = float(max(streams, nodes) * precision(given.dtype) * singular.max())
        if noise is not None:
            level = float(checked(np.atleast_1d(noise), ("nodes",), "noise").max())
            if level < 0:
                raise ConfigurationError("noise is a standard deviation and cannot be negative")
            edge = streams**0.5 + nodes**0.5 + math.sqrt(-2 * math.log(1 - confidence))
            threshold = max(threshold, level * edge)
    elif threshold < 0:
        raise ConfigurationError(f"threshold is {threshold}; it must be at least 0")
    ranks = (singular > threshold).sum(axis=1)
    value = float(ranks.mean())
    if len(ranks) > 2:
        error = float(ranks.std(ddof=1) / len(ranks) ** 0.5)
        method = f"{len(ranks)} sets of streams, Student's t"
        interval = bounded(t_interval(value, error, len(ranks) - 1, confidence, method), 0.0, min(streams, nodes))
    else:
        ends = [float((singular > factor * threshold).sum(axis=1).mean()) for factor in (2.0, 0.5)]
        interval = Interval(ends[0], ends[1], confidence, "the rank at twice and at half the threshold")
    return Rank(
        value=value,
        interval=interval,
        note=f"{streams} {kind} streams, {nodes} nodes; singular values above {threshold:.2g} count.",
        streams=kind,
        ranks=ranks,
        singular_values=singular,
        threshold=threshold,
    )
