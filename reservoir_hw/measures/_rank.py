"""Kernel rank and generalisation rank: how many directions different, and similar, input streams lead to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.statistics import jackknife_error
from reservoir_hw.measures._measured import (
    BATCHES,
    CONFIDENCE,
    Interval,
    Measured,
    Rows,
    bounded,
    checked,
    moving_nodes,
    precision,
    require_steps,
    t_interval,
)

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


def kernel_rank(states: Any, *, noise: Any = None, threshold: float | None = None) -> Rank:
    """Rank of the states that *different* input streams lead to (Legenstein & Maass 2007; Büsing et al. 2010).

    `states` (streams, nodes) are those at the end of each stream, or (sets, streams, nodes) for several sets of
    streams. The rank is at most the number of streams: take as many as nodes. The larger it is, the more streams a
    linear readout can tell apart.

    Singular values count above `threshold`, in units of the state. By default that is the larger of two: what rounding
    makes (of the dtype of `states`), and where `noise` is given, the standard deviation of the noise of the states
    ((nodes,) or one number, of which the largest counts), noise · (√streams + √nodes + t), which a matrix of pure noise
    exceeds with less than the probability 1 - `CONFIDENCE` (Davidson & Szarek 2001, theorem II.13).

    With three sets or more the interval is Student's over the sets. Otherwise it is the rank at twice and at half the
    threshold, which is no statement about other streams. Raises `ShapeError`, `InputRangeError` and
    `ConfigurationError`.
    """
    return _rank(states, noise, threshold, "different")


def generalisation_rank(states: Any, *, noise: Any = None, threshold: float | None = None) -> Rank:
    """Rank of the states that *similar* input streams lead to (Legenstein & Maass 2007; Büsing et al. 2010).

    As `kernel_rank`, for streams that should lead to the same answer: those that agree in their last steps, say, or
    noisy copies of one stream. The smaller it is, the less the device makes of what does not matter. Streams that
    share everything leave rank 1.
    """
    return _rank(states, noise, threshold, "similar")


def _rank(states: Any, noise: Any, threshold: float | None, kind: Streams) -> Rank:
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
            threshold = max(threshold, level * (streams**0.5 + nodes**0.5 + math.sqrt(-2 * math.log(1 - CONFIDENCE))))
    elif threshold < 0:
        raise ConfigurationError(f"threshold is {threshold}; it must be at least 0")
    ranks = (singular > threshold).sum(axis=1)
    value = float(ranks.mean())
    if len(ranks) > 2:
        error = float(ranks.std(ddof=1) / len(ranks) ** 0.5)
        method = f"{len(ranks)} sets of streams, Student's t"
        interval = bounded(t_interval(value, error, len(ranks) - 1, method), 0.0, min(streams, nodes))
    else:
        ends = [float((singular > factor * threshold).sum(axis=1).mean()) for factor in (2.0, 0.5)]
        interval = Interval(ends[0], ends[1], "the rank at twice and at half the threshold")
    return Rank(
        value=value,
        interval=interval,
        note=f"{streams} {kind} streams, {nodes} nodes; singular values above {threshold:.2g} count.",
        streams=kind,
        ranks=ranks,
        singular_values=singular,
        threshold=threshold,
    )


# ---- Orthonormal directions of the states, found in passes of bounded memory.


# Singular values below this, relative to the largest, are lost in the rounding of a Gram matrix.
_HIDDEN = 1e-8


class StateBasis:
    """Orthonormal combinations of the states: over the whole recording, QᵀQ = 1 for Q = `centred(states)` @ `weights`.

    A Gram matrix squares the singular values, so rounding hides those below a hundred-millionth of the largest. It is
    taken twice, the second time of the directions of the first (as in Cholesky QR2; Yamamoto et al. 2015), which
    brings them back, and is still several times quicker than an orthogonal factorisation.

    Nodes are scaled to unit variance first. A direction counts in `rank` if its singular value is above `tolerance`
    times the largest: by default rounding, the number of nodes times the precision in which the states were recorded.
    `weights` is (nodes, rank); `leverage` (rows,) is |Q_t|² of each row.

    Raises `InputRangeError` if no node moves, `ShapeError` if there are too few rows for the number of nodes.
    """

    def __init__(self, recording: Rows, tolerance: float | None = None) -> None:
        nodes, rows = recording.nodes, recording.rows
        if rows <= 2 * nodes:
            raise ShapeError(
                f"{rows} steps are left for {nodes} nodes; a capacity needs more than twice as many steps as nodes. "
                "Record more steps, or give fewer nodes, or principal components of them"
            )
        self._mean = recording.mean()
        gram = _gram(self.centred(block.states) for block in recording.blocks())
        scale = np.sqrt(gram.diagonal())
        moving = moving_nodes(self._mean, scale / rows**0.5)
        scaling = np.divide(1.0, scale, out=np.zeros(nodes), where=moving)
        lengths, directions = _axes(gram * scaling[:, None] * scaling, _HIDDEN)
        coarse = scaling[:, None] * directions / lengths
        # These are nearly orthonormal already, except for directions that were hidden.
        rest, turn = _axes(_gram(self.centred(block.states) @ coarse for block in recording.blocks()), _HIDDEN)
        left, singular, _ = np.linalg.svd((turn * rest).T * lengths)
        least = nodes * precision(recording.states.dtype) if tolerance is None else tolerance
        self.rank = int(np.count_nonzero(singular > least * singular[0]))
        self.weights = coarse @ (turn / rest) @ left[:, : self.rank]
        self.leverage = np.empty(rows)
        for block in recording.blocks():
            self.leverage[block.rows] = ((self.centred(block.states) @ self.weights) ** 2).sum(axis=1)

    def centred(self, states: np.ndarray) -> np.ndarray:
        """States (rows, nodes) less their mean over the recording."""
        return states - self._mean


def _gram(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of the products of (rows, columns) with themselves, (columns, columns)."""
    total = 0.0
    for piece in pieces:
        total = total + piece.T @ piece
    return np.asarray(total)


def _axes(gram: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Singular values, at least `least` times the largest, and right singular vectors of what `gram` is of."""
    squares, vectors = np.linalg.eigh(gram)
    return np.sqrt(np.maximum(squares, squares[-1] * least**2)), vectors


# ---- Effective dimension: over how many directions the states spread.


@dataclass(frozen=True, eq=False, kw_only=True)
class EffectiveDimension(Measured):
    """`value` lies between 1 and the number of nodes; `variances` (nodes,), falling, are along the principal axes."""

    variances: np.ndarray


def effective_dimension(states: Any, *, washout: int = 0, standardise: bool = False) -> EffectiveDimension:
    """Participation ratio (Σ λ)² / Σ λ² of the variances λ along the principal axes of `states`.

    `states` is (sequences, time, nodes) or (time, nodes). N equal variances give N, one alone gives 1 (Abbott, Rajan &
    Sompolinsky 2011, eq. 4.2). `standardise` gives all nodes the same variance first, for nodes with different units.

    Only slices are read of the states, so they may lie on disk.

    A finite recording makes the ratio too small; the jackknife (Quenouille 1956) over consecutive pieces takes off the
    first order of that, and gives the interval. The recording should still have many more steps than the result is
    large. Raises `ShapeError`, `InputRangeError` and
    `ConfigurationError`.
    """
    rows = Rows(states, washout)
    if rows.rows < 2:
        raise ShapeError("one step has no variance; record more")
    mean = rows.mean()
    covariance = np.zeros((rows.nodes, rows.nodes))
    for block in rows.blocks():
        x = block.states - mean
        covariance += x.T @ x / rows.rows
    spread = np.sqrt(covariance.diagonal())
    moving = moving_nodes(mean, spread)
    weights = np.where(moving, 1 / np.where(moving & standardise, spread, 1.0), 0.0)
    covariance *= weights[:, None] * weights
    value, error = _jackknife(rows, mean, weights, covariance * rows.rows)
    method = f"jackknife over {BATCHES} pieces of time, Student's t"
    return EffectiveDimension(
        value=value,
        interval=bounded(t_interval(value, error, BATCHES - 1, method), 1.0, rows.nodes),
        note="" if rows.rows > 20 * value else f"Only {rows.rows} steps: the value may be too small.",
        variances=np.maximum(np.linalg.eigvalsh(covariance)[::-1], 0.0),
    )


def _jackknife(rows: Rows, mean: np.ndarray, weights: np.ndarray, products: np.ndarray) -> tuple[float, float]:
    """The ratio without its bias of first order, and its standard error; `products` is Σ x xᵀ over all rows.

    Leaving out a piece with the sum S_b gives tr(S - S_b)² / tr (S - S_b)², for which three traces are enough.
    """
    require_steps(rows.rows)
    edges = np.linspace(0, rows.rows, BATCHES + 1).astype(int)
    own, crossed, squared = np.zeros(BATCHES), np.zeros(BATCHES), np.zeros(BATCHES)
    # The sums of the pieces that are not whole yet: rows of different sequences may come in turn.
    sums: dict[int, np.ndarray] = {}
    left = np.diff(edges)
    for block in rows.blocks():
        x = (block.states - mean) * weights
        touched = (edges[:-1] < block.rows.stop) & (edges[1:] > block.rows.start)
        for number in np.flatnonzero(touched).tolist():
            part = x[max(edges[number] - block.rows.start, 0) : edges[number + 1] - block.rows.start]
            own[number] += (part**2).sum()
            crossed[number] += ((part @ products) * part).sum()
            sums[number] = sums.get(number, 0.0) + part.T @ part
            left[number] -= len(part)
            if not left[number]:
                squared[number] = (sums.pop(number) ** 2).sum()
    trace, square = products.trace(), (products**2).sum()
    value = trace**2 / square
    without = (trace - own) ** 2 / (square - 2 * crossed + squared)
    corrected = BATCHES * value - (BATCHES - 1) * without.mean()
    return float(np.clip(corrected, 1.0, rows.nodes)), jackknife_error(without)
