"""By how much two models differ on one test, and how sure that is."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reservoir_hw.tasks.task import Task

_BLOCKS = 40
# Of Student's distribution with 39 degrees of freedom, 97.5 %.
_QUANTILE = 2.023


@dataclass(frozen=True)
class Difference:
    """Of a metric: a - b, and the ends of an interval of 95 %."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.value:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


def paired_difference(task: Task, a: np.ndarray, b: np.ndarray) -> dict[str, Difference]:
    """The difference of each metric of outputs (batch, time, outputs) of two models for the same test.

    The test is cut into 40 blocks: of sequences, or of time where there are fewer. What the metric loses if a block of
    `a` is replaced by that of `b` is the part of the block in the difference. The spread of these parts gives the
    interval, as it would for a mean. It holds for metrics that are nearly sums over the test.
    """
    whole, other = task.evaluate(a).metrics, task.evaluate(b).metrics
    parts: dict[str, list[float]] = {name: [] for name in whole}
    for rows, times in _blocks(a.shape[0], a.shape[1]):
        mixed = a.copy()
        mixed[rows, times] = b[rows, times]
        for name, value in task.evaluate(mixed).metrics.items():
            parts[name].append(whole[name] - value)
    found = {}
    for name, by_block in parts.items():
        value = whole[name] - other[name]
        reach = _QUANTILE * float(np.sqrt(len(by_block) * np.var(by_block, ddof=1)))
        found[name] = Difference(value, value - reach, value + reach)
    return found


def _blocks(sequences: int, steps: int) -> list[tuple[Any, Any]]:
    if sequences >= _BLOCKS:
        return [(rows, slice(None)) for rows in np.array_split(np.arange(sequences), _BLOCKS)]
    pieces = -(-_BLOCKS // sequences)
    ends = np.linspace(0, steps, pieces + 1).astype(int)
    return [
        (row, slice(first, last))
        for row in range(sequences)
        for first, last in itertools.pairwise(ends)
        if last > first
    ]
