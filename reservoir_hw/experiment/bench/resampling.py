"""How a score would change with another test of the same kind: a paired block bootstrap."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np

from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.task import Split, Task

_RESAMPLES = 399
_TAIL = 10
"""So many of the resamples lie at or beyond either end of a 95 % interval: (399 + 1) 0.025."""


def resampled(task: Task, outputs: Sequence[np.ndarray], metric: str, worst: float) -> np.ndarray:
    """The metric of each model on tests that are drawn from the test of the task: (models, resamples).

    `outputs` has those of each model for the test, which is drawn anew for all of them alike. Several sequences, or
    starts of a forecast, are drawn with replacement (Efron 1979, Annals of Statistics 7). One sequence is drawn in
    circular blocks of consecutive steps (Künsch 1989, Annals of Statistics 17; Politis & Romano 1992). They are √n long
    of n steps: consistency asks that they become ever longer and ever more. Where the task judges pieces, a step is a
    piece. `worst` stands for a metric that is missing.
    """
    found = np.empty((len(outputs), _RESAMPLES))
    drawn = copy.copy(task)
    for column, (rows, steps) in enumerate(_draws(task)):
        drawn.test = _part(task.test, rows, steps)
        for row, one in enumerate(outputs):
            found[row, column] = drawn.evaluate(one[rows][:, steps]).metrics.get(metric, worst)
    return found


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of resamples."""
    ordered = np.sort(values)
    return float(ordered[_TAIL - 1]), float(ordered[-_TAIL])


def _draws(task: Task) -> Iterator[tuple[np.ndarray, np.ndarray | slice]]:
    """Rows and steps of each resample."""
    rng = generator(0, "resamples of a test")
    batch, steps = task.test.targets.shape[:2]
    if batch > 1:
        for _ in range(_RESAMPLES):
            yield rng.integers(batch, size=batch), slice(None)
        return
    pieces = steps // task.piece_steps
    length = round(math.sqrt(pieces))
    for _ in range(_RESAMPLES):
        starts = rng.integers(pieces, size=math.ceil(pieces / length))
        chosen = ((starts[:, None] + np.arange(length)) % pieces).ravel()[:pieces]
        whole = chosen[:, None] * task.piece_steps + np.arange(task.piece_steps)
        yield np.array([0]), whole.ravel()


def _part(split: Split, rows: np.ndarray, steps: np.ndarray | slice) -> Split:
    # The inputs of a forecast are its warm-up, which is not judged.
    lengths = None if split.lengths is None else np.asarray(split.lengths)[rows]
    counted = None if split.counted is None else split.counted[rows][:, steps]
    return Split(split.inputs[rows], split.targets[rows][:, steps], None, lengths, split.at_end, counted)
