"""A harvest of a lab's own device that is interrupted again and again: by Ctrl-C, kill -9, and a power cycle."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import started
from harvests import committed

from reservoir_hw import Experiment
from reservoir_hw.core.store import StateStore

BENCH = '''\
"""A device that goes on while no process drives it: its bias and its state lie in a file."""
import json, time
import numpy as np
from pathlib import Path

DEVICE = Path("device.json")
WEIGHTS = np.linspace(-1, 1, 10)

def connect():
    return {"bias_v": json.loads(DEVICE.read_text())["bias_v"], "time": time.time()}

def settle():
    save([0.0] * 10)

def save(x):
    DEVICE.write_text(json.dumps({**json.loads(DEVICE.read_text()), "x": list(x)}))

def measure(u):
    device = json.loads(DEVICE.read_text())
    x, states = np.array(device["x"]), []
    for row in u:
        time.sleep(0.002)
        x = np.tanh(0.5 * np.roll(x, 1) + WEIGHTS * row[0] + device["bias_v"])
        states.append(x)
    save(x)
    return np.array(states)
'''
FILE = """\
task: {kind: narma, train_steps: 2000, test_steps: 500}
reservoir:
  kind: python
  call: overnight_bench:measure
  setup_call: overnight_bench:connect
  reset_call: overnight_bench:settle
  volatile: [time]
  memory_steps: 60
  nodes: 10
  simulated: false
  continuity: held
readout: {kind: ridge, washout: 20}
training: {test_warmup_steps: 100}
run: {chunk_steps: 100}
"""


def power(bias_v: float) -> None:
    Path("device.json").write_text(json.dumps({"bias_v": bias_v, "x": [9.0] * 10}))


harvest = functools.partial(started, "harvest", "lab.yaml")


def wait_for(chunks: int, process: subprocess.Popen[str]) -> None:
    """Return when so many chunks are safe."""
    until = time.monotonic() + 60
    while committed(Path()) < chunks:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_no_step_counts_twice_or_under_another_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("overnight_bench.py").write_text(BENCH)
    Path("lab.yaml").write_text(FILE)
    power(0.2)
    random = np.random.default_rng(8)
    said, path, safe = [], "", 0
    for number, how in enumerate(("Ctrl-C", "kill -9", "power cycle", "Ctrl-C", "kill -9")):
        process = harvest()
        # Not after a time: a process on a busy machine may have committed nothing by then, and makes no piece.
        wait_for(safe + int(random.integers(1, 3)), process)
        time.sleep(float(random.uniform(0.0, 0.2)))
        process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
        (path,) = map(str, Path("states").glob("python-*"))
        safe = StateStore.open(path).committed
        assert "Traceback" not in errors
        if how == "Ctrl-C":
            assert process.returncode == 130
            assert f"{safe} of 25 chunks are safe in {path}; the same command goes on from there" in errors
            said.append(number)
        if how == "power cycle":
            power(1.0)
            refused = harvest()
            _, errors = refused.communicate(timeout=30)
            assert refused.returncode == 2
            assert "bias_v was 0.2 and is 1.0 now" in errors
            assert "--accept-change" in errors
            power(0.2)
        assert not StateStore.open(path).complete
    last = harvest()
    output, errors = last.communicate(timeout=60)
    assert last.returncode == 0, errors
    assert "harvested in 6 pieces" in output
    assert len(said) == 2
    store = StateStore.open(path)
    task = Experiment.from_file("lab.yaml").points[0].config.task.build()
    weights = np.linspace(-1, 1, 10)
    for name, inputs in (
        ("train", task.train.inputs),
        ("test", np.concatenate([task.train.inputs[:, -100:], task.test.inputs], axis=1)),
    ):
        x, truth = np.zeros(10), []
        for value in inputs[0, :, 0]:
            x = np.tanh(0.5 * np.roll(x, 1) + weights * value + 0.2)
            truth.append(x)
        states = store.dataset(name).states[0]
        np.testing.assert_allclose(states, truth[-len(states) :], atol=1e-9)
    # Each chunk counts once: what the segments have written, without what was begun again, is the whole.
    firsts = [segment["first_place"] for segment in store.segments]
    assert firsts == sorted(firsts)
    assert sum(segment["places"] for segment in store.segments if "places" in segment) <= 25
    assert store.committed == 25
    # There is none where a new sequence was about to begin.
    seams = [segment["seam"] for segment in store.segments if segment["seam"]]
    assert seams
    assert all(seam["kind"] == "driven again" and "changes" not in seam for seam in seams)
