"""`sensor | infer | actuator` beside a device that freezes, goes dark, hangs, dies and comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import started
from edge_bundles import ranges_of
from served import ipc_address

from reservoir_hw import open_reservoir
from reservoir_hw.experiment.deploy.watching import STILL
from reservoir_hw.readout import RidgeReadout
from reservoir_hw.readout.export import export_model

WASHOUT = 6
PLANT = """\
import os
from pathlib import Path

import numpy as np

random = np.random.default_rng(1)
coupling, gains = 0.15 * random.standard_normal((20, 20)), random.uniform(-1, 1, 20)
states = np.zeros(20)


def rest():
    states[:] = 0


def measure(u):
    if ticks := os.environ.get("TICKS"):
        # The pace of the device is that of who writes to this pipe.
        os.read(int(ticks), 1)
    fault = Path("fault").read_text()
    if fault != "frozen":
        states[:] = np.tanh(coupling @ states + gains * u[0])
    if fault == "dark":
        states[:] = 0
    return states.copy()
"""
BENCH = """\
kind: python
call: plant:measure
reset_call: plant:rest
mode: step
inputs: 1
nodes: 20
simulated: true
continuity: held
"""


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """In the current folder a bundle that answers with the input before, its bench, a warm-up; gives inputs (time,)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plant", raising=False)
    for name, text in (("plant.py", PLANT), ("bench.yaml", BENCH), ("fault", "")):
        Path(name).write_text(text)
    u = np.random.default_rng(0).uniform(0, 0.5, (1, 800, 1))
    y = np.roll(u, 1, 1)
    with open_reservoir("bench.yaml") as device:
        readout = RidgeReadout(1e-6).fit(device.run(u)[:, WASHOUT:600], y[:, WASHOUT:600])
        export_model(readout, "model.rhw", reservoirs=device, washout=WASHOUT, ranges=ranges_of(u, y))
    np.savetxt("warmup.csv", u[0, 600:630])
    return u[0, 630:, 0]


@contextlib.contextmanager
def infer(*options: object, reservoir: str = "bench.yaml", **more: Any) -> Iterator[subprocess.Popen[str]]:
    process = started("infer", "model.rhw", "--reservoir", reservoir, *options, stdin=subprocess.PIPE, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def write(process: subprocess.Popen[str], *lines: object) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in lines))
    process.stdin.flush()


def read(process: subprocess.Popen[str]) -> float:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return float(line)


@contextlib.contextmanager
def served(address: str) -> Iterator[subprocess.Popen[str]]:
    server = started("serve", "bench.yaml", "--bind", address, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        assert "Serving" in server.stdout.readline()
        yield server
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
def test_no_answer_of_a_device_at_fault_is_unmarked(plant: np.ndarray) -> None:
    """Line by line. What freezes is known after some steps, as its states might be the same by chance."""
    series = iter(plant)
    options = ["--outside", "nan", "--warmup", "warmup.csv"]

    def asked(process: subprocess.Popen[str], count: int, before: float = np.nan) -> np.ndarray:
        """The errors of so many answers; nan where they are marked."""
        found = []
        for now in (float(next(series)) for _ in range(count)):
            write(process, now)
            found.append(read(process) - before)
            before = now
        return np.array(found)

    def is_back(process: subprocess.Popen[str]) -> None:
        errors = asked(process, WASHOUT + 8)
        assert np.isnan(errors[:WASHOUT]).all()
        assert np.abs(errors[WASHOUT:]).max() < 0.05

    with ipc_address() as address:
        Path("far.yaml").write_text(f"kind: zmq\naddress: {address}\ntimeout_s: 2\n")
        with served(address) as server, infer(*options, reservoir="far.yaml") as process:
            assert np.abs(asked(process, 15)[1:]).max() < 0.05
            for fault, unknown in (("frozen", STILL - 1), ("dark", STILL)):
                Path("fault").write_text(fault)
                assert np.isnan(asked(process, 12)[unknown:]).all()
                Path("fault").write_text("")
                is_back(process)
            for line in ("5", "nan", "-inf", "1e39"):
                write(process, line)
                assert np.isnan(read(process))
                is_back(process)
            # One after the other begins the warm-up anew, and each line is a step.
            write(process, "5", "0.1", "5", "0.2")
            assert np.isnan([read(process) for _ in range(4)]).all()
            server.send_signal(signal.SIGSTOP)
            write(process, "0.1")
            said, errors = process.communicate(timeout=60)
            server.send_signal(signal.SIGCONT)
        assert (process.returncode, said) == (3, "")
        for words in ("ready\n", "frozen reservoir", "input 0 is 5, training had 0.0", "was not answered"):
            assert words in errors
        assert "still runs" not in errors
        assert "Traceback" not in errors
        # A supervisor starts it again, beside a device that is back.
        with served(address) as server, infer(*options, reservoir="far.yaml") as process:
            assert np.abs(asked(process, 8)[1:]).max() < 0.05
            server.kill()
            server.wait()
            write(process, "0.1")
            said, errors = process.communicate(timeout=60)
            assert (process.returncode, said) == (3, "")
            assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("most", [None, 3])
def test_a_producer_at_twice_the_pace(most: int | None, plant: np.ndarray) -> None:
    """After the answer to line n, n more lines wait."""
    lines, steps = plant[:24], 12 if most is None else most + 1
    ours, theirs = os.pipe()
    options = ["--warmup", "none", *([] if most is None else ["--max-behind", most])]
    environment = {**os.environ, "TICKS": str(ours)}
    with infer(*options, pass_fds=[ours], env=environment) as process:
        for step in range(steps):
            write(process, *lines[2 * step : 2 * step + 2])
            os.write(theirs, b".")
            read(process)
        if most is None:
            os.write(theirs, b"." * steps)
        said, errors = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    waited = f"behind in {2 * steps - 1 if most is None else steps} of {2 * steps if most is None else steps} steps"
    assert f"{waited}, up to {steps} lines\n" in errors
    if most is None:
        assert (process.returncode, len(said.splitlines())) == (0, steps)
    else:
        assert (process.returncode, said) == (3, "")
        assert errors.splitlines()[1].startswith(
            f"stopped: stdin:{steps}: {steps} lines waited when it was answered (--max-behind 3)"
        )


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("0.1\n0.23", 3, "stdin:2: the pipe has ended within the line '0.23'"),
        ("0.1\n\n0.2\n", 2, "stdin:2: ''"),
        *(
            pytest.param(f"0.1\n{line}\n", 2, f"stdin:2: '{line}'{why}", marks=pytest.mark.slow)
            for line, why in (
                ("# x", ": in a pipe each line is a row of numbers"),
                ("1_0", " is not a row of numbers"),
                ("٠.٢", " is not a row of numbers"),
            )
        ),
        ("0.1\nnan\n", 2, "stdin:2: the inputs of a step must be finite"),
        ("0.1\n0.1 0.2\n", 2, "stdin:2: 2 numbers, but the model takes 1 inputs"),
        ("0.1\n" + "1" * 70000, 2, "stdin:2: a line of more than 65536 bytes"),
    ],
)
def test_a_line_of_a_pipe_has_an_answer_or_ends_it(text: str, code: int, said: str, plant: np.ndarray) -> None:
    with infer("--warmup", "none") as process:
        answers, errors = process.communicate(text, timeout=60)
    assert (process.returncode, len(answers.splitlines())) == (code, 1), errors
    assert said in errors
    assert "Traceback" not in errors
