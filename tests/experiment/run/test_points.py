"""Points of `vary` that are run apart: one by one and merged, and on the workers of a Dask scheduler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here, started

import reservoir_hw
from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.deploy.trained import trained_row
from reservoir_hw.experiment.run.on_workers import run_on

FILE = """\
task: {kind: narma, washout_steps: 20, train_steps: 200, test_steps: 100}
reservoir: {kind: esn, nodes: 10, vary: {nodes: [10, 15]}}
readout: {kind: ridge, washout: 20}
baselines: [{kind: fir, taps: 2}]
vary: {task.seed: [0, 1]}
run: {folder: RUNS}
"""
TEXT = """\
task: {kind: text, corpus: TEXT, validation: 0.1, test: 0.1}
reservoir: {kind: esn, nodes: 12}
readout: {kind: linear, embedding: {kind: random, width: 4}}
baselines: [bigram, {kind: gpt, width: 8, heads: 2, layers: 1}]
training:
  gradient: {steps: 20, context: 8, batch: 16, learning_rate: 1e-2, accelerator: cpu}
vary: {readout.seed: [0, 1]}
run: {folder: RUNS, generate: {tokens: 20}}
"""


def written(folder: Path, text: str) -> Path:
    (folder / "text.txt").write_text("".join(np.random.default_rng(0).choice(list("abcde"), 2000)))
    path = folder / "experiment.yaml"
    path.write_text(text.replace("TEXT", str(folder / "text.txt")).replace("RUNS", str(folder / "runs")))
    return path


def experiment(file: Path, settings: dict[str, Any] | None = None) -> Experiment:
    return Experiment.from_file(file, set=settings or {}, environment={})


def found(result: Any) -> list[dict[str, Any]]:
    """What was found, without what it took."""
    return [{name: row[name] for name in ("label", "point", "metrics")} for row in result.metrics["rows"]]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "points"), [(FILE, 4), (TEXT, 2)], ids=["states", "text"])
def test_points_that_were_run_apart_make_the_result_of_one_process(tmp_path: Path, text: str, points: int) -> None:
    file = written(tmp_path, text)
    folders = [experiment(file, {"run.point": number}).run(report=False).folder for number in range(points)]
    assert trained_row(folders[1]).point.number == 1
    whole = experiment(file).run(report=False)
    answer = call_here("run", file, "--merge", *reversed(folders))
    assert answer.returncode == 0, answer.stderr
    merged = Path(answer.stdout.split("Results are in ")[1].strip())
    assert json.loads((merged / "metrics.json").read_text())["status"] == "complete"
    result = experiment(file).merge(folders)
    assert found(result) == found(whole)
    assert [table.rows for table in result.tables()] == [table.rows for table in whole.tables()]
    assert set(result.figures()) == set(whole.figures())
    # The weights of each row are there, under the name that its record says.
    assert trained_row(merged, points - 1).record["readout"]["file"] == f"readout/{points - 1:03d}.safetensors"
    assert (merged / f"readout/{points - 1:03d}.safetensors").exists()
    if text is FILE:
        np.testing.assert_array_equal(result.outputs(1), whole.outputs(1))


@pytest.mark.slow
def test_an_array_of_jobs(tmp_path: Path) -> None:
    """Each job of the array runs a point; afterwards they are merged."""
    file = written(tmp_path, FILE.replace("vary: {task.seed: [0, 1]}\n", ""))
    script = Path(reservoir_hw.__file__).parents[1] / "examples" / "scale" / "points.sbatch"
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": search, "PYTHONPATH": str(Path(reservoir_hw.__file__).parents[1])}
    for number in range(2):
        job = {**environment, "SLURM_ARRAY_TASK_ID": str(number)}
        subprocess.run(["bash", script, file], cwd=tmp_path, env=job, check=True, capture_output=True)
    folders = sorted((tmp_path / "runs" / "points").iterdir())
    assert found(experiment(file).merge(folders)) == found(experiment(file).run(report=False))


@pytest.mark.slow
def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, FILE.replace("vary: {task.seed: [0, 1]}\n", ""))
    first, again = (experiment(file, {"run.point": 0}).run(report=False).folder for _ in range(2))
    second = experiment(file, {"run.point": 1}).run(report=False).folder
    other = experiment(file, {"run.point": 1, "readout.washout": 10}).run(report=False).folder
    whole = experiment(file).run(report=False).folder
    merge = experiment(file).merge
    for folders, message in (
        ([first], "of 2 points these are missing: 1; run them with --set run.point=K"),
        ([first, second, again], "point 0 is there twice"),
        ([first, other], r"is of another experiment: readout.washout was 10, here it is 20"),
        ([whole], "is no run of a single point"),
        ([tmp_path], "is not the folder of a run"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            merge(folders)
    metrics = json.loads((second / "metrics.json").read_text())
    (second / "metrics.json").write_text(json.dumps({**metrics, "status": "interrupted"}))
    with pytest.raises(ConfigurationError, match="is interrupted: point 1 has to be run again"):
        merge([first, second])
    with pytest.raises(ConfigurationError, match=r"run.point is 2, but there are 2 points, 0 to 1"):
        experiment(file, {"run.point": 2})
    assert "belong together" in call_here("run", file, "--merge").stderr


@contextmanager
def scheduler(folder: Path, path: str) -> Iterator[str]:
    """The address of a Dask scheduler."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    file = folder / "scheduler.json"
    with ended([*command, "--no-dashboard", "--scheduler-file", str(file)], PYTHONPATH=path):
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield json.loads(file.read_text())["address"]


def finished(folder: Path) -> list[Path]:
    """Points whose runs have come back."""
    return [path for path in folder.glob("runs/*/points/*") if path.suffix != ".partial"]


def driven(log: Path) -> list[str]:
    """The process of each call of the bench."""
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


@contextmanager
def ended(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    own = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=own) as process:
        try:
            yield process
        finally:
            process.kill()


def worker(address: str, log: Path, resources: str = "") -> list[str]:
    """The command of a worker in one process, which a kill leaves nothing of."""
    own = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(log)]
    return [sys.executable, "-m", "distributed.cli.dask_worker", address, *own, "--resources", resources]


LAB = """\
import os, time
import numpy as np

def bench(u):
    with open(os.environ["BENCH_LOG"], "a") as log:
        log.write(f"{os.getpid()} {len(u)}\\n")
    time.sleep(0.3)
    return np.tanh(u * np.arange(1, 5))

def settle():
    pass
"""
DEVICE = """\
task: {kind: narma, washout_steps: 20, train_steps: 200, test_steps: 100}
reservoir: {kind: python, label: bench, call: "lab:bench", nodes: 4, inputs: 1, simulated: false, continuity: held,
            reset_call: "lab:settle", input_range: [-1, 1]}
readout: {kind: ridge, washout: 20}
training: {test_warmup_steps: 0}
vary: {task.seed: [0, 1, 2, 3, 4, 5]}
run: {folder: RUNS, chunk_steps: 100}
"""


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third worker has no bench, and gets none of the points. What was finished is not driven again."""
    file = written(tmp_path, DEVICE)
    (tmp_path / "lab.py").write_text(LAB)
    log = tmp_path / "bench.log"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_LOG", str(tmp_path / "alone.log"))
    alone = experiment(file, {"run.point": 0, "run.folder": str(tmp_path / "alone")}).run(report=False)
    each = len(driven(tmp_path / "alone.log"))
    path = os.pathsep.join([str(tmp_path), str(Path(reservoir_hw.__file__).parents[1])])
    with ExitStack() as stack:
        address = stack.enter_context(scheduler(tmp_path, path))
        # As on hosts of their own, each with a bench.
        first, _, idle = [
            stack.enter_context(
                ended(
                    worker(address, tmp_path / f"worker-{number}", resources),
                    PYTHONPATH=path,
                    BENCH_LOG=str(log),
                    RESERVOIR_HW_LOCKS=str(tmp_path / f"host-{number}"),
                )
            )
            for number, resources in enumerate(["bench=1", "bench=1", "other=1"])
        ]
        with started("run", file, "--on", address, env={**os.environ, "PYTHONPATH": path}) as run:
            deadline = time.monotonic() + 120
            while not finished(tmp_path) or str(first.pid) not in driven(log):
                if run.poll() is not None:
                    pytest.fail(run.communicate()[1])
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.kill(first.pid, signal.SIGKILL)
            _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
        (folder,) = (tmp_path / "runs").iterdir()
        metrics = json.loads((folder / "metrics.json").read_text())
        assert metrics["status"] == "complete"
        assert [row["point"]["task.seed"] for row in metrics["rows"]] == [0, 1, 2, 3, 4, 5]
        assert (folder / "report.html").exists()
        assert str(idle.pid) not in driven(log)
        assert metrics["rows"][0]["metrics"] == alone.metrics["rows"][0]["metrics"]
        calls = len(driven(log))
        again = run_on(experiment(file, {"run.resume": str(folder)}), address)
        assert found(again) == [{name: row[name] for name in ("label", "point", "metrics")} for row in metrics["rows"]]
        # One point was at work where the worker died: it alone was driven again.
        assert 6 * each <= calls <= 7 * each
        assert len(driven(log)) == calls
