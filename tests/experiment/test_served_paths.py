"""The network changes nothing: each continuity on each path gives served what it gives here, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import free_address, served

from reservoir_hw import Experiment
from reservoir_hw.core.reservoir_config import build_reservoir, open_reservoir, reservoir_config
from reservoir_hw.experiment.bench.bench import bench
from reservoir_hw.experiment.deploy.evaluate import evaluate
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.experiment.devices.measure import measure
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.testing.conformance import conform

CONTINUITIES = ["held", "replayed", "free_running"]
FRAME = 4096
"""Runs are much longer than a frame of the served cell."""


def cell(continuity: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "python", "call": "chemical_cell:drive", "setup_call": "chemical_cell:prepare", "nodes": 3, "inputs": 1,
        "reset_call": "chemical_cell:to_rest", "continuity": continuity, "memory_steps": 30, "deterministic": True,
        "input_range": [-2, 2], "simulated": False, "label": "cell 4", "calibration_id": "c-17", **more,
    }  # fmt: skip


@pytest.fixture(params=CONTINUITIES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Reservoir files of the cell here, and of the same one behind a server."""
    here, there, address = tmp_path / "here.yaml", tmp_path / "there.yaml", free_address()
    here.write_text(json.dumps(cell(request.param)))
    there.write_text(f"kind: zmq\naddress: {address}\n")
    with served(build_reservoir(reservoir_config(cell(request.param))), address, max_frame_bytes=FRAME):
        yield str(here), str(there)


def experiment(folder: Path, reservoir: str) -> Experiment:
    document = {
        "task": {"kind": "narma", "train_steps": 700, "test_steps": 200},
        "reservoir": cell("held"),
        "readout": {"kind": "ridge", "washout": 30},
        "run": {"folder": str(folder / "runs"), "states": str(folder / "states"), "chunk_steps": 150},
    }
    file = folder / "experiment.yaml"
    file.write_text(json.dumps(document))
    return Experiment.from_file(file, reservoir=reservoir, environment={})


def ran(folder: Path, reservoir: str) -> Any:
    result = experiment(folder, reservoir).run()
    (row,) = result.rows
    return row.label, row.evaluation.metrics, np.load(result.folder / "outputs/000.npy").tolist()


def harvested(folder: Path, reservoir: str) -> Any:
    (store,) = experiment(folder, reservoir).harvest()
    return {name: one.states[:].tolist() for name, one in store.datasets.items()}


def evaluated(folder: Path, reservoir: str) -> Any:
    run = experiment(folder, str(folder.parent / "here.yaml")).run(report=False)
    result = evaluate(run.folder, reservoir=reservoir, refit=True)
    return result.there, result.scores, [outputs.tolist() for outputs in result.outputs.values()]


def benched(folder: Path, reservoir: str) -> Any:
    result = bench(reservoir, only=["narma10"], quick=True, folder=folder)
    return result.device, {
        name: {m: s.metrics for m, s in score.models.items()} for name, score in result.scores.items()
    }


def measured(folder: Path, reservoir: str) -> Any:
    wanted = ["memory_capacity", "drift", "kernel_rank"]
    result = measure(reservoir, only=wanted, steps=600, repeats=3, washout=40, folder=folder)
    return result.metrics["measures"]


def inferred(folder: Path, reservoir: str) -> Any:
    run = experiment(folder, str(folder.parent / "here.yaml")).run(report=False)
    bundle = export_run(run.folder, folder / "cell.rhw", offline=True).path
    u = np.random.default_rng(3).uniform(0, 0.5, (1, 900, 1))
    with EdgeRunner(bundle, reservoir) as runner:
        return runner.run(u).tolist()


def conforming(folder: Path, reservoir: str) -> Any:
    del folder
    report = conform(reservoir, groups=["continuity", "repeatability", "shapes"])
    return {one.title: one.outcome for one in report.statements}


@pytest.mark.parametrize(
    "path",
    [
        ran,
        harvested,
        evaluated,
        inferred,
        conforming,
        *(pytest.param(path, marks=pytest.mark.slow) for path in (benched, measured)),
    ],
)
def test_a_served_device_gives_what_it_gives_here(
    path: Callable[[Path, str], Any], files: tuple[str, str], tmp_path: Path
) -> None:
    found = []
    for number, reservoir in enumerate(files):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(path(folder, reservoir))
    assert found[0] == found[1]


def test_what_the_device_says_of_itself_travels(files: tuple[str, str], tmp_path: Path) -> None:
    records = []
    for number, reservoir in enumerate(files):
        (tmp_path / str(number)).mkdir()
        result = experiment(tmp_path / str(number), reservoir).run()
        records.append(json.loads((result.folder / "provenance.json").read_text())["rows"][0])
        assert result.rows[0].label.startswith("cell 4")
    here, there = records
    for key in ("settings", "calibration_id", "params", "label"):
        assert there["reservoir"][key] == here["reservoir"][key]
    assert there["reservoir"]["settings"] == {"bias_mT": 5.0, "temperature_c": 21.3}
    assert there["reservoir"]["served"]["reset"]["policy"] == here["reservoir"]["reset"]["policy"]
    assert there["label"] == here["label"]


def test_a_label_of_ones_own_stays(files: tuple[str, str]) -> None:
    address = Path(files[1]).read_text().split()[-1]
    with open_reservoir({"kind": "zmq", "address": address, "label": "far cell"}) as device:
        assert device.label == "far cell"
