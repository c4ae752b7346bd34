"""A task on two devices: readouts trained on one of them, judged on both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.experiment.compare.nodes import LEVEL, can_tell, p_values, ways_to_deal
from reservoir_hw.tasks.task import Evaluation, Table

CELLS = (("A", "A"), ("B", "A"), ("A", "B"), ("B", "B"))
"""Trained on, judged on."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """The metrics of readouts that were trained on one run of a device and judged on another.

    `values` are, by metric, (runs, runs): trained on the run of the row, judged on that of the column; first the
    runs of A, then those of B, `repeats` of each. The first metric is the one that is tested. `p_transfer` is the
    p-value of "it matters whether a readout was trained on the device that it is judged on", `p_device` that of
    "readouts of A on A and readouts of B on B are not equally good"; None where there are too few repeats. Where
    the devices differ in their nodes, no readout can be judged on the other: those values are NaN, and `p_transfer` is
    None.
    """

    values: dict[str, np.ndarray]
    repeats: tuple[int, int]
    p_transfer: float | None
    p_device: float | None

    def cell(self, metric: str, trained: str, judged: str) -> np.ndarray:
        """All values of one cell of the table, (values,).

        A readout is judged on another repeat than the one that it was trained on, where there is another.
        """
        a = self.repeats[0]
        rows, columns = (slice(0, a) if of == "A" else slice(a, None) for of in (trained, judged))
        block = self.values[metric][rows, columns]
        own = np.eye(len(block), dtype=bool) if trained == judged and len(block) > 1 else np.zeros(block.shape, bool)
        return block[~own]

    def differences(self) -> list[str] | None:
        """What is beyond the repeat error, in words; None where that cannot be told."""
        if self.p_device is None:
            return None
        name = next(iter(self.values))
        said = {
            f"{name}: it matters on which device a readout was trained": self.p_transfer,
            f"{name}: A with its own readout differs from B with its own": self.p_device,
        }
        return [text for text, p in said.items() if p is not None and p <= LEVEL]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        cells = {
            metric: {
                f"trained_{t.lower()}_judged_{j.lower()}": {
                    "mean": float((values := self.cell(metric, t, j)).mean()),
                    "sd": _deviation(values),
                    "values": values.tolist(),
                }
                for t, j in CELLS
                if not np.isnan(self.cell(metric, t, j)).any()
            }
            for metric in self.values
        }
        return {"cells": cells, "p_transfer": self.p_transfer, "p_device": self.p_device}

    def tables(self) -> list[Table]:
        """A table of two rows and two columns for each metric."""
        note = (
            "mean ± standard deviation over repeats (the floor); a readout is never judged on the repeat that it was "
            "trained on"
            if min(self.repeats) > 1
            else "one run of each device: the floor is unknown"
        )
        return [
            Table(
                f"Task: {metric}",
                ["readout trained on", "judged on A", "judged on B"],
                [[t, *(_shown(self.cell(metric, t, j)) for j in "AB")] for t in "AB"],
                note + ".",
            )
            for metric in self.values
        ]


def transfer(evaluations: Sequence[Sequence[Evaluation | None]], repeats: tuple[int, int]) -> Transfer:
    """Of evaluations [trained on run][judged on run], first the runs of A, then those of B."""
    first = evaluations[0][0]
    assert first is not None
    values = {
        name: np.array([[np.nan if one is None else one.metrics[name] for one in row] for row in evaluations])
        for name in first.metrics
    }
    if not can_tell(*repeats):
        return Transfer(values, repeats, None, None)
    main = next(iter(values.values()))
    p_transfer, p_device = (float(p_values(s)[0]) for s in _statistics(main, ways_to_deal(*repeats)))
    return Transfer(values, repeats, None if np.isnan(main).any() else p_transfer, p_device)


def _statistics(values: np.ndarray, ways: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how much readouts of the other group differ from own ones, and own ones of both groups: (ways, 1), in [0, 1].

    For the second a run's own readout stands for it: its training and its test are different inputs.
    """
    pairs = ways[:, :, None] == ways[:, None, :]
    own, other = pairs & ~np.eye(len(values), dtype=bool), ~pairs
    at_home, away = (np.where(where, values, 0.0).sum(axis=(1, 2)) / where.sum(axis=(1, 2)) for where in (own, other))
    alone = np.diag(values)
    first, second = (np.where(of, alone, 0.0).sum(axis=1) / of.sum(axis=1) for of in (ways, ~ways))
    span = 2 * np.nanmax(np.abs(values)) or 1.0
    return np.abs(away - at_home)[:, None] / span, np.abs(first - second)[:, None] / span


def _deviation(values: np.ndarray) -> float | None:
    """Over repeats: exactly 0 where all are equal, None for a single one."""
    return None if len(values) < 2 else float((values - values[0]).std(ddof=1))


def _shown(values: np.ndarray) -> str:
    deviation = _deviation(values)
    if np.isnan(values).any():
        return "other nodes"
    return f"{values.mean():.4g}" + ("" if deviation is None else f" ± {deviation:.2g}")
