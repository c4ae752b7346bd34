"""Where the time of a step goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Eight bins to an octave, from 2^7 ns to 2^37 ns.
_LEAST, _MOST = 7, 37
_BINS = (_MOST - _LEAST) * 8

# Durations that wait to be sorted into bins: sorting many at once takes a tenth of the time.
_WAITING = 4096


class Histogram:
    """Durations in bins of 6 to 12 % width from 128 ns to 137 s; of constant size however many they are."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self.add: Callable[[int], None] = self._waiting.append
        """Take one duration in nanoseconds. Somebody must call `sort` now and then."""
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()
        self._counts = np.zeros(_BINS, np.int64)
        self._total_ns = self._longest_ns = 0

    def sort(self) -> None:
        """Put what was added into bins."""
        if not self._waiting:
            return
        ns = np.array(self._waiting, np.int64)
        self._waiting.clear()
        self._total_ns += int(ns.sum())
        self._longest_ns = max(self._longest_ns, int(ns.max()))
        mantissa, exponent = np.frexp(ns.astype(np.float64))
        places = (exponent - 1 - _LEAST) * 8 + (mantissa * 16).astype(np.int64) - 8
        self._counts += np.bincount(places.clip(0, _BINS - 1), minlength=_BINS)

    @property
    def waiting(self) -> int:
        """How many durations wait to be sorted."""
        return len(self._waiting)

    @property
    def counts(self) -> np.ndarray:
        """Durations in each bin."""
        self.sort()
        return self._counts

    @property
    def count(self) -> int:
        """How many durations there are."""
        return int(self.counts.sum())

    @property
    def total_ns(self) -> int:
        """Their sum."""
        self.sort()
        return self._total_ns

    @property
    def longest_ns(self) -> int:
        """The longest of them."""
        self.sort()
        return self._longest_ns

    def quantile_s(self, share: float) -> float:
        """The duration in seconds that this share of all does not exceed, to the width of a bin; NaN without any."""
        counts = self.counts
        total = counts.sum()
        if not total:
            return math.nan
        place = int(np.searchsorted(counts.cumsum(), share * total))
        return min(float(self.edges_s()[place]), self._longest_ns * 1e-9)

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
        if self.histograms[0].waiting >= _WAITING:
            for histogram in self.histograms:
                histogram.sort()

    def summary(self) -> list[StageLatency]:
        """A row for each stage."""
        return [
            StageLatency(
                stage=name,
                calls=histogram.count,
                steps=self.steps,
                mean_s=histogram.total_ns * 1e-9 / max(1, histogram.count),
                p50_s=histogram.quantile_s(0.5),
                p99_s=histogram.quantile_s(0.99),
                longest_s=histogram.longest_ns * 1e-9,
            )
            for name, histogram in zip(self.stages, self.histograms, strict=True)
        ]
