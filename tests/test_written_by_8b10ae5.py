"""Files that the code of commit 8b10ae5 wrote (written_by_8b10ae5/make.py): this code reads them."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

from reservoir_hw import Experiment, Result, RidgeReadout, open_reservoir
from reservoir_hw.cli import app
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import parse_reservoir
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.harvest import store_path
from reservoir_hw.experiment.sweeps.sweep import sweep
from reservoir_hw.readout import LMSReadout, RLSReadout
from reservoir_hw.readout.edge import Bundle, EdgeRunner

KEPT = Path(__file__).parent / "written_by_8b10ae5"
EXPECTED = json.loads((KEPT / "expected.json").read_text())
FINGERPRINTS = json.loads((KEPT / "fingerprints.json").read_text())
STATES = EXPECTED["states"]


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the folder, in which the test runs; the lab's own module is found there alone."""
    place = shutil.copytree(KEPT, tmp_path / "lab")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield place
    torch.set_num_threads(threads)
    sys.modules.pop("film_on_the_bench", None)


def run(file: str, **settings: Any) -> Result:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return Experiment.from_file(file, set=changes, environment={}).run(report=False)


def agree(result: Result, file: str) -> None:
    """Every number of every row is the one that was written."""
    rows, expected = [row.evaluation.metrics for row in result.rows], EXPECTED["metrics"][file]
    assert len(rows) == len(expected)
    for row, old in zip(rows, expected, strict=True):
        assert dict(row) == pytest.approx(old, rel=1e-4, abs=1e-6)


def call(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("store", STATES)
def test_the_states_of_an_old_store_are_read_bit_for_bit(store: str) -> None:
    found = {
        name: hashlib.sha256(np.ascontiguousarray(dataset.states[:]).tobytes()).hexdigest()
        for name, dataset in StateStore.open(store).datasets.items()
    }
    assert found == STATES[store]


@pytest.mark.parametrize("kind", ["esn", "film", "loop"])
def test_an_old_harvest_is_found_and_the_device_is_not_driven(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def driven(*_: object, **__: object) -> None:
        raise AssertionError("a device was opened")

    monkeypatch.setattr("reservoir_hw.core.reservoir.Reservoir.open", driven)
    before = contents("harvests")
    result = run(f"{kind}.yaml")
    agree(result, f"{kind}.yaml")
    assert any("states were read from harvests/" in note for note in result.notes)
    assert contents("harvests") == before


def test_an_old_recording_is_replayed() -> None:
    agree(run("replayed.yaml"), "replayed.yaml")
    assert EXPECTED["metrics"]["replayed.yaml"] == EXPECTED["metrics"]["recorded.yaml"]


@pytest.mark.parametrize("file", ["recorded.yaml", "ridge.yaml"])
def test_an_old_experiment_file_gives_the_same_numbers(file: str) -> None:
    agree(run(file, run__record=None), file)


def test_the_experiment_file_of_an_old_run_folder_runs_again() -> None:
    agree(run("kept/ridge/experiment.yaml"), "ridge.yaml")


def test_an_old_run_of_a_language_model_is_gone_on_with_and_not_trained_again() -> None:
    log, checkpoint = (Path("kept/text/training/000", name) for name in ("log.csv", "checkpoint.safetensors"))
    before = log.read_bytes(), checkpoint.read_bytes(), checkpoint.stat().st_mtime_ns
    weights = load_file("kept/text/readout/000.safetensors")
    result = run("text.yaml", run__resume="kept/text")
    agree(result, "text.yaml")
    assert result.folder == Path("kept/text")
    assert (checkpoint.read_bytes(), checkpoint.stat().st_mtime_ns) == before[1:]
    # The log has two columns more today.
    assert [line.rsplit(b",", 2)[0] for line in log.read_bytes().splitlines()] == before[0].splitlines()
    again = load_file("kept/text/readout/000.safetensors")
    assert again.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(again[name], values)


def test_an_old_bundle_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has version 1 of the format, and this reservoir-hw reads version 4"):
        Bundle.open("bundles/ridge.rhw")


@pytest.mark.parametrize(("folder", "inputs", "options"), [("ridge", "series", ["--row", "0"]), ("text", "tokens", [])])
def test_an_old_run_folder_is_exported_again(folder: str, inputs: str, options: list[str]) -> None:
    call("export", f"kept/{folder}", *options, "-o", "again.rhw")
    with EdgeRunner("again.rhw", f"{folder}.yaml") as runner:
        outputs = runner.run(np.load(f"{inputs}.npy"))
    np.testing.assert_allclose(outputs, EXPECTED["outputs"][f"{folder}.yaml"], rtol=1e-5, atol=1e-5)
    kept = json.loads(Path(f"kept/{folder}/provenance.json").read_text())["rows"][0]["reservoir"]["identity"]
    with Bundle.open("again.rhw") as bundle:
        (slot,) = bundle.manifest.slots
    assert slot.identity.items() <= kept.items()


def test_an_old_key_of_an_old_run_folder_is_told_once_and_the_new_name_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Path("kept/ridge")
    for name, old, new in [
        ("experiment.yaml", "readout.alpha:\n  - 0.0001\n  - 0.01", "training.settle_passes:\n  - 0\n  - 1"),
        ("provenance.json", "ESN(8) alpha=", "ESN(8) settle_passes="),
    ]:
        before = (kept / name).read_text()
        assert old in before
        (kept / name).write_text(before.replace(old, new))
    done = CliRunner().invoke(app, ["export", str(kept)])
    assert "0  ESN(8) priming_passes=0 (priming_passes 0)\n" in done.output
    assert "settle_passes" not in done.output
    file = kept / "experiment.yaml"
    assert [one for one in caplog.messages if "settle_passes" in one] == [
        f"{file}:76 and {file}:95: training.settle_passes is called training.priming_passes now"
    ]


@pytest.mark.parametrize(("name", "kind"), [("ridge", RidgeReadout), ("rls", RLSReadout), ("lms", LMSReadout)])
def test_an_old_readout_predicts_and_learns_on_as_it_did(name: str, kind: Any) -> None:
    with np.load("readouts/answers.npz") as file:
        answers = dict(file)
    readout = kind.load(f"readouts/{name}.safetensors")
    np.testing.assert_allclose(readout.predict(answers["states"]), answers[name], rtol=1e-10, atol=1e-12)
    if name != "ridge":
        followed = readout.predict_then_update(answers["states"], answers["targets"])
        np.testing.assert_allclose(followed, answers[f"{name} follows"], rtol=1e-9, atol=1e-11)


def test_an_old_sweep_shows_its_trials_and_goes_on() -> None:
    # What is searched of the reservoir stands in its section now. The study is the same one.
    text, radius = Path("sweep.yaml").read_text(), "spectral_radius: {low: 0.1, high: 1.2}"
    moved = text.replace(f"    reservoir.{radius}\n", "").replace("nodes: 8}", f"nodes: 8, search: {{{radius}}}}}")
    Path("sweep.yaml").write_text(moved)
    result = sweep("sweep.yaml", trials=4)
    assert len(result.trials) == 4
    old = EXPECTED["metrics"]["sweep.yaml"]
    assert len(old) == 3
    for trial, was in zip(result.trials, old, strict=False):
        assert (trial.number, dict(trial.values), trial.objective) == (was["number"], was["values"], was["objective"])
    assert result.trials[3].status == "complete"


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_a_device_has_the_fingerprint_that_it_had(name: str) -> None:
    known = FINGERPRINTS[name]
    if "layers" not in known:
        with open_reservoir(known["config"], inputs=known["inputs"]) as reservoir:
            identity = reservoir.spec.identity
        if "calibration_id" in known["config"]:
            # It was part of the fingerprint; what was recorded with any calibration is still known.
            recorded = f"{known['config']['call']} {known['config']['calibration_id']}"
            with open_reservoir({**known["config"], "calibration_id": "another"}, inputs=known["inputs"]) as reservoir:
                later = reservoir.spec.identity
            assert identity.fingerprint == later.fingerprint != known["fingerprint"]
            assert identity.matches(known["fingerprint"])
            assert not later.matches(known["fingerprint"])
            assert later.matches(known["fingerprint"], recorded)
            assert not later.matches(known["fingerprint"], f"{recorded}s")
        else:
            assert identity.fingerprint == known["fingerprint"]
        return
    config: Any = parse_reservoir(Document.from_mapping(known["config"], name))
    found = []
    for part in config.configurations(4, len(known["layers"])):
        with open_reservoir(part) as reservoir:
            found.append(reservoir.spec.identity.fingerprint)
    assert found == known["layers"]


def test_an_old_harvest_keeps_its_name_with_another_calibration() -> None:
    (point,) = Experiment.from_file("film.yaml", set={"reservoir.calibration_id": "autumn"}, environment={}).points
    (old,) = Path("harvests").glob("python-*")
    assert store_path(point, point.config.task.build()) == str(old)


def test_an_old_harvest_goes_on_on_the_device_of_another_calibration() -> None:
    """Opened for writing, the store asks whether this is the device that began it."""
    experiment = Experiment.from_file("film.yaml", set={"reservoir.calibration_id": "autumn"}, environment={})
    (store,) = experiment.harvest()
    assert store.complete
    assert [Path(store.path)] == list(Path("harvests").glob("python-*"))


def test_of_several_old_harvests_that_of_this_calibration_is_taken() -> None:
    """The old version began one for each calibration: else a complete one is taken, and never one that comes first."""

    def chosen(calibration: str) -> str:
        (point,) = Experiment.from_file(
            "film.yaml", set={"reservoir.calibration_id": calibration}, environment={}
        ).points
        return Path(store_path(point, point.config.task.build())).name

    (old,) = Path("harvests").glob("python-*")
    for name, calibration in (("python-0", "winter"), ("python-1", "summer")):
        shutil.copytree(old, f"harvests/{name}")
        facts = Path("harvests", name, "zarr.json")
        text = facts.read_text()
        assert "spring" in text
        facts.write_text(text.replace("spring", calibration))
    # Winter's was never finished.
    journal = Path("harvests/python-0/journal/zarr.json")
    facts = json.loads(journal.read_text())
    facts["attributes"]["complete"] = False
    journal.write_text(json.dumps(facts))
    assert chosen("winter") == "python-0"
    assert chosen("summer") == "python-1"
    assert chosen("spring") == old.name
    assert chosen("autumn") in {"python-1", old.name}


def test_of_several_harvests_of_parallel_devices_that_of_these_calibrations_is_taken() -> None:
    film = Document.from_file("film.yaml").data["reservoir"]

    def experiment(calibration: str) -> Experiment:
        devices = [{"reservoir": {**film, "calibration_id": calibration}}]
        Path("parallel.json").write_text(json.dumps({"kind": "parallel", "devices": devices}))
        return Experiment.from_file("film.yaml", reservoir="parallel.json", environment={})

    (store,) = experiment("spring").harvest()
    # As the old version named them: one for each calibration, and none as today.
    autumn = Path("harvests/parallel-autumn")
    shutil.copytree(store.path, autumn)
    Path(store.path).rename("harvests/parallel-spring")
    facts = autumn / "zarr.json"
    facts.write_text(facts.read_text().replace("spring", "autumn"))
    for name in ("spring", "autumn"):
        (point,) = experiment(name).points
        assert store_path(point, point.config.task.build()) == f"harvests/parallel-{name}"
