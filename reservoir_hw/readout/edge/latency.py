"""Where the time of a step goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Eight bins to an octave, from 2^7 ns to 2^37 ns: found by shifts, as this is done twice for every segment.
_LEAST, _MOST = 7, 37
_BINS = (_MOST - _LEAST) * 8


class Histogram:
    """Durations in bins of 6 to 12 % width from 128 ns to 137 s; of constant size however many they are."""

    def __init__(self) -> None:
        self._counts = [0] * _BINS
        self.total_ns = 0
        self.longest_ns = 0

    def add(self, ns: int) -> None:
        """One duration in nanoseconds."""
        octave = ns.bit_length() - 1
        place = (octave - _LEAST) * 8 + (ns >> octave - 3) - 8 if octave >= _LEAST else 0
        self._counts[place if place < _BINS else -1] += 1
        self.total_ns += ns
        if ns > self.longest_ns:
            self.longest_ns = ns

    @property
    def counts(self) -> np.ndarray:
        """Durations in each bin."""
        return np.array(self._counts, np.int64)

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self._counts)

    def quantile_s(self, share: float) -> float:
        """The duration in seconds that this share of all does not exceed, to the width of a bin; NaN without any."""
        if not self.count:
            return math.nan
        place = int(np.searchsorted(self.counts.cumsum(), share * self.count))
        return min(float(self.edges_s()[place]), self.longest_ns * 1e-9)

    @staticmethod
    def edges_s() -> np.ndarray:
        """Upper bounds of the bins in seconds."""
        octave, eighth = np.divmod(np.arange(_BINS), 8)
        return 2.0 ** (octave + _LEAST) * (9 + eighth) / 8 * 1e-9


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

    def as_dict(self) -> dict[str, float | str]:
        """For `--json`."""
        return dict(vars(self))


class Stopwatch:
    """Histograms of the stages of a model."""

    def __init__(self, stages: list[str]) -> None:
        self.stages = stages
        self.clear()

    def clear(self) -> None:
        """Forget what was measured."""
        self.histograms = [Histogram() for _ in self.stages]
        self.steps = [0] * len(self.stages)

    def add(self, stage: int, ns: int, steps: int) -> None:
        """A call of a stage."""
        self.histograms[stage].add(ns)
        self.steps[stage] += steps

    def summary(self) -> list[StageLatency]:
        """A row for each stage."""
        return [
            StageLatency(
                stage=name,
                calls=histogram.count,
                steps=steps,
                mean_s=histogram.total_ns * 1e-9 / max(1, histogram.count),
                p50_s=histogram.quantile_s(0.5),
                p99_s=histogram.quantile_s(0.99),
                longest_s=histogram.longest_ns * 1e-9,
            )
            for name, histogram, steps in zip(self.stages, self.histograms, self.steps, strict=True)
        ]
