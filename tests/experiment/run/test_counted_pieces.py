"""Counters of a training that was killed and gone on with are those of all its processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from command_line import ended

from reservoir_hw import Experiment

TESTS = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_training_that_was_killed_counts_what_all_its_processes_drove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(np.random.default_rng(0).choice(list("abcd"), 700)))
    settings = {
        "task": {"kind": "text", "corpus": "text.txt", "validation": 0.1, "test": 0.1},
        "reservoir": {
            "kind": "python", "call": "chemical_cell:until_the_power_fails", "reset_call": "chemical_cell:to_rest",
            "nodes": 3, "inputs": 1, "continuity": "held", "simulated": False, "input_range": [-1, 1],
            "dtype": "float32",
        },
        "readout": {"kind": "laerc", "width": 4, "layers": 1},
        "training": {
            "gradient": {
                "epochs": 2, "context": 8, "batch": 16, "learning_rate": 0.01, "accelerator": "cpu",
                "checkpoint_steps": 2, "log_steps": 1,
            }
        },
        "run": {"folder": "runs"},
    }  # fmt: skip
    file = Path("experiment.yaml")
    file.write_text(json.dumps(settings))
    total = Experiment.from_file(file, environment={}).estimate().device_steps
    environment = {**os.environ, "POWER_FAILS_AT": str(total // 2), "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    killed = ended("run", file, env=environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = sum(map(int, Path("driven.txt").read_text().split()))
    (folder,) = Path("runs").iterdir()
    done = Experiment.from_file(file, set={"run.resume": str(folder)}, environment={}).run(report=False)
    driven = sum(map(int, Path("driven.txt").read_text().split()))
    record = done.provenance["rows"][0]["reservoir"]
    first, second = record["pieces"]
    assert first["noted"] >= first["started"]
    # What was driven between the last row of the log and the end is known to nobody else.
    step = 16 * 8
    assert before - 2 * step <= first["counters"]["steps"] <= before
    assert second["counters"]["steps"] == driven - before
    assert record["counters"]["steps"] == first["counters"]["steps"] + second["counters"]["steps"]
