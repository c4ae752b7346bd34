"""Tables of what was measured: the numbers behind a measure that one number does not tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reservoir_hw.measures import (
    Drift,
    Interval,
    LyapunovSpectrum,
    MemoryCapacity,
    Nodes,
    NoiseBudget,
    OperatingMap,
    ProcessingCapacity,
)
from reservoir_hw.tasks.task import Table

_SHOWN_DELAYS = 12
_SHOWN_POINTS = 5
_SHOWN_NODES = 16


def _memory_table(result: MemoryCapacity) -> Table:
    recall = result.recall[:, :_SHOWN_DELAYS]
    rows = [
        [str(delay), *(f"{value:.3f}" for value in recall[:, delay]), f"{result.threshold[:, delay].max():.3f}"]
        for delay in range(recall.shape[1])
    ]
    channels = ["r²"] if len(recall) == 1 else [f"r² of input {channel}" for channel in range(len(recall))]
    note = "Squared correlation of the input that long ago with the best linear readout."
    return Table("Recall by delay", ["delay", *channels, "chance"], rows, note)


def _processing_table(result: ProcessingCapacity) -> Table:
    rows = [
        [str(degree), number_text(capacity), interval_text(interval)]
        for degree, (capacity, interval) in enumerate(zip(result.by_degree, result.degree_intervals, strict=True), 1)
    ]
    return Table("Processing capacity by degree", ["degree", "capacity", "interval"], rows, f"At most {result.rank}.")


def _budget_table(result: NoiseBudget) -> Table:
    parts = (
        (result.linear, result.linear_intervals),
        (result.nonlinear, result.nonlinear_intervals),
        (result.lost, result.lost_intervals),
        (result.rest, result.rest_intervals),
    )
    rows = []
    for at, (count, rank) in enumerate(zip(result.repetitions, result.rank, strict=True)):
        told = (f"{number_text(values[at])} {interval_text(intervals[at])}" for values, intervals in parts)
        rows.append([str(count), number_text(rank), *told])
    header = ["repetitions averaged", "rank", "linear", "nonlinear", "lost to noise", "rest"]
    note = "rank = linear + nonlinear + lost + rest. A rest of 0 within its interval: the budget adds up."
    return Table("Noise budget", header, rows, note)


def _spectrum_table(result: LyapunovSpectrum) -> Table:
    true = [*(number_text(float(value)) for value in result.known), *[""] * len(result.exponents)]
    every = zip(result.exponents, result.exponent_intervals, true, strict=False)
    rows = [
        [str(number), number_text(float(value)), interval_text(interval), known]
        for number, (value, interval, known) in enumerate(every, 1)
    ]
    dimension = f"{number_text(result.dimension)} {interval_text(result.dimension_interval)}"
    note = f"Per step, in natural logarithms. Kaplan–Yorke dimension {dimension}."
    return Table("Lyapunov spectrum", ["number", "exponent", "interval", "true system"], rows, note)


def _map_table(result: OperatingMap) -> Table:
    rows = [
        [
            *(f"{value:.4g}" for value in result.points[at]),
            f"{result.capacity[at]:.4g} [{result.capacity_low[at]:.4g}, {result.capacity_high[at]:.4g}]",
            f"{result.linear[at]:.4g}",
            f"{result.consistency[at]:.4g}",
        ]
        for at in result.order[:_SHOWN_POINTS]
    ]
    header = [*result.axes, "capacity", "linear", "consistency"]
    note = (
        f"Of {len(result.capacity)} points. Inputs are uniform within bias ± amplitude, and each is held for so many "
        "device steps. Capacity is that of all functions of the input, and linear is its linear part. Of capacities "
        "within a thousandth of the largest, the more linear is better."
    )
    return Table("Operating map: the best points", header, rows, note)


def nodes_table(nodes: Nodes) -> Table:
    """What each node did in repeated drives, as far as there is room."""
    rows = nodes.rows(_SHOWN_NODES)
    others = len(nodes.still) - len(rows)
    note = "Noise: the standard deviation of what differs between repeats. A limit is an end of the range."
    return Table(
        "Nodes",
        ["node", "range", "noise", "at a limit"],
        rows,
        note + (f" {others} more nodes are in metrics.json." if others else ""),
    )


def _drift_table(result: Drift) -> Table:
    parts = (
        ("mean (standard deviations)", result.mean, result.mean_change, result.mean_significant),
        ("gain (share)", result.gain, result.gain_change, result.gain_significant),
        ("offset (standard deviations)", result.offset, result.offset_change, result.offset_significant),
        ("noise (standard deviations)", result.noise, result.noise_change, result.noise_significant),
    )
    rows = []
    for what, interval, changes, significant in parts:
        if interval is None:
            rows.append([what, "unknown", "", ""])
            continue
        middle = (interval.low + interval.high) / 2
        change = f"{middle:+.3g}" if math.isfinite(middle) else f"{changes[np.abs(changes).argmax()]:+.3g}"
        rows.append([what, change, interval_text(interval), f"{np.count_nonzero(significant)} of {len(changes)}"])
    note = "From the first to the last segment or repeat, in the node that changes most. A gain takes a mean with it."
    if result.noise is None:
        note += " One drive does not tell offset from mean, or noise from response: repeat it."
    return Table("Drift", ["what", "change", "interval", "nodes that change"], rows, note)


DETAILS: dict[str, Callable[[Any], Table]] = {
    "memory_capacity": _memory_table,
    "processing_capacity": _processing_table,
    "noise_budget": _budget_table,
    "lyapunov_spectrum": _spectrum_table,
    "operating_map": _map_table,
    "drift": _drift_table,
}
"""Tables of measures that one number does not tell."""


def number_text(value: float) -> str:
    """For tables."""
    if math.isnan(value):
        return "unknown"
    return f"{value:.4g}" if math.isfinite(value) else str(value).replace("inf", "∞")


def interval_text(interval: Interval) -> str:
    """For tables."""
    return f"[{number_text(interval.low)}, {number_text(interval.high)}]"
