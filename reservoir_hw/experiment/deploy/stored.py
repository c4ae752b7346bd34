"""What a run has kept says about its export: how much outputs move, how long a start from rest shows, known ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.edge.manifest import Ranges
from reservoir_hw.readout.edge.spread import INT8_LIMIT, STILL, spread_of

if TYPE_CHECKING:
    from reservoir_hw.experiment.deploy.trained import TrainedRow

_MOST = 20_000
"""Steps of the test that are driven at most to see a start from rest settle."""
_MARGIN = 2.0
"""How many times the largest difference between two drives is no noise any more."""
GLITCH = 10
"""So many times wider than nearly all of its numbers is a channel with a glitch."""


class Stored:
    """`outputs` (batch, steps, outputs) of the run for its test, None where it had none, and `washout`, the user's.

    `spread` (outputs,) is how much each of them moves behind the washout. Classes are judged by whole series: they have
    no washout.
    """

    def __init__(self, row: TrainedRow) -> None:
        series = row.series
        classes = series is not None and bool(series.classes)
        self.washout = 0 if classes else int(getattr(row.point.config.readout, "washout", 0))
        self.outputs, self.spread = _outputs_of(row), None
        self.ranges = Ranges.model_validate(row.record["ranges"], strict=False) if "ranges" in row.record else None
        self.notes: list[str] = []
        if self.outputs is not None:
            self.steps: list[int] = row.record.get("test_lengths") or [self.outputs.shape[1]] * len(self.outputs)
            """Of each sequence: what lies beyond is padding."""
            self.spread = self._spread(self.outputs)
        if self.ranges is None:
            self.notes.append("The run did not keep the ranges of its training: infer cannot tell what lies outside.")
        else:
            self._tell_glitches(self.ranges)

    def _spread(self, outputs: np.ndarray) -> np.ndarray:
        valid = np.arange(outputs.shape[1]) < np.array(self.steps)[:, None]
        counted = self.behind(outputs)[self.behind(valid)]
        spread = spread_of(counted if len(counted) else outputs[valid])
        least = np.maximum(STILL * np.abs(outputs[valid]).max(axis=0), np.finfo(np.float32).tiny)
        if (still := np.flatnonzero(spread <= least)).size:
            self.notes.append(
                f"Output {', '.join(map(str, still))} hardly moved in the test of the run: errors of it are "
                "measured in roundings of its value."
            )
        return spread

    def behind(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs (batch, steps, outputs) behind the washout; all of them where it is longer."""
        return outputs[:, self.washout :] if self.washout < outputs.shape[1] else outputs

    def settles(self, answers: Callable[[int], np.ndarray], first: np.ndarray, *, deterministic: bool) -> None:
        """Let the washout cover what a start from rest shows: the last answer that is off those of the run.

        `first` (1, steps, outputs) are the answers to the test's beginning from rest; `answers` gives those to so many
        steps, driven anew. Where the second half is still off, twice as many are driven. What a noisy device differs by
        from one drive to the next does not count.
        """
        if self.outputs is None or self.spread is None:
            return
        most, outputs, limit = min(self.steps[0], _MOST), first, INT8_LIMIT
        if not deterministic:
            noise = np.abs(answers(first.shape[1]) - first) / self.spread
            limit = max(limit, _MARGIN * float(noise.max(initial=0.0)))
        while True:
            steps = min(outputs.shape[1], most)
            apart = (np.abs(outputs[0, :steps] - self.outputs[0, :steps]) / self.spread).max(axis=1)
            settled = int(np.flatnonzero(apart > limit).max(initial=-1)) + 1
            if settled <= steps // 2 or steps == most:
                break
            outputs = answers(min(2 * steps, most))
        if settled <= self.washout:
            return
        what = f"From rest, the answers take {settled} steps to become those of the run"
        if settled > steps // 2:
            what = f"From rest, the answers are off those of the run even after {settled} of {steps} steps"
        self.notes.append(
            f"{what}; readout.washout is {self.washout}. infer leaves out the longer time, or --warmup FILE drives it."
        )
        self.washout = settled

    def _tell_glitches(self, ranges: Ranges) -> None:
        for what, one in (("input", ranges.inputs), ("target", ranges.targets)):
            width, most = (np.subtract(*ends) for ends in ((one.high, one.low), (one.high_point, one.low_point)))
            for channel in np.flatnonzero(width > GLITCH * np.maximum(most, 0)):
                if most[channel] > 0:
                    self.notes.append(
                        f"In training {what} {channel} was {one.low[channel]:.9g} to {one.high[channel]:.9g}, 99.8 % "
                        f"of it {one.low_point[channel]:.9g} to {one.high_point[channel]:.9g}: a glitch makes the "
                        "range wide that infer watches."
                    )


def _outputs_of(row: TrainedRow) -> np.ndarray | None:
    try:
        found = np.load(row.outputs, allow_pickle=False)
    except (ConfigurationError, OSError, ValueError):
        return None
    return found if found.ndim == 3 and found.size and np.isfinite(found).all() else None
