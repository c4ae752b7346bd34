"""Memory of a run on a GPU: said before it starts, and chunks that fit into what is free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from reservoir_hw.backends.simulated.memory import DriveMemory
from reservoir_hw.cli import app
from reservoir_hw.core.errors import OutOfMemory
from reservoir_hw.experiment.run.trainer import fitting_steps, readout_bytes

NETWORK = {"kind": "esn", "nodes": 1000, "device": "cuda"}


def said(folder: Path, document: dict[str, Any], *options: str) -> str:
    file = folder / "file.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    found = CliRunner().invoke(app, ["check", str(file), *options])
    assert found.exit_code == 0, found.output
    return found.output


def test_check_says_what_a_run_takes_on_a_gpu(tmp_path: Path) -> None:
    experiment = {
        "task": {"kind": "narma", "train_steps": 3000, "test_steps": 1000},
        "reservoir": NETWORK,
        "readout": {"kind": "ridge"},
        "run": {"folder": str(tmp_path / "run")},
    }
    assert "A run takes about 70 MB of memory on cuda: weights 4.01 MB, a chunk of 3,000 steps of 1 sequence " in said(
        tmp_path, experiment
    )
    assert '"on_device"' in said(tmp_path, experiment, "--json")
    assert "of memory on" not in said(tmp_path, {**experiment, "reservoir": {**NETWORK, "device": "cpu"}})


def test_check_says_what_a_reservoir_file_takes_on_a_gpu(tmp_path: Path) -> None:
    assert "It takes about 4.01 MB of memory on cuda, and 15 MB for 1,000 steps of a sequence" in said(
        tmp_path, {**NETWORK, "inputs": 1}
    )
    assert "It takes about 4.01 MB" in said(tmp_path, NETWORK)
    assert "of memory on" not in said(tmp_path, {**NETWORK, "device": "cpu"})


def test_chunks_fit_into_what_is_free() -> None:
    need = DriveMemory(1000, 1)
    assert fitting_steps(need, 8, 10_000, 10**12, 1002, "cuda") == 10_000
    fitting = fitting_steps(need, 8, 10_000, 10**9, 1002, "cuda")
    assert 1 < fitting < 10_000
    assert need.bytes(8, fitting) + readout_bytes(1002) < 10**9
    with pytest.raises(OutOfMemory, match=r"8 sequences of 1 steps .* on cuda, where 0 B are free: not even one step"):
        fitting_steps(need, 8, 10_000, 10**7, 1002, "cuda")
