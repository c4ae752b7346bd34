"""Signal-to-noise ratio of each node, from repeated drives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.measures._arrays import deviations, refuse_still
from reservoir_hw.measures._measured import Interval, Measured
from reservoir_hw.measures._repeats import checked_repeats, share_interval, shared_power
from reservoir_hw.measures._statistics import check_confidence, remark


@dataclass(frozen=True, eq=False, kw_only=True)
class SignalToNoise(Measured):
    """`value` and `nodes` (nodes,) in dB; NaN for a node that does not move, infinite without noise or without signal.

    `signal` and `noise` (nodes,) are standard deviations in units of the state; `value` is the ratio of their summed
    squares.
    """

    nodes: np.ndarray
    signal: np.ndarray
    noise: np.ndarray

    @property
    def has_figure(self) -> bool:
        """Whether a node has a finite ratio."""
        return bool(np.isfinite(self.nodes).any())


def signal_to_noise(states: Any, *, washout: int = 0, confidence: float = 0.95) -> SignalToNoise:
    """Signal-to-noise ratio from responses to the same drive: `states` (repeats, time, nodes).

    Signal is what two repeats have in common: the mean product of their deviations from their own means over time.
    Noise is the rest of the variance (the two-way layout without interaction; Searle, Casella & McCulloch 1992,
    section 4.5). An offset that differs between repeats is in neither; it is drift. A chaotic device has its own
    dynamics in the noise.

    The interval is that of the share of the signal in the whole variance, from the jackknife over pieces of time.
    Raises as `consistency` does.
    """
    check_confidence(confidence)
    x = checked_repeats(states, washout)
    steps = x.shape[1]
    moved = deviations(x, axis=1)
    moving = (moved != 0).any(axis=(0, 1))
    refuse_still(moving)
    common, power = shared_power(moved)
    signal, whole = (part.mean(axis=0) * (steps / (steps - 1)) for part in (common, power))
    share = float(signal.sum() / whole.sum())
    influence = (common - share * power).sum(axis=1)
    around = share_interval(moved, lambda shared, every: shared.sum(axis=1) / every.sum(axis=1), influence, confidence)
    method = f"of the share of the signal: {around.method}"
    with np.errstate(invalid="ignore"):
        nodes = np.where(moving, _decibels(signal / whole), np.nan)
    still = np.count_nonzero(~moving)
    notes = [
        f"{still} nodes do not move and are left out." if still else "",
        "No noise was found between the repeats." if share > 1 - 1e-12 else "",
        remark(around),
    ]
    return SignalToNoise(
        value=float(_decibels(np.array(share))),
        interval=Interval(
            float(_decibels(np.array(around.low))), float(_decibels(np.array(around.high))), confidence, method
        ),
        note=" ".join(filter(None, notes)),
        nodes=nodes,
        signal=np.sqrt(np.maximum(signal, 0.0)),
        noise=np.sqrt(np.maximum(whole - signal, 0.0)),
    )


def _decibels(share: np.ndarray) -> np.ndarray:
    """10 log10 of signal over noise, from the share of the signal in both."""
    rest = 1 - share
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels = 10 * np.log10(share / rest)
    return np.where(share <= 0, -np.inf, np.where(rest <= 1e-12, np.inf, decibels))
