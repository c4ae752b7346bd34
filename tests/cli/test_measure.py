"""`reservoir-hw measure` and the function behind it: files, traces, devices."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from command_line import alone
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.cli.measure import measure as command
from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.devices.measure import measure
from reservoir_hw.experiment.states.drive import Recorder
from reservoir_hw.measures import MEASURES, Live, Recorded

FILE = """\
kind: esn
nodes: 20
nonidealities: {readout: {noise: 0.001}}
"""
FEW = ["--steps", "2000", "--washout", "50", "--repeats", "4"]

call = alone("measure", command)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "lab.yaml"
    path.write_text(FILE)
    return path


def trace(path: Path, inputs: np.ndarray, states: np.ndarray, written: int | None = None) -> Path:
    """A store with one data set; `written` steps of it if given."""
    spec = ReservoirSpec(
        inputs=inputs.shape[2],
        nodes=states.shape[2],
        identity=Identity(vendor="lab", model="film", serial="7", simulated=False),
    )
    made = StateStore.create(path, {"made_by": "import", "spec": spec.model_dump(mode="json"), "provenance": {}})
    dataset = made.add(
        "000", sequences=len(inputs), inputs=inputs.shape[2], nodes=states.shape[2], chunk_steps=100,
        steps=inputs.shape[1],
    )  # fmt: skip
    for place in dataset.regions():
        if written is None or place.stop <= written:
            at = (place.rows, slice(place.start, place.stop))
            dataset.write(place, inputs[at], states[at], timing=(0.0, 1.0))
    made.close_segment([], complete=written is None)
    return path


@pytest.mark.slow
def test_a_reservoir_file(pictures: None, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    done = call(file, *FEW)
    for title in MEASURES.values():
        assert title in done.stdout
    assert "95% interval" in done.stdout
    assert "Recall by delay" in done.stdout
    folder = next(Path("runs").iterdir())
    assert str(folder) in done.stdout
    assert {path.name for path in folder.iterdir()} == {
        "metrics.json", "measures.safetensors", "provenance.json", "figures", "report.html",
    }  # fmt: skip
    assert {path.stem for path in (folder / "figures").iterdir()} == set(MEASURES)
    found = json.loads((folder / "metrics.json").read_text())
    assert found["status"] == "complete"
    assert list(found["measures"]) == list(MEASURES)
    assert found["measures"]["consistency"]["interval"]["confidence"] == 0.95
    arrays = safetensors.numpy.load_file(folder / "measures.safetensors")
    assert arrays["memory_capacity.recall"].shape == (1, 41)
    record = json.loads((folder / "provenance.json").read_text())
    assert record["rows"][0]["reservoir"]["identity"]["model"] == "esn"
    assert record["measure"]["steps"] == 2000
    assert record["configuration"]["reservoir"]["nodes"] == 20
    page = (folder / "report.html").read_text()
    assert "simulation: reservoir_hw esn" in page
    assert "data:image/png;base64," in page


def test_some_measures_of_an_experiment_as_json(file: Path) -> None:
    task = "task: {kind: narma}\nreservoir: {kind: delay_loop, nodes: 10}\nreadout: {kind: ridge}\n"
    (file.parent / "experiment.yaml").write_text(task)
    arguments = ["experiment.yaml", "--reservoir", file, "--set", "reservoir.nodes=5", "--folder", "here", *FEW]
    arguments += ["--only", "drift", "--only", "lyapunov_exponent", "--json"]
    found, again = (json.loads(call(*arguments).stdout) for _ in range(2))
    assert list(found["measures"]) == ["lyapunov_exponent", "drift"]
    assert found["folder"].startswith("here")
    assert again["measures"] == found["measures"]


@pytest.mark.slow
def test_a_trace_says_what_it_cannot_tell(pictures: None, file: Path) -> None:
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, (1, 1000, 1))
    x = np.concatenate([u, np.roll(u, 1, axis=1)], axis=2)
    assert "has no repeated drives" in call(trace(file.parent / "film", u, x, written=900), "--max-delay", "10").stdout
    found = json.loads(next(Path("runs").glob("*/metrics.json")).read_text())
    assert found["measures"]["memory_capacity"]["value"] == pytest.approx(2, rel=1e-3)
    assert set(found["not_measured"]) == {
        "kernel_rank", "generalisation_rank", "consistency", "echo_state_index", "lyapunov_exponent",
        "signal_to_noise",
    }  # fmt: skip
    assert "hardware: lab film 7" in next(Path("runs").glob("*/report.html")).read_text()


def test_a_recording_of_the_drives_is_measured_as_they_were(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 2000, "washout": 50, "repeats": 5}
    names = ["memory_capacity", "consistency", "signal_to_noise", "effective_dimension", "drift"]
    noisy = {"kind": "esn", "nodes": 10, "nonidealities": {"readout": {"noise": 0.01}}}
    with open_reservoir(noisy, inputs=1) as esn, Recorder(esn, tmp_path / "trace"):
        live = Live(esn, **settings)
        expected = {name: getattr(live, name)() for name in names}
    found = measure(tmp_path / "trace", only=names, washout=50, folder=tmp_path)
    assert found.reasons == {}
    for name, result in expected.items():
        assert found.measured[name].value == pytest.approx(result.value, rel=1e-6), name


def test_an_open_device_and_arrays(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with Toy() as device:
        found = measure(
            device, only=["lyapunov_exponent"], steps=500, washout=20, folder=tmp_path,
            progress=lambda *at: seen.append(at),
        )  # fmt: skip
        assert device.is_open
    assert found.measured["lyapunov_exponent"].value == pytest.approx(math.log(0.5), abs=1e-3)
    assert seen[-1][1] == seen[-1][2]
    assert found.provenance["rows"][0]["reservoir"]["identity"]["model"] == "toy"
    rng = np.random.default_rng(1)
    u = rng.uniform(-1, 1, (500, 1))
    found = measure(Recorded((u, np.tanh(u + 0.5))), folder=tmp_path)
    assert found.measured["memory_capacity"].value == pytest.approx(0.96, abs=0.05)
    assert found.status == "complete"


def test_a_fault_keeps_what_was_finished(tmp_path: Path) -> None:
    class Failing(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            if len(self.driven) > 3:
                raise DeviceFault("the cable is out")
            return super()._run(u, out)

    with Failing(step_period_s=1e-6) as device, pytest.raises(DeviceFault, match="cable"):
        measure(device, steps=500, washout=20, repeats=10, folder=tmp_path)
    found = json.loads(next(tmp_path.glob("*/metrics.json")).read_text())
    assert found["status"] == "failed"
    assert "the cable is out" in found["problem"]
    assert "memory_capacity" in found["measures"]
    assert "drift" not in found["measures"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lab.yaml", "--only", "foo"], "there is no measure 'foo'; there are: memory_capacity"),
        (["nowhere.yaml"], "there is no such file"),
        (["lab.yaml", "--set", "nodez=3"], "did you mean 'nodes'"),
        (["lab.yaml", "--washout", "1"], "washout is 1"),
        (["lab.yaml", "--input-range", "1", "0"], "input_range"),
        (["runs"], "not a store of states"),
    ],
)
def test_mistakes_exit_2_with_one_message(file: Path, arguments: list[str], message: str) -> None:
    (file.parent / "runs").mkdir()
    assert message in call(*arguments, code=2).stderr
    assert not list((file.parent / "runs").iterdir())


@pytest.mark.parametrize("channels", [1, 2])
def test_a_replay_is_no_device(file: Path, channels: int) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 1000, channels))
    trace(file.parent / "film", u, np.concatenate([u, u**2], axis=2))
    (file.parent / "replay.yaml").write_text("kind: replay\ntrace: film\n")
    task = "task: {kind: narma}\nreservoir: {kind: replay, trace: film}\nreadout: {kind: ridge}\n"
    (file.parent / "experiment.yaml").write_text(task)
    for arguments in (["replay.yaml"], ["experiment.yaml"], ["experiment.yaml", "--reservoir", "replay.yaml"]):
        done = call(*arguments, code=2)
        assert "Measure the trace itself: reservoir-hw measure film" in done.stderr
        assert done.stderr.count("error") == 1
        assert not done.stdout
    assert not Path("runs").exists()
    call("film")


def test_nothing_measured_is_an_error(file: Path) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 1000, 1))
    trace(file.parent / "film", u, u)
    done = call("film", "--only", "consistency", "--only", "signal_to_noise", "--json", code=2)
    assert done.stderr.count("no repeated drives") == 1
    assert not done.stdout
    done = call("film", "--only", "consistency", "--only", "generalisation_rank", code=2)
    for said in ("nothing could be measured of film", "consistency: ", "generalisation rank: "):
        assert said in done.stderr
    assert {json.loads(path.read_text())["status"] for path in Path("runs").glob("*/metrics.json")} == {"failed"}
    call("film", "--only", "consistency", "--only", "drift")


def test_lost_inputs_are_no_shorter_recording(tmp_path: Path) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 300, 1))
    path = trace(tmp_path / "t", u, np.repeat(u, 2, axis=2))
    (path / "000/inputs/c/0/1/0").unlink()
    done = call(path, code=2)
    assert "inputs of 000, steps 100 to 199 of sequence 0: they were written" in " ".join(done.output.split())


def test_a_trace_cannot_be_configured(tmp_path: Path) -> None:
    path = trace(tmp_path / "trace", np.ones((1, 200, 1)), np.ones((1, 200, 1)), written=0)
    with pytest.raises(ConfigurationError, match="nothing to set"):
        measure(path, set={"nodes": 3}, folder=tmp_path)
    with pytest.raises(ConfigurationError, match="holds no states yet"):
        measure(path, folder=tmp_path)
