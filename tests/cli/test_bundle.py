"""`reservoir-hw bundle` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import alone, ended
from edge_bundles import Case, case, weights
from safetensors.numpy import save

from reservoir_hw.cli import bundle
from reservoir_hw.readout.edge.bundle import write_bundle
from reservoir_hw.readout.edge.manifest import WEIGHTS

_call = alone("bundle", bundle.app)


def call(*arguments: object, code: int = 0) -> str:
    return _call(*arguments, code=code).output


def _write(path: Path, made: Case) -> Path:
    write_bundle(path, made.facts, made.files)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return _write(tmp_path / "model.rhw", case())


def test_info(model: Path) -> None:
    said = call("info", model)
    for expected in ("ReservoirLM, fp32, segments", "63, 252 B", "tokenizer.json", "lab film", "hardware", "0" * 12):
        assert expected in said
    about = json.loads(call("info", model, "--json"))
    assert about["parameters"] == 7 * 3 + 5 * 7 + 7
    assert [segment["parameters"] for segment in about["segments"]] == [21, 42]
    assert [segment["bytes"] for segment in about["segments"]] == [84, 168]
    assert about["slots"][0]["fingerprint"] == "0" * 64


def test_info_does_not_obey_a_foreign_bundle(tmp_path: Path) -> None:
    made = case()
    made.facts["slots"][0]["identity"]["vendor"] = "\x1b]0;evil\x07"
    said = call("info", _write(tmp_path / "evil", made))
    assert "evil" in said
    assert "\x1b" not in said


def test_verify(model: Path, tmp_path: Path) -> None:
    said = call("verify", model)
    assert "NO" not in said
    assert "Golden outputs" in said
    found = json.loads(call("verify", model, "--json"))
    assert found["passed"] is True
    assert len(found["segments"]) == 2
    wrong = case()
    golden = {
        "segment_0/tokens": np.zeros((1, 1), np.int64),
        "segment_0/drive_0": np.full((1, 1, 3), 9, np.float32),
        "segment_1/states_0": np.zeros((1, 1, 5), np.float32),
        "segment_1/outputs": weights()["bias"][None, None],
        "spread/drive_0": np.ones(1),
        "spread/outputs": np.ones(1),
    }
    wrong.files["golden.safetensors"] = save(golden)
    said = call("verify", _write(tmp_path / "wrong.rhw", wrong), code=1)
    assert "outputs differ from the golden ones in segment 0\n" in said


def test_diff(model: Path, tmp_path: Path) -> None:
    assert "identical" in call("diff", model, model)
    other = case(fingerprint="1" * 64)
    arrays = weights()
    arrays["bias"][0] += 1
    other.files[WEIGHTS] = save(arrays)
    said = call("diff", model, _write(tmp_path / "other", other), code=1)
    assert "1 reservoirs, 1 files, 1 weights" in said
    assert "2 weights are the same." in said
    assert "bias" in said
    found = json.loads(call("diff", model, tmp_path / "other", "--json", code=1))
    assert found["identical"] is False
    assert found["weights"][0]["largest"] == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("command", ["info", "verify", "diff"])
def test_what_is_no_bundle(model: Path, tmp_path: Path, command: str) -> None:
    damaged = bytearray(model.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.rhw").write_bytes(damaged)
    for path, why in (("nowhere", "there is nothing at this path"), ("damaged.rhw", "it is damaged")):
        both = [tmp_path / path] * (2 if command == "diff" else 1)
        said = call(command, *both, code=2)
        assert said.startswith(f"error: bundle {tmp_path / path}: ")
        assert why in said


@pytest.mark.slow
def test_the_program_knows_the_command(model: Path) -> None:
    done = ended("bundle", "verify", model)
    assert done.returncode == 0, done.stderr
