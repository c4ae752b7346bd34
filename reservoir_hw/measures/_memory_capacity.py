"""Linear memory capacity: how well past inputs can be read from the present states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.validation import at_least
from reservoir_hw.measures._basis import StateBasis
from reservoir_hw.measures._blocks import Recording
from reservoir_hw.measures._capacity import Targets, capacities
from reservoir_hw.measures._independence import correlation_note
from reservoir_hw.measures._measured import Measured
from reservoir_hw.measures._statistics import batch_means, bounded, check_confidence, remark

# Capacity at the longest delay from which on longer ones are worth trying.
_REMARKABLE = 0.01


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryCapacity(Measured):
    """`value` is the sum of `capacities` over channels and delays.

    `recall` (channels, max_delay + 1) is the squared correlation of the best linear readout with the input `delay`
    steps ago, as it was measured; `threshold` is what chance exceeds with the probability `significance`, and
    `capacities` what is left of `recall` above it, less the expected effect of fitting. `rank` is the upper bound.
    """

    recall: np.ndarray
    threshold: np.ndarray
    capacities: np.ndarray
    rank: int
    significance: float


def memory_capacity(
    inputs: Any,
    states: Any,
    *,
    max_delay: int,
    washout: int = 0,
    significance: float = 1e-4,
    tolerance: float | None = None,
    confidence: float = 0.95,
) -> MemoryCapacity:
    """Linear memory capacity (Jaeger 2002, definition 1): Σ_k r²(u_(t-k), best readout of the states of step t).

    Delays run from 0 to `max_delay`; the states of step t are the response after u_t was applied. Jaeger's sum begins
    at delay 1: leave out `capacities[:, 0]` for that. With several input channels each has delays of its own. With
    independent inputs the sum is at most the rank of the states, and so the number of nodes.

    Parameters
    ----------
    inputs, states
        (sequences, time, channels) and (sequences, time, nodes), or two axes for one sequence. Only slices are read of
        the states, so they may lie on disk.
    washout
        First steps of each sequence that do not count.
    significance
        Probability with which a delay that is not remembered passes for remembered.
    tolerance
        Relative singular value below which a direction of the states is taken for rounding.

    The interval is that of batch means of the influence of each step on the sum; what lies below the threshold or
    beyond `max_delay` is not in it. Raises `ShapeError`, `InputRangeError` and `ConfigurationError`.
    """
    at_least(max_delay=(max_delay, 0))
    check_confidence(confidence)
    recording = Recording(inputs, states, max(washout, max_delay))
    basis = StateBasis(recording, tolerance)
    channels = recording.channels
    delays = np.arange(max_delay + 1)
    factors = np.ones((channels * len(delays), 1, 3), dtype=np.int64)
    factors[:, 0, 1] = np.repeat(np.arange(channels), len(delays))
    factors[:, 0, 2] = np.tile(delays, channels)
    centred = np.moveaxis(recording.inputs - recording.inputs.mean(axis=(0, 1)), 2, 0)
    targets = Targets(np.stack([np.ones_like(centred), centred]), factors)
    found = capacities(recording, basis, targets, np.zeros(len(factors), dtype=np.int64), significance)
    total = float(found.corrected.sum())
    by_delay = (channels, len(delays))
    interval = batch_means(found.influence[0]).interval(total, confidence)
    notes = [_note(found.corrected.reshape(by_delay)), correlation_note(recording), remark(interval)]
    return MemoryCapacity(
        value=min(total, float(basis.rank)),
        interval=bounded(interval, 0.0, basis.rank),
        note=" ".join(filter(None, notes)),
        recall=found.raw.reshape(by_delay),
        threshold=found.threshold.reshape(by_delay),
        capacities=found.corrected.reshape(by_delay),
        rank=basis.rank,
        significance=significance,
    )


def _note(found: np.ndarray) -> str:
    note = f"{found[:, 0].sum():.3g} of it at delay 0."
    if found[:, -1].max() > _REMARKABLE:
        note += f" The longest delay, {found.shape[1] - 1}, is still remembered: a larger max_delay would find more."
    return note
