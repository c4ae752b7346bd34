"""What an export knows of its run: how long a start from rest shows, the ranges of training, and what int8 costs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_runs import NARMA, run_of, text_run
from measured_task import known, write_table

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.experiment.deploy.trained import Stored, trained_row
from reservoir_hw.readout.edge import Bundle, EdgeRunner
from reservoir_hw.readout.edge.verification import spread_of

EXAMPLES = Path(__file__).parents[3] / "examples"
SETTINGS: dict[str, dict[str, Any]] = {
    "equalisation": {"task.test_steps": 3000, "vary": {"task.snr_db": [28]}},
    "narma": {},
    "drift": {
        "task.test_steps": 3000,
        "vary": {"readout.keep_learning": [False]},
        "reservoir.vary": {"nonidealities.loop.drift": [0.001]},
    },
}
FILES = {
    "equalisation": "delay_loop/equalisation.yaml",
    "narma": "edge_deploy/narma.yaml",
    "drift": "drift/experiment.yaml",
}


def example(name: str, folder: Path, **more: Any) -> Path:
    """A short run of an example; returns the run folder."""
    settings = {"baselines": [], "run.folder": str(folder), **SETTINGS[name], **more}
    return Experiment.from_file(EXAMPLES / FILES[name], set=settings, environment={}).run(report=False).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("examples")
    return {name: example(name, folder / name) for name in FILES}


def driven(run: Path, bundle: Path, *, trained_before: bool = False) -> tuple[np.ndarray, int]:
    """The bundle on the run's test from rest, or behind the training, as the run drove it.

    Returns by how many spreads each step (time,) is off the run's stored outputs, and the washout of the bundle.
    """
    exported = export_run(run, bundle, force=True)
    assert exported.manifest is not None
    row = trained_row(run)
    task, wanted = row.task(), np.load(row.file("outputs"))
    u = task.test.inputs
    if trained_before:
        u = np.concatenate([task.train.inputs, u], axis=1)
    with EdgeRunner(bundle, shlex.split(exported.command)[-1]) as runner:
        found = runner.run(u)[:, -wanted.shape[1] :]
        assert found.dtype == np.dtype(exported.manifest.output.dtype)
    return (np.abs(found - wanted) / spread_of(wanted)).max(axis=(0, 2)), exported.manifest.washout


SLOW = {"reservoir.leak_rate": 0.05, "reservoir.spectral_radius": 0.95}


@pytest.mark.parametrize("name", FILES)
def test_behind_the_washout_the_answers_are_those_of_the_run(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    """From rest; a device that drifts drifts anew with each start, so there it is driven as long as the run's was."""
    off, washout = driven(runs[name], tmp_path / "m.rhw", trained_before=name == "drift")
    assert washout == 100
    assert off[washout:].max() < 1e-3
    if name != "drift":
        assert off[:washout].max() > 1


@pytest.mark.parametrize(("name", "reservoir"), [("equalisation", {}), ("narma", {}), ("narma", SLOW)])
def test_settling_is_measured_where_the_washout_is_too_short(
    name: str, reservoir: dict[str, Any], tmp_path: Path
) -> None:
    """Also where a start from rest shows for longer than what is driven at first."""
    run = example(name, tmp_path / "runs", **{"readout.washout": 5, **reservoir})
    off, washout = driven(run, tmp_path / "m.rhw")
    assert washout == np.flatnonzero(off > 0.1)[-1] + 1 > 5
    took = f"take {washout} steps to become those of the run"
    if washout > len(off) // 2:
        took = f"are off those of the run even after {washout} of {len(off)} steps"
    told = [note for note in export_run(run, tmp_path / "m.rhw", force=True).notes if note.startswith("From rest")]
    assert told == [
        f"From rest, the answers {took}; readout.washout is 5. infer leaves out the longer time, or --warmup FILE "
        "drives it."
    ]


def test_texts_and_classes_have_no_washout(tmp_path: Path) -> None:
    exported = export_run(text_run(tmp_path / "text", "attention"), tmp_path / "text.rhw")
    assert exported.manifest is not None
    assert exported.manifest.washout == 0
    assert exported.manifest.ranges is None
    with known():
        write_table(tmp_path / "table.csv")
        run = run_of(
            tmp_path,
            "task: {kind: measured, file: FOLDER/table.csv, mode: classes}\nreservoir: {kind: esn, nodes: 20}\n"
            "readout: {kind: ridge, alpha: 1e-4, washout: 5}\nrun: {folder: FOLDER/runs, states: null}\n",
        )
        exported = export_run(run, tmp_path / "classes.rhw")
    assert exported.manifest is not None
    assert exported.manifest.washout == 0
    assert not [note for note in exported.notes if note.startswith("From rest")]


def test_padding_moves_no_output(tmp_path: Path) -> None:
    """A long series among short ones: what the model answers behind their ends is no yardstick."""
    random = np.random.default_rng(0)
    for part, lengths in (("train", [300, 300]), ("test", [300, 40, 40, 40])):
        (tmp_path / part).mkdir()
        for number, length in enumerate(lengths):
            u = 20 + 5 * random.uniform(-1, 1, length)
            rows = "".join(f"{here:.9g},{before:.9g}\n" for here, before in zip(u, np.roll(u, 1), strict=True))
            (tmp_path / part / f"{number}.csv").write_text("u,y\n" + rows)
    run = run_of(
        tmp_path,
        "task: {kind: data, files: 'FOLDER/train/*.csv', inputs: {columns: [u]}, targets: {columns: [y]},"
        " test: {files: 'FOLDER/test/*.csv'}, scale: {inputs: none, targets: none}}\n"
        "reservoir: {kind: esn, nodes: 40, input_scaling: 0.02}\nreadout: {kind: ridge, alpha: 1e-6, washout: 10}\n"
        "run: {folder: FOLDER/runs, states: null}\n",
    )
    found = Stored(trained_row(run), [])
    outputs = np.load(trained_row(run).file("outputs"))
    kept = [row[10:length] for row, length in zip(outputs, [300, 40, 40, 40], strict=True)]
    assert found.spread == pytest.approx(np.concatenate(kept).std(axis=0))
    assert found.spread != pytest.approx(outputs[:, 10:].std(axis=(0, 1)), rel=0.2)


def test_int8_that_destroys_a_forecast_is_refused(tmp_path: Path) -> None:
    """Its answers to the true inputs are near, and those to its own answers are not."""
    steps = np.arange(1000)
    waves = np.sin(steps / 8) + 0.4 * np.sin(steps / 3.1)
    (tmp_path / "waves.csv").write_text("height\n" + "".join(f"{value:.9g}\n" for value in waves))
    run = run_of(
        tmp_path,
        "task: {kind: data, files: FOLDER/waves.csv, inputs: {columns: [height]}, targets: {ahead_steps: 1},"
        " closed_loop: {warmup_steps: 100, forecast_steps: 100, starts: 2}}\nreservoir: {kind: esn, nodes: 100}\n"
        "readout: {kind: ridge, alpha: 1e-8, washout: 100}\nrun: {folder: FOLDER/runs, states: null}\n",
    )
    with pytest.raises(ConfigurationError, match=r"int8 changes an output by a root mean square.*valid_steps \d"):
        export_run(run, tmp_path / "m.rhw", precision="int8")
    export_run(run, tmp_path / "m.rhw")


@pytest.mark.parametrize("name", ["equalisation", "narma"])
def test_int8_that_costs_the_task_is_refused(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    metric = {"equalisation": "nmse", "narma": "nrmse"}[name]
    before = json.loads((runs[name] / "metrics.json").read_text())["rows"][0]["metrics"][metric]
    for target, path in (("segments", tmp_path / "m.rhw"), ("c", tmp_path / "m.h")):
        options: Any = {"precision": "int8", "target": target}
        said = rf"root mean square of .* at most 0\.1 is .*; {metric} {before:.4g} becomes .*--accept-loss"
        with pytest.raises(ConfigurationError, match=said):
            export_run(runs[name], path, **options)
        assert not path.exists()
        exported = export_run(runs[name], path, **options, accept_loss=True)
        assert exported.loss is not None
        assert exported.loss.accepted
        assert (exported.loss.error or 0) > 0.3
        assert exported.as_dict()["loss"]["judged_on"] == "test"
        assert exported.metrics[metric]["after"] > 1.5 * exported.metrics[metric]["before"]
        assert any(note.startswith("int8 changes an output by a root mean square of") for note in exported.notes)
    with Bundle.open(tmp_path / "m.rhw") as bundle:
        assert bundle.manifest.loss is not None
        assert bundle.manifest.loss.accepted
        assert (bundle.manifest.loss.error or 0) > 0.3


def test_int8_that_is_harmless_is_written(tmp_path: Path) -> None:
    for run in (text_run(tmp_path / "text", "attention"), run_of(tmp_path / "gentle", NARMA, readout__alpha=10)):
        exported = export_run(run, tmp_path / "int8.rhw", precision="int8", force=True)
        assert exported.loss is not None
        assert not exported.loss.accepted


def test_int8_without_a_device(tmp_path: Path) -> None:
    """Judged by what the run has stored; where it has stored nothing, it is said that nobody judged."""
    run = run_of(tmp_path, NARMA)
    offline: Any = {"precision": "int8", "offline": True}
    with pytest.raises(ConfigurationError, match="int8 changes an output by a root mean square"):
        export_run(run, tmp_path / "m.rhw", **offline)
    exported = export_run(run, tmp_path / "m.rhw", **offline, accept_loss=True)
    assert exported.loss is not None
    assert (exported.loss.judged_on, exported.loss.accepted) == ("stored outputs", True)
    assert any("on random states as large as in training" in note for note in exported.notes)
    header = export_run(run, tmp_path / "m.h", **offline, target="c")
    trained_row(run).file("outputs").unlink()
    blind = export_run(run, tmp_path / "blind.rhw", **offline)
    text = export_run(text_run(tmp_path / "text", "attention"), tmp_path / "text.rhw", **offline)
    for one in (header, blind, text):
        assert one.loss is not None
        assert one.loss.judged_on == "nothing"
        assert any(note.startswith("Nobody judged what int8 costs") for note in one.notes)


DATA = """\
task: {kind: data, files: FOLDER/own.csv, inputs: {columns: [pressure, still]}, targets: {columns: [flow, valve]}}
reservoir: {kind: esn, nodes: 40, inputs: 2}
readout: {kind: ridge, alpha: 1e-3, washout: 50}
run: {folder: FOLDER/runs, states: null}
"""


def own_csv(folder: Path) -> np.ndarray:
    """800 rows of a pressure with a glitch, a channel that never moves, a flow, and a valve that never moves."""
    pressure = 101325 + np.random.default_rng(0).uniform(-0.5, 0.5, 800)
    pressure[300] = 0
    rows = np.column_stack([pressure, np.full(800, 3.7), 1e-6 * np.roll(pressure - 101325, 1), np.full(800, 0.125)])
    lines = ["pressure,still,flow,valve", *(",".join(map(repr, row)) for row in rows.tolist())]
    (folder / "own.csv").write_text("\n".join(lines) + "\n")
    return rows


def test_ranges_are_in_the_users_numbers(tmp_path: Path) -> None:
    rows = own_csv(tmp_path)[:600]
    run = run_of(tmp_path, DATA)
    exported = export_run(run, tmp_path / "m.rhw")
    assert exported.manifest is not None
    ranges = exported.manifest.ranges
    assert ranges is not None
    record = json.loads((run / "provenance.json").read_text())["rows"][0]["ranges"]
    assert record == json.loads(json.dumps(ranges.model_dump()))
    for extent, columns in ((ranges.inputs, rows[:, :2]), (ranges.targets, rows[:, 2:])):
        width = np.ptp(columns, axis=0)
        for found, wanted in ((extent.low, columns.min(0)), (extent.high, columns.max(0))):
            assert (np.abs(found - wanted) <= 1e-6 * width + 1e-12 * np.abs(wanted)).all()
    # The glitch moved the end of its channel, and not the point beside it.
    assert ranges.inputs.low_point[0] == pytest.approx(101324.5, abs=0.1)
    told = [note for note in exported.notes if "a glitch makes the range wide" in note]
    assert [note.split(" was ")[0] for note in told] == ["In training input 0", "In training target 0"]
    assert "99.8 % of it 101324.50" in told[0]
    assert "Output 1 hardly moved in the test of the run" in " ".join(exported.notes)


def test_a_washout_that_is_longer_than_the_test(tmp_path: Path) -> None:
    run = run_of(tmp_path, NARMA, readout__washout=500, task__test_steps=200)
    exported = export_run(run, tmp_path / "m.rhw")
    assert exported.manifest is not None
    assert exported.manifest.washout == 500
    assert "The washout of 500 steps is longer than what there is to drive: 200." in exported.notes
