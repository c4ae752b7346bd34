"""A task of a user's own table: columns in units, which the model works with scaled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from reservoir_hw.core import registry
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.series_format import ChannelFormat, SeriesFormat
from reservoir_hw.tasks.task import Evaluation, OutputScale, Split, Task, TaskConfig, checked_outputs

INPUTS, TARGET = ["pressure (Pa)", "temperature"], "flow"
CLASSES = ("rising, fast", "falling")
TRAIN, WARMUP = 600, 150


@contextmanager
def known() -> Iterator[None]:
    """While `kind: measured` is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BUILT_IN["tasks"], "measured", "measured_task:MeasuredConfig")
        yield


def write_table(path: Path) -> np.ndarray:
    """800 rows of pressure, temperature and flow; returns them."""
    noise = generator(0, "measured").standard_normal((801, 2))
    time = np.arange(801)
    pressure = 101325 + 300 * np.sin(time / 9) + 20 * noise[:, 0]
    temperature = 273 + 5 * np.sin(time / 23) + noise[:, 1]
    flow = 1e4 + 0.1 * pressure[:-1] + 8 * temperature[1:]
    table = np.column_stack([pressure[1:], temperature[1:], flow])
    lines = [",".join(repr(float(value)) for value in row) for row in table]
    path.write_text("\n".join([",".join([*INPUTS, TARGET]), *lines]) + "\n")
    return table


def trials() -> np.ndarray:
    """(trials, time, inputs): every second one falls."""
    noise = generator(1, "trials").standard_normal((24, 30, 2))
    slope = np.where(np.arange(24) % 2, -1.0, 1.0)[:, None] * np.arange(30) / 30
    return np.stack([101325 + 300 * slope + 30 * noise[..., 0], 273 + noise[..., 1]], -1)


def _scaled(name: str, values: np.ndarray) -> ChannelFormat:
    return ChannelFormat(name=name, zero=float(values.mean()), gain=1 / float(values.std()))


class Measured(Task):
    """`values`: flow of pressure and temperature; `forecast`: both go on alone; `classes`: of trials."""

    score = "nmse"

    def __init__(self, file: str, mode: str) -> None:
        if mode == "classes":
            inputs, targets = trials(), np.tile(np.eye(2)[np.arange(24) % 2][:, None], (1, 30, 1))
            named = tuple(map(_scaled, INPUTS, np.moveaxis(inputs[:16], -1, 0)))
            self.series = SeriesFormat(inputs=named, classes=CLASSES, decide_from=5)
            u, lengths = self.series.model_inputs(inputs).astype(np.float32), np.full(24, 30)
            y = targets.astype(np.float32)
            self.train, self.test = (
                Split(u[rows], y[rows], lengths=lengths[rows]) for rows in (slice(16), slice(16, 24))
            )
            return
        table = np.loadtxt(file, delimiter=",", skiprows=1)
        inputs, targets = table[:, :2], table[:, 2:]
        named = tuple(map(_scaled, INPUTS, inputs[:TRAIN].T))
        if mode == "forecast":
            self.closed_loop = True
            self.series = SeriesFormat(inputs=named, outputs=named)
            u = self.series.model_inputs(inputs).astype(np.float32)
            self.train = Split(u[None, : TRAIN - 1], u[None, 1:TRAIN])
            starts = [TRAIN - WARMUP, TRAIN - WARMUP + 50]
            self.test = Split(
                np.stack([u[at : at + WARMUP] for at in starts]),
                np.stack([u[at + WARMUP : at + WARMUP + 40] for at in starts]),
            )
        else:
            self.series = SeriesFormat(inputs=named, outputs=(_scaled(TARGET, targets[:TRAIN]),))
            u = self.series.model_inputs(inputs).astype(np.float32)[None]
            y = self.series.model_targets(targets).astype(np.float32)[None]
            self.train, self.test = (Split(u[:, part], y[:, part]) for part in (slice(TRAIN), slice(TRAIN, None)))
        self.facts = {
            "inputs_sha256": hashlib.sha256(inputs.tobytes()).hexdigest(),
            "targets_sha256": hashlib.sha256(targets.tobytes()).hexdigest(),
            "files": {file: hashlib.sha256(Path(file).read_bytes()).hexdigest()},
            "rows": len(table),
        }

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        del scale
        found = checked_outputs(outputs, self.test, finite=not self.closed_loop)
        return Evaluation({"nmse": float(np.mean((found - self.test.targets) ** 2) / self.test.targets.var())})


class MeasuredConfig(TaskConfig):
    kind: Literal["measured"]
    file: str = ""
    mode: Literal["values", "forecast", "classes"] = "values"

    def build(self) -> Measured:
        return Measured(self.file, self.mode)
