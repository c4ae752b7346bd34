"""Warm-up, range and frozen states, in series of any number and in pieces of any length."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_bundles import ranges_of
from toys import SnapshotToy

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, StreamStopped
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.series_format import ChannelFormat, SeriesFormat
from reservoir_hw.experiment.deploy.infer import run_series, stream_series
from reservoir_hw.experiment.deploy.pipe import Lines
from reservoir_hw.experiment.deploy.watching import STILL, Watch
from reservoir_hw.readout import RidgeReadout
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.readout.export import export_model
from reservoir_hw.tasks import datasets
from reservoir_hw.tasks.mackey_glass import MackeyGlass
from reservoir_hw.tasks.narma import Narma
from reservoir_hw.tasks.santa_fe import SantaFe

WASHOUT = 7


class Freezing(SnapshotToy):
    """Answers what it answered before, in these steps of each sequence."""

    frozen = range(0)

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        first = int(self.t[0])
        found = np.array(super()._run(u, None))
        for step in range(u.shape[1]):
            if first + step in self.frozen:
                found[:, step] = 0.25
        return found


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[EdgeRunner]:
    """In the user's numbers: a pressure around 1e5, and the one of the step before. Training had 50 to each side."""
    u = np.random.default_rng(0).uniform(-1, 1, (1, 400, 2))
    named = [ChannelFormat(name=name, zero=1e5, gain=0.02) for name in ("here", "there", "before")]
    with Freezing(continuity="held") as device:
        readout = RidgeReadout(1e-6).fit(device.run(u)[:, WASHOUT:], u[:, WASHOUT:, :1])
        series = SeriesFormat(inputs=tuple(named[:2]), outputs=(named[2],))
        export_model(
            readout, tmp_path / "m.rhw", reservoirs=device, washout=WASHOUT, series=series,
            ranges=ranges_of(series.user_inputs(u), series.user_outputs(u[..., :1])),
        )  # fmt: skip
        with EdgeRunner(tmp_path / "m.rhw", device) as runner:
            yield runner


def driven(
    runner: EdgeRunner, inputs: np.ndarray, how: str, warmup: np.ndarray | None = None, **options: Any
) -> tuple[np.ndarray, Watch]:
    """Outputs, and who has watched."""
    watch = Watch(runner, **options)
    watch.washout, watch.warmup = runner.washout, watch.warmup if warmup is None else warmup
    with watch.observing():
        if how == "lines":
            written = io.StringIO("".join(" ".join(map(repr, row.tolist())) + "\n" for row in inputs[0]))
            return np.stack(list(stream_series(runner, Lines(written), watch)))[None], watch
        return run_series(runner, inputs, lambda *_: None, stepwise=how == "steps", watch=watch), watch


def test_a_quiet_input_is_no_frozen_reservoir(runner: EdgeRunner) -> None:
    """A coarse converter does not show what is less than its step."""
    device = runner.reservoirs[0]
    assert isinstance(device, Freezing)
    device.frozen = range(20, 60)
    random, slow = np.random.default_rng(0).uniform(-1, 1, (1, 80, 2)), np.arange(80)[None, :, None] * np.ones(2)
    # The range is 100 wide. A slow input is told when it has gone away by a hundredth of it.
    for inputs, frozen in ((0.1 * random, 0), (20 * random, 34), (0.3 * slow, 32)):
        for how in ("steps", "pieces"):
            assert driven(runner, 1e5 + inputs, how)[1].figures()["frozen"] == frozen, (how, frozen)


def test_lines_steps_and_pieces_are_one(runner: EdgeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows are nan and counted, and the others are the same to the bit."""
    device = runner.reservoirs[0]
    assert isinstance(device, Freezing)
    device.frozen = range(60, 75)
    monkeypatch.setattr("reservoir_hw.experiment.deploy.infer.PIECE", 9)
    inputs = 1e5 + 50 * np.random.default_rng(1).uniform(-1, 1, (1, 100, 2))
    inputs[0, [0, 30, 33], 1] = 1e5 + 120, 1e5 - 500, np.nan
    found = {how: driven(runner, inputs, how, outside="nan") for how in ("lines", "steps", "pieces")}
    wanted = np.zeros(100, bool)
    # The first row begins the warm-up when it is inside again, and so does each other.
    for begin, end in ((0, 0), (30, 33), (60 + STILL, 74)):
        wanted[begin : end + 1 + WASHOUT] = True
    for outputs, watch in found.values():
        np.testing.assert_array_equal(np.isnan(outputs[0, :, 0]), wanted)
        np.testing.assert_array_equal(outputs, found["pieces"][0])
        assert watch.figures() == {"rows": 100, "read": 100, "input": 3, "answer": 0, "frozen": 10}
    # Two series at once: each has what it has alone.
    both = np.concatenate([inputs, np.roll(inputs, 20, 1)])
    alone = [driven(runner, one[None], "steps", outside="nan")[0][0] for one in both]
    np.testing.assert_array_equal(driven(runner, both, "pieces", outside="nan")[0], alone)
    # They are counted, and go on as they are.
    told: list[str] = []
    inputs[0, 33, 1] = 1e5
    outputs, watch = driven(runner, inputs, "pieces", tell=told.append)
    assert np.isnan(outputs).sum() == WASHOUT
    assert watch.figures()["input"] == 2
    assert told[:2] == [
        f"the first {WASHOUT} answers are nan: they follow from rest (--warmup FILE drives a series first, --warmup "
        "none shows them)",
        "stdin, row 0 (0 is the first): input 'there' is 100120, training had 99950.0301 to 100049.53",
    ]
    # Nothing is driven with what is outside; of what comes later, the rows before it are kept.
    for words, count in (("row 0 .*input 'there' is 100120", 0), ("row 65 .*reservoir 0 gives the same states", 65)):
        kept: list[np.ndarray] = []
        watch = Watch(runner, outside="stop")
        with watch.observing(), pytest.raises(StreamStopped, match=words):
            run_series(runner, inputs, lambda *_: None, answered=kept, watch=watch)
        assert sum(one.shape[1] for one in kept) == count
        # All that were read are counted, and not those alone that were answered.
        assert count or watch.lines() == ["2 of 100 inputs lay outside the range of training"]
        inputs[0, [0, 30], 1] = 1e5


def test_a_warm_up(runner: EdgeRunner) -> None:
    """What comes after it is what it would be in one series; what it lacks is nan."""
    inputs = 1e5 + 50 * np.random.default_rng(1).uniform(-1, 1, (1, 60, 2))
    whole, _ = driven(runner, inputs, "steps")
    for rows in (3, WASHOUT, 30):
        for how in ("lines", "steps", "pieces"):
            told: list[str] = []
            found, watch = driven(runner, inputs[:, rows:], how, warmup=inputs[0, :rows], tell=told.append)
            np.testing.assert_array_equal(found, whole[:, rows:])
            assert watch.figures()["rows"] == 60 - rows
            assert ("ready" in told) is (how == "lines")
            assert any("the warm-up takes 7 rows, and its file has 3" in one for one in told) is (rows == 3)


def test_a_constant_channel_has_a_step_of_its_number(tmp_path: Path) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 300, 2))
    u[..., 1] = 0.3
    y = np.concatenate([u[..., :1], np.full((1, 300, 1), 7.0)], -1)
    with SnapshotToy(continuity="held") as device:
        readout = RidgeReadout(1e-6).fit(device.run(u), y)
        export_model(readout, tmp_path / "m.rhw", reservoirs=device, ranges=ranges_of(u, y))
        with EdgeRunner(tmp_path / "m.rhw", device) as runner:
            assert driven(runner, u, "pieces")[1].figures() == {
                "rows": 300,
                "read": 300,
                "input": 0,
                "answer": 0,
                "frozen": 0,
            }
            u[0, 5, 1] += 1e-6
            assert driven(runner, u, "pieces")[1].figures()["input"] == 1


@pytest.mark.skipif(datasets.FOLDER_VARIABLE not in os.environ, reason="no folder with data sets")
@pytest.mark.parametrize("task", [Narma, MackeyGlass, SantaFe])
def test_held_out_steps_raise_no_alarm(task: Any, tmp_path: Path) -> None:
    """At most one in a thousand."""
    split = task(train_steps=1500, test_steps=4000)
    device: Reservoir
    with open_reservoir({"kind": "esn", "nodes": 60, "inputs": 1, "input_scaling": 0.5}) as device:
        u, y = split.train.inputs, split.train.targets
        readout = RidgeReadout(1e-4).fit(device.run(u)[:, 50:], y[:, 50:])
        export_model(readout, tmp_path / "m.rhw", reservoirs=device, washout=50, ranges=ranges_of(u, y), probe=False)
        with EdgeRunner(tmp_path / "m.rhw", device) as runner:
            found, watch = driven(runner, split.test.inputs, "pieces", outside="nan")
    figures = watch.figures()
    steps = found.shape[1]
    assert figures["rows"] == steps >= 3900
    assert sum(figures[name] or 0 for name in ("input", "answer", "frozen")) <= 0.001 * steps
    assert np.isnan(found).sum() <= 50 + 0.001 * steps


def test_ranges_of_another_width_are_refused(tmp_path: Path) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 300, 2))
    with SnapshotToy(continuity="held") as device:
        readout = RidgeReadout(1e-6).fit(device.run(u), u)
        export_model(readout, tmp_path / "m.rhw", reservoirs=device, ranges=ranges_of(u[..., :1], u))
        with (
            EdgeRunner(tmp_path / "m.rhw", device) as runner,
            pytest.raises(ConfigurationError, match="ranges of 1 ch"),
        ):
            Watch(runner)
