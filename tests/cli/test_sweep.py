"""`reservoir-hw sweep` as a user meets it: processes that share a study, die, and go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from command_line import called, started
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

FILE = """\
title: film
task: {kind: narma, washout_steps: 20, train_steps: 150, test_steps: 100}
reservoir:
  kind: python
  call: bench:measure
  reset: {kind: none, reason: the film forgets within a step}
  nodes: 3
  simulated: true
  continuity: held
readout: {kind: ridge, washout: 20}
sweep:
  metric: nrmse
  trials: 6
  search:
    readout.alpha: {low: 1.0e-8, high: 1.0, log: true}
    readout.input_connection: [true, false]
run: {folder: runs, name: film}
"""

# A device that answers once it is allowed to.
BENCH = """\
import pathlib, time

def measure(u):
    pathlib.Path("driven").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return u.repeat(3, axis=1)
"""

# Another one, and one that is the end of its process.
MORE = """
import os, signal

other = measure

def deadly(u):
    os.kill(os.getpid(), signal.SIGKILL)
"""

STORAGE = "sqlite:///runs/sweeps/film/study.db"


_begun: list[subprocess.Popen[str]] = []


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "film.yaml").write_text(FILE)
    (tmp_path / "bench.py").write_text(BENCH)
    yield tmp_path
    for process in _begun:
        process.kill()
        process.communicate()
    _begun.clear()


def begin(*arguments: object) -> subprocess.Popen[str]:
    process = started(*arguments)
    _begun.append(process)
    return process


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    process = begin(*arguments)
    out, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def trials(storage: str = STORAGE) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="film", storage=storage).trials


def wait_for(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        for process in processes:
            assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def at_work() -> set[str]:
    """Processes with a running trial."""
    if not Path("runs/sweeps/film/study.db").exists():
        return set()
    try:
        found = trials()
    except (KeyError, SQLAlchemyError, optuna.exceptions.StorageInternalError):
        # Not made yet, or being made.
        return set()
    return {trial.user_attrs["worker"]["id"] for trial in found if not trial.state.is_finished() and trial.user_attrs}


def test_a_sweep_from_its_file_to_the_best_run(pictures: None, lab: Path) -> None:
    (lab / "go").touch()
    done = called("check", "film.yaml")
    assert "with a sweep of 6 trials (tpe) over alpha, input_connection, minimizing nrmse; each trial is" in done.stdout
    done = call("sweep", "film.yaml")
    assert done.returncode == 0, done.stderr
    assert "film: a sweep of 6 trials (tpe) over alpha, input_connection, minimizing nrmse; each 1 run" in done.stderr
    assert "6 trials wanted: 6 complete" in done.stdout
    assert "Results are in runs/sweeps/film" in done.stdout
    best = re.findall(r"Now: reservoir-hw run (.*)", done.stdout)[0]
    # Everything is there already.
    done = called("sweep", "film.yaml", "--json")
    again = json.loads(done.stdout)
    assert again["counts"]["complete"] == 6
    run = json.loads(called("run", best, "--json").stdout)
    assert run["rows"][0]["metrics"]["nrmse"] == again["best"]["objective"]
    assert Path("runs/sweeps/film/report.html").read_text().count("data:image/png;base64,") == 2


@pytest.mark.slow
def test_a_second_process_goes_on(lab: Path) -> None:
    (lab / "go").touch()
    first = called("sweep", "film.yaml", "--trials", 2, "--json")
    second = call("sweep", "film.yaml", "--trials", 5, "--json")
    assert second.returncode == 0, second.stderr
    known, more = json.loads(first.stdout)["trials"], json.loads(second.stdout)["trials"]
    assert len(more) == 5
    assert more[:2] == known
    assert len({trial["worker"]["pid"] for trial in more}) == 2


@pytest.mark.parametrize("storage", [STORAGE, pytest.param(os.environ.get("RESERVOIR_HW_TEST_STORAGE"), id="given")])
@pytest.mark.slow
def test_two_processes_at_once(lab: Path, storage: str | None) -> None:
    if storage is None:
        pytest.skip("RESERVOIR_HW_TEST_STORAGE names no database")
    url = [] if storage == STORAGE else ["--storage", storage]
    both = [begin("sweep", "film.yaml", *url, "--json") for _ in range(2)]
    running = at_work if storage == STORAGE else lambda: {t.user_attrs["worker"]["id"] for t in _existing(storage)}
    wait_for(lambda: len(running()) == 2, *both)
    (lab / "go").touch()
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    found = [trial for trial in trials(storage) if "surplus" not in trial.user_attrs]
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 6
    assert len({trial.user_attrs["worker"]["id"] for trial in found}) == 2
    assert len({trial.params["readout.alpha"] for trial in found}) == 6
    # Whoever came last has all of them in its report.
    assert max(json.loads(out)["counts"]["complete"] for out, _ in ends) == 6
    assert json.loads(Path("runs/sweeps/film/metrics.json").read_text())["counts"]["complete"] == 6
    assert not list(Path("runs/sweeps/film").glob("*.alive"))


def _existing(storage: str) -> list[optuna.trial.FrozenTrial]:
    try:
        return [trial for trial in trials(storage) if "worker" in trial.user_attrs]
    except KeyError:
        return []


@pytest.mark.slow
def test_kill_9_in_the_middle(lab: Path) -> None:
    first = begin("sweep", "film.yaml")
    wait_for(lambda: len(at_work()) == 1, first)
    first.kill()
    first.communicate()
    assert [trial.state for trial in trials()] == [TrialState.RUNNING]
    (lab / "go").touch()
    done = call("sweep", "film.yaml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["counts"] == {"complete": 6, "pruned": 0, "failed": 0, "died": 1, "running": 0}
    assert [trial.state for trial in trials()] == [TrialState.FAIL] + [TrialState.COMPLETE] * 6
    assert not list(Path("runs/sweeps/film").glob("*.alive"))


@pytest.mark.slow
def test_values_that_kill_their_process_are_tried_twice(lab: Path) -> None:
    """Whoever starts the same command again and again gets past them, with the trials of a sweep without deaths."""
    (lab / "go").touch()
    (lab / "bench.py").write_text(BENCH + MORE)
    given = ["--trials", 3, "--json", "--set", "sweep.sampler=random", "--set"]
    alphas = "readout.alpha: {low: 1.0e-8, high: 1.0, log: true}"
    given += [f"sweep.search={{{alphas}}}", "--set"]
    search = "reservoir.search={call: ['bench:measure', 'bench:NAME']}"
    harmless = call("sweep", "film.yaml", *given, search.replace("NAME", "other"))
    ends = []
    while not ends or ends[-1].returncode == -signal.SIGKILL:
        assert len(ends) < 7
        ends.append(call("sweep", "film.yaml", *given, search.replace("NAME", "deadly"), "--name", "deadly"))
    assert ends[-1].returncode == 0, ends[-1].stderr
    found = json.loads(ends[-1].stdout)
    counted = [trial for trial in found["trials"] if trial["status"] != "died"]
    deadly = [trial for trial in counted if trial["values"]["reservoir.call"] == "bench:deadly"]
    assert 0 < len(deadly) < len(counted) == 3
    assert len(ends) == 2 * len(deadly) + 1
    assert found["counts"]["died"] == found["counts"]["failed"] == len(deadly)
    assert all(trial["problem"].startswith("its process died twice while it ran: ") for trial in deadly)
    expected = [trial["values"]["readout.alpha"] for trial in json.loads(harmless.stdout)["trials"]]
    assert [trial["values"]["readout.alpha"] for trial in counted] == expected


@pytest.mark.slow
def test_ctrl_c_as_often_as_you_like(lab: Path) -> None:
    """An orderly end gives its number back, however often."""
    for _ in range(3):
        process = begin("sweep", "film.yaml", "--trials", 1)
        wait_for(lambda: len(at_work()) == 1, process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    (lab / "go").touch()
    found = json.loads(call("sweep", "film.yaml", "--trials", 1, "--json").stdout)
    assert found["counts"] == {"complete": 1, "pruned": 0, "failed": 0, "died": 3, "running": 0}
    assert len({trial.user_attrs["draw"] for trial in trials()}) == 1


@pytest.mark.slow
def test_a_process_that_dies_beside_another(lab: Path) -> None:
    first, second = (begin("sweep", "film.yaml", "--json") for _ in range(2))
    wait_for(lambda: len(at_work()) == 2, first, second)
    first.kill()
    first.communicate()
    (lab / "go").touch()
    out, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    assert json.loads(out)["counts"] == {"complete": 6, "pruned": 0, "failed": 0, "died": 1, "running": 0}


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(lab: Path) -> None:
    (lab / "go").touch()
    called("sweep", "film.yaml", "--trials", 2)
    (lab / "go").unlink()
    process = begin("sweep", "film.yaml")
    wait_for(lambda: len(at_work()) == 1, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted: what was finished is kept" in errors
    assert f"2 of 6 trials are in {STORAGE}; the same command goes on" in errors
    assert "Traceback" not in errors
    assert json.loads(Path("runs/sweeps/film/metrics.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_a_device_of_another_process_exits_3(lab: Path) -> None:
    device = ["--set", "reservoir.simulated=false", "--set", "reservoir.resource=film-7"]
    first = begin("sweep", "film.yaml", *device)
    wait_for(Path("driven").exists, first)
    assert f"'film-7' is in use by process {first.pid}" in called("sweep", "film.yaml", *device, code=3).stderr
    (lab / "go").touch()
    first.communicate(timeout=60)
    assert first.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "sweep.metric=accuracy"], "the task has no metric 'accuracy'; it has: nrmse, nmse"),
        (["--set", "sweep.search={readout.alfa: [1]}"], "unknown key 'readout.alfa'; did you mean 'alpha'"),
        (["--storage", "study.db"], "write sqlite:///PATH"),
        (["--trials", "0"], "Invalid value for '--trials'"),
    ],
)
def test_mistakes_exit_2(lab: Path, arguments: list[str], message: str) -> None:
    done = called("sweep", "film.yaml", *arguments, code=2)
    assert message in done.stderr
    assert not done.stdout


def test_the_schema_knows_the_section(lab: Path) -> None:
    done = called("schema")
    schema = json.loads(done.stdout)
    models = schema["$defs"]
    section = models["SweepConfig"]["properties"]
    assert section["direction"]["anyOf"][0]["enum"] == ["minimize", "maximize"]
    value = section["search"]["additionalProperties"]["anyOf"]
    assert {"$ref": "#/$defs/Dimension"} in value
    assert any(kind.get("type") == "array" for kind in value)
    kinds = schema["properties"]["reservoir"]["discriminator"]["mapping"].values()
    of_reservoirs = [models[kind.rpartition("/")[2]]["properties"]["search"] for kind in kinds]
    assert of_reservoirs
    # Short lists of choices are for the section of the reservoir, too.
    assert all("array" in json.dumps(search) for search in of_reservoirs)
