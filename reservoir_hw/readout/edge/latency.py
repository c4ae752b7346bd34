"""Where the time of a step goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Upper ends of the bins in nanoseconds, eight to an octave.
_EDGES = np.append(2.0 ** np.arange(7, 37, 0.125), np.inf)

# Durations that wait to be sorted into bins: sorting many at once takes a tenth of the time.
_WAITING = 4096


class Histogram:
    """Durations in bins of 9 % width from 128 ns to 126 s; of constant size however many they are."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.add = self.waiting.append
        """Take one duration in nanoseconds. Somebody must call `sort` now and then, and before anything is read."""
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.waiting.clear()
        self.counts = np.zeros(len(_EDGES), np.int64)
        self.total_ns = self.longest_ns = 0

    def sort(self) -> None:
        """Put what was added into bins."""
        if self.waiting:
            ns = np.array(self.waiting, np.int64)
            self.waiting.clear()
            self.total_ns += int(ns.sum())
            self.longest_ns = max(self.longest_ns, int(ns.max()))
            self.counts += np.bincount(np.searchsorted(_EDGES, ns), minlength=len(self.counts))

    def quantile_s(self, share: float) -> float:
        """The duration in seconds that this share of all does not exceed, to the width of a bin; NaN without any."""
        total = self.counts.sum()
        if not total:
            return math.nan
        place = int(np.searchsorted(self.counts.cumsum(), share * total))
        return min(float(_EDGES[place]), self.longest_ns) * 1e-9


@dataclass(frozen=True)
class StageLatency:
    """A segment or a crossing, with the durations of its calls; `steps` are the time steps of all calls."""

    stage: str
    calls: int
    steps: int
    mean_s: float
    p50_s: float
    p99_s: float
    longest_s: float


class Stopwatch:
    """Histograms of the stages of a model."""

    def __init__(self, stages: list[str]) -> None:
        self.stages = stages
        self.steps = 0
        self.histograms = [Histogram() for _ in stages]

    def clear(self) -> None:
        """Forget what was measured."""
        self.steps = 0
        for histogram in self.histograms:
            histogram.clear()

    def count(self, steps: int) -> None:
        """All stages have taken so many time steps."""
        self.steps += steps
        if len(self.histograms[0].waiting) >= _WAITING:
            for histogram in self.histograms:
                histogram.sort()

    def summary(self) -> list[StageLatency]:
        """A row for each stage."""
        found = []
        for name, histogram in zip(self.stages, self.histograms, strict=True):
            histogram.sort()
            calls, total_s = int(histogram.counts.sum()), histogram.total_ns * 1e-9
            quantiles = histogram.quantile_s(0.5), histogram.quantile_s(0.99)
            mean_s, longest_s = total_s / max(1, calls), histogram.longest_ns * 1e-9
            found.append(StageLatency(name, calls, self.steps, mean_s, *quantiles, longest_s))
        return found
