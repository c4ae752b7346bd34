"""NARMA10 on lines of text, here and behind a server, through a harvest that was killed: equal to the last digit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML
from served import ipc_address, served
from text_benches import Config, board_states, film, film_states, levels, text_board

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.reservoir_config import reservoir_config
from reservoir_hw.emulators.bench import EventLog

TASK = {"kind": "narma", "train_steps": 150, "test_steps": 60}
BENCHES = ["board", "film"]


@contextlib.contextmanager
def bench(name: str) -> Iterator[tuple[EventLog, Config]]:
    """What is driven, with the log of its output."""
    if name == "board":
        with text_board(nodes=20, deterministic=True) as (line, config):
            yield line.board._log, config
    else:
        with film(deterministic=True) as (lab, config):
            yield lab.bench.log, config


def experiment(reservoir: Config, folder: Path) -> dict[str, Any]:
    return {
        "title": "lines of text",
        "task": TASK,
        "reservoir": reservoir,
        "readout": {"kind": "ridge", "alpha": 1e-6, "washout": 20},
        "run": {"folder": str(folder)},
    }


def nmse(reservoir: Config, folder: Path) -> float:
    path = folder / "experiment.yaml"
    with path.open("w") as file:
        YAML(typ="safe").dump(experiment(reservoir, folder), file)
    result = Experiment.from_file(path).run()
    return float(result.to_frame()["nmse"].iloc[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_narma_here_and_behind_a_server(name: str, tmp_path: Path) -> None:
    with bench(name) as (log, config):
        here = nmse(config, tmp_path)
        with ipc_address() as address, served(open_reservoir(config), address):
            there = nmse({"kind": "zmq", "address": address}, tmp_path)
        assert here == there < 1.5
        assert log.events[-1]["event"] == "off"


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_what_is_driven_is_what_the_equations_say(name: str) -> None:
    u = np.random.default_rng(2).uniform(0, 0.5, (1, 100, 1))
    with (
        bench(name) as (_, config),
        ipc_address() as address,
        served(open_reservoir(config), address),
        open_reservoir({"kind": "zmq", "address": address}) as reservoir,
    ):
        states = reservoir.run(u)
    expected = board_states(u, 20) if name == "board" else film_states(u)
    assert np.array_equal(states, expected)


OWNER = """
import json, sys
import numpy as np
from reservoir_hw import open_reservoir

with open_reservoir(json.loads(sys.argv[1])) as reservoir:
    u = np.random.default_rng(0).uniform(0, 0.5, (1, 20, 1))
    print("open", flush=True)
    while True:
        reservoir.run(u)
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 8])
@pytest.mark.parametrize("name", BENCHES)
def test_runs_that_are_killed_leave_their_device_safe(name: str, times: int) -> None:
    """So often at random moments: when the device is free, its last line was the last of `safe`."""
    random = np.random.default_rng(0)
    with bench(name) as (log, config):
        resources = reservoir_config(config).build().resources
        for _ in range(times):
            log.events.clear()
            command = [sys.executable, "-c", OWNER, json.dumps(config)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
                assert owner.stdout is not None
                assert owner.stdout.readline() == b"open\n"
                wait_for_levels(log, int(random.integers(1, 60)), owner)
                os.kill(owner.pid, signal.SIGKILL)
            locks = HostLocks(resources)
            locks.acquire(20.0)
            events = [*log.events]
            locks.release()
            assert events[-1]["event"] == "off"
            driven = levels(log)
            assert driven
            assert max(driven) <= 0.8
        # And whoever comes next finds it at rest.
        u = np.random.default_rng(2).uniform(0, 0.5, (1, 20, 1))
        with open_reservoir(config) as reservoir:
            assert np.array_equal(reservoir.run(u), board_states(u, 20) if name == "board" else film_states(u))


def wait_for_levels(log: EventLog, count: int, process: subprocess.Popen[bytes]) -> None:
    while len(levels(log)) < count:
        assert process.poll() is None
        os.sched_yield()


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_a_harvest_that_is_killed_goes_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # States are kept there.
    monkeypatch.chdir(tmp_path)
    with bench(name) as (log, config):
        config["memory_steps"] = 400
        path = tmp_path / "experiment.yaml"
        with path.open("w") as file:
            YAML(typ="safe").dump(experiment({**config, "period_s": 0.005}, tmp_path), file)
        command = [sys.executable, "-m", "reservoir_hw.cli", "harvest", str(path)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as harvest:
            wait_for_levels(log, 120, harvest)
            os.kill(harvest.pid, signal.SIGKILL)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        harvested = float(Experiment.from_file(path).run().to_frame()["nmse"].iloc[0])
        # Where no states are kept, it is driven.
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        before = len(log.events)
        assert harvested == nmse({**config, "period_s": 0.005}, tmp_path)
        assert len(log.events) > before + 200
        assert log.events[-1]["event"] == "off"
