"""Effective dimension: over how many directions the states spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.errors import ShapeError
from reservoir_hw.measures._arrays import moving_nodes
from reservoir_hw.measures._measured import Measured
from reservoir_hw.measures._recording import Rows
from reservoir_hw.measures._statistics import BATCHES, batch_means, bounded, check_confidence, t_interval


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

    The interval is that of batch means of the influence of each step. The recording should have many more steps than
    the result is large: too short a one makes the value too small. Raises `ShapeError`, `InputRangeError` and
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
    trace, square = covariance.trace(), (covariance**2).sum()
    value = float(trace**2 / square)
    influence = np.empty(rows.rows)
    for block in rows.blocks():
        x = (block.states - mean) * weights
        # The derivative of the ratio with respect to the covariance, along x xᵀ.
        influence[block.rows] = 2 / square * ((trace * x - value * (x @ covariance)) * x).sum(axis=1)
    _, error = batch_means(influence)
    method = f"{BATCHES} batch means of each step's influence, Student's t"
    return EffectiveDimension(
        value=value,
        interval=bounded(t_interval(value, error, BATCHES - 1, confidence, method), 1.0, rows.nodes),
        note="" if rows.rows > 20 * value else f"Only {rows.rows} steps: the value may be too small.",
        variances=np.maximum(np.linalg.eigvalsh(covariance)[::-1], 0.0),
    )
