"""Several processes that run one experiment: under torchrun, and under srun."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from edge_runs import write_text

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.run.processes import take_up_slurm

RUN = ["-m", "reservoir_hw.cli", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

FILE = """\
task: {kind: text, corpus: TEXT, validation: 0.1, test: 0.1}
reservoir: {kind: esn, nodes: 12}
readout: {kind: esn_lm, nodes: 12, connections: 4, rank: 4}
training:
  gradient: {steps: 40, context: 8, batch: 16, learning_rate: 1e-2, accelerator: cpu, checkpoint_steps: 5}
run: {folder: RUNS, generate: {tokens: 20}}
"""
SEVERAL = """\
baselines: [bigram, {kind: gpt, width: 8, heads: 2, layers: 1}]
vary:
  - {training.gradient.seed: 0}
  - {readout: {kind: laerc, width: 4, layers: 2}}
  - {readout: {kind: linear, embedding: {kind: random, width: 4}}}
  - {readout: {kind: attention, hidden: 4, embedding: {kind: random, width: 4}}, training.gradient.keep_states: true}
"""
SCRIPTS = Path(__file__).parents[3] / "examples" / "scale"
# As many tasks as SLURM_NTASKS says, each with SLURM's variables. The real one ends the others if one fails.
SRUN = """\
#!{python}
import os, subprocess, sys
command = sys.argv[2:]  # behind --kill-on-bad-exit=1
count = int(os.environ["SLURM_NTASKS"])
slurm = {{"SLURM_STEP_NUM_TASKS": count, "SLURM_STEP_NUM_NODES": 1, "SLURM_STEP_NODELIST": "here", "SLURM_STEP_ID": 0}}
tasks = [
    subprocess.Popen(command, env={{**os.environ, **{{name: str(value) for name, value in
        {{**slurm, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": 0}}.items()}}}})
    for rank in range(count)
]
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_text(tmp_path)
    return written(tmp_path, FILE)


def written(folder: Path, text: str) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(text.replace("TEXT", str(folder / "text.txt")).replace("RUNS", str(folder / "runs")))
    return path


def started(*command: Any, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200", **environment},
    )


def done(*command: Any, **environment: str) -> tuple[str, str]:
    with started(*command, **environment) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output, errors


def only_folder(file: Path) -> Path:
    (folder,) = (file.parent / "runs").iterdir()
    return folder


def metrics(folder: Path) -> dict[str, dict[str, float]]:
    found = json.loads((folder / "metrics.json").read_text())
    assert found["status"] == "complete"
    return {row["label"]: row["metrics"] for row in found["rows"]}


def alone(file: Path, **settings: Any) -> dict[str, dict[str, float]]:
    """What one process finds."""
    changes = {"run.folder": str(file.parent / "alone"), **settings}
    return metrics(Experiment.from_file(file, set=changes, environment={}).run(report=False).folder)


def check_equal(found: dict[str, dict[str, float]], wanted: dict[str, dict[str, float]]) -> None:
    assert list(found) == list(wanted)
    for label, row in wanted.items():
        assert found[label] == pytest.approx(row, rel=0, abs=1e-6), label


@pytest.mark.slow
def test_two_processes_of_torchrun_are_one(file: Path) -> None:
    """Models on tokens and on precomputed states, and baselines."""
    written(file.parent, FILE + SEVERAL)
    output, errors = done(*TORCHRUN, *RUN, file)
    assert output.count("Results are in") == 1
    assert errors.count("runs, ") == 1
    folder = only_folder(file)
    assert (folder / "report.html").exists()
    check_equal(metrics(folder), alone(file))
    for number in ("000", "001", "002", "003"):
        assert json.loads((folder / f"training/{number}/training.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_one_of_two_is_killed_and_they_go_on(file: Path) -> None:
    steps = {"training.gradient.steps": 150}
    more = ["--set", "training.gradient.steps=150"]
    with started(*TORCHRUN, *RUN, file, *more) as process:
        deadline = time.monotonic() + 60
        while not list((file.parent / "runs").glob("*/training/000/checkpoint.safetensors")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        second = max(_workers(process.pid))
        os.kill(second, signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode != 0
    folder = only_folder(file)
    assert json.loads((folder / "metrics.json").read_text())["status"] in ("failed", "interrupted")
    resumed = [file, *more, "--set", f"run.resume={folder}"]
    done("bash", SCRIPTS / "torchrun.sbatch", *resumed, **slurm(file.parent, SLURM_NTASKS=1, SLURM_CPUS_PER_TASK=2))
    check_equal(metrics(only_folder(file)), alone(file, **steps))


@pytest.mark.slow
def test_two_tasks_of_srun_are_one_job(file: Path) -> None:
    output, _ = done("bash", SCRIPTS / "train.sbatch", file, **slurm(file.parent, SLURM_NTASKS=2))
    assert output.count("Results are in") == 1
    folder = only_folder(file)
    assert json.loads((folder / "training/000/training.json").read_text())["processes"] == 2
    check_equal(metrics(folder), alone(file))


def test_tasks_of_several_machines_know_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = {"SLURM_NTASKS": 4, "SLURM_NNODES": 2, "SLURM_PROCID": 3, "SLURM_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": 9}
    monkeypatch.setattr(os, "environ", {name: str(value) for name, value in slurm.items()})
    take_up_slurm()
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")}
    assert list(found.values()) == ["3", "4", "1", "2", "gpu07"]
    monkeypatch.setattr(os, "environ", {"SLURM_NTASKS": "3", "SLURM_NNODES": "2", "SLURM_PROCID": "0"})
    with pytest.raises(ConfigurationError, match="3 tasks on 2 machines: take as many tasks on each"):
        take_up_slurm()


@pytest.mark.slow
def test_what_cannot_be_shared_is_refused_once(file: Path) -> None:
    written(file.parent, "task: {kind: narma}\nreservoir: {kind: esn, nodes: 20}\nreadout: {kind: ridge}\n")
    with started("bash", SCRIPTS / "train.sbatch", file, **slurm(file.parent, SLURM_NTASKS=2)) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert errors.count("error: ") == 1
    assert "2 processes cannot share the training of readout ridge" in errors
    assert not (file.parent / "runs").exists()


def slurm(folder: Path, **variables: int) -> dict[str, str]:
    """The environment of an sbatch script on one machine, with an srun and an scontrol."""
    programs = {"srun": SRUN.format(python=sys.executable), "scontrol": "#!/bin/sh\necho localhost\n"}
    for name, text in programs.items():
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    search = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    job = {"SLURM_JOB_ID": os.getpid(), "SLURM_JOB_NUM_NODES": 1, "SLURM_JOB_NODELIST": "here", "MASTER_PORT": port}
    return {"PATH": search, **{name: str(value) for name, value in {**job, **variables}.items()}}


def _workers(parent: int) -> list[int]:
    """The children of a process."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
