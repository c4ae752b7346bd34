"""What a run will take of this machine, from a piece of it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here

from reservoir_hw import Experiment
from reservoir_hw.experiment.run.speed import Rounds, peak_bytes, seconds_for_one

STATES = """\
task: {kind: narma, train_steps: 60_000}
reservoir: {kind: esn, nodes: 500, vary: {seed: [0, 1, 2]}}
readout: {kind: ridge}
run: {folder: RUNS}
"""
TEXT = """\
task: {kind: text, corpus: TEXT, validation: 0.1, test: 0.2}
reservoir: {kind: esn, nodes: 200}
readout: {kind: linear, embedding: {kind: random, width: 4}}
baselines: [{kind: gpt, width: 32, heads: 2, layers: 2}]
training:
  gradient: {steps: 300, context: 32, batch: 32, learning_rate: 1e-2, accelerator: cpu, evaluation_steps: 100}
run: {folder: RUNS, generate: {tokens: 500}}
"""
ESTIMATE = """\
import sys
from reservoir_hw import Experiment
print(Experiment.from_file(sys.argv[1]).measured_estimate(2.0).as_dict())
"""
RUN = """\
import sys, time
from reservoir_hw import Experiment
from reservoir_hw.experiment.run.speed import peak_bytes
Experiment.from_file(sys.argv[1]).run()
print({"processor_s": time.process_time(), "memory_bytes": peak_bytes()})
"""


@pytest.fixture(params=[STATES, TEXT], ids=["states", "text"])
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    (tmp_path / "text.txt").write_text("".join(np.random.default_rng(0).choice(list("abcdefgh"), 60_000)))
    path = tmp_path / "experiment.yaml"
    text = request.param.replace("TEXT", str(tmp_path / "text.txt")).replace("RUNS", str(tmp_path / "runs"))
    path.write_text(text)
    return path


def of_process(script: str, file: Path) -> dict[str, Any]:
    """What a process that has done nothing else prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, file],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ast.literal_eval(done.stdout)


@pytest.mark.slow
def test_time_and_memory_are_right_within_a_factor_of_two(file: Path) -> None:
    estimate, found = of_process(ESTIMATE, file), of_process(RUN, file)
    for name, value in found.items():
        assert value / 2 < estimate[name] < 2 * value, (name, estimate, found)


def test_the_command_says_it(tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text("task: {kind: narma}\nreservoir: {kind: esn, nodes: 20}\nreadout: {kind: ridge}\n")
    assert "of processor time and" in call_here("check", path, "--estimate").stdout
    assert "processor time" not in call_here("check", path).stdout
    shown = json.loads(call_here("check", path, "--estimate", "--json").stdout)["estimate"]
    assert shown["processor_s"] > 0
    assert shown["memory_bytes"] > 1e7


def test_no_device_is_opened() -> None:
    reservoir = {"kind": "zmq", "address": "tcp://localhost:1"}
    task = {"kind": "narma", "train_steps": 300, "test_steps": 300}
    experiment = Experiment({"task": task, "reservoir": reservoir, "readout": {"kind": "ridge"}})
    assert experiment.measured_estimate().processor_s is None


def test_the_first_round_warms_up() -> None:
    rounds = Rounds(0.2)
    for seconds in (1.0, 0.1, 0.1):
        rounds.add(10, seconds)
    assert rounds.seconds_for_one == pytest.approx(0.01)
    long = Rounds(0.2)
    long.add(10, 3.0)
    assert long.enough
    assert long.seconds_for_one == pytest.approx(0.3)

    def twice() -> Iterator[int]:
        yield 1
        yield 1

    assert seconds_for_one(twice(), 100.0) >= 0
    assert peak_bytes() > 1e7
