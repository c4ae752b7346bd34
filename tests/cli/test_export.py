"""`reservoir-hw export`: what a user types, sees and gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import called as call
from edge_runs import NARMA, run_of

from reservoir_hw.readout.edge import Bundle


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("narma"), NARMA)


def test_a_bundle_and_what_to_type_next(run: Path, tmp_path: Path) -> None:
    done = call("export", run, cwd=tmp_path)
    assert "RidgeReadout, fp32" in done.stdout
    assert "ESN(40) is in model.rhw" in done.stdout
    assert done.stdout.endswith(f"Now: reservoir-hw infer model.rhw --reservoir {run}/experiment.yaml\n")
    assert "reads a series from standard input, a step in a line, or from --input FILE" in done.stderr
    with Bundle.open(tmp_path / "model.rhw") as bundle:
        assert bundle.manifest.provenance["run"]["task"] == "narma"
    assert "there already" in call("export", run, cwd=tmp_path, code=2).stderr
    call("export", run, "--force", cwd=tmp_path)


def test_int8_for_machines(run: Path, tmp_path: Path) -> None:
    small = ("export", run, "-o", "small", "--precision", "int8", "--json")
    refused = call(*small, cwd=tmp_path, code=2).stderr
    assert "error: int8 changes an output by a root mean square of" in refused
    assert "--accept-loss (accept_loss) writes it all the same. Nothing was written" in refused
    assert not (tmp_path / "small").exists()
    said = json.loads(call(*small, "--accept-loss", cwd=tmp_path).stdout)
    assert said["loss"]["accepted"] is True
    assert said["loss"]["error"] > 0.1
    assert said["parameters"] == [42]
    assert said["metrics"]["nrmse"]["after"] > said["metrics"]["nrmse"]["before"]
    assert said["certificate"]["segments"][0]["limit"] is None
    assert (tmp_path / "small/manifest.json").is_file()


def test_a_header(run: Path, tmp_path: Path) -> None:
    done = call("export", run, "--target", "c", cwd=tmp_path)
    assert 'Now: #include "model.h"' in done.stdout
    assert "model_predict" in (tmp_path / "model.h").read_text()


def test_offline_says_so(run: Path, tmp_path: Path) -> None:
    assert "No device was opened" in call("export", run, "--offline", cwd=tmp_path).stderr


def test_refusals_are_one_sentence(run: Path, tmp_path: Path) -> None:
    assert "is not the folder of a run" in call("export", tmp_path, cwd=tmp_path, code=2).stderr
    (tmp_path / "other.yaml").write_text("kind: esn\nnodes: 40\nseed: 5\n")
    said = call("export", run, "--reservoir", "other.yaml", cwd=tmp_path, code=2).stderr
    assert "was trained on" in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "model.rhw").exists()
