"""Effective dimension: over how many directions the states spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ShapeError
from reservoir_hw.core.statistics import jackknife_error
from reservoir_hw.measures._arrays import moving_nodes
from reservoir_hw.measures._blocks import Rows
from reservoir_hw.measures._measured import Measured
from reservoir_hw.measures._statistics import BATCHES, bounded, check_confidence, require_steps, t_interval


@dataclass(frozen=True, eq=False, kw_only=True)
class EffectiveDimension(Measured):
    """`value` lies between 1 and the number of nodes; `variances` (nodes,), falling, are along the principal axes."""

    variances: np.ndarray


def effective_dimension(
    states: Any, *, washout: int = 0, standardise: bool = False, confidence: float = 0.95
) -> EffectiveDimension:
    """Participation ratio (Σ λ)² / Σ λ² of the variances λ along the principal axes of `states`.

    `states` is (sequences, time, nodes) or (time, nodes). N equal variances give N, one alone gives 1 (Abbott, Rajan &
    Sompolinsky 2011, eq. 4.2). `standardise` gives all nodes the same variance first, for nodes with different units.

    Only slices are read of the states, so they may lie on disk.

    A finite recording makes the ratio too small; the jackknife (Quenouille 1956) over consecutive pieces takes off the
    first order of that, and gives the interval. The recording should still have many more steps than the result is
    large. Raises `ShapeError`, `InputRangeError` and
    `ConfigurationError`.
    """
    check_confidence(confidence)
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
        interval=bounded(t_interval(value, error, BATCHES - 1, confidence, method), 1.0, rows.nodes),
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
            inside = slice(max(edges[number] - block.rows.start, 0), edges[number + 1] - block.rows.start)
            part = x[inside]
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
