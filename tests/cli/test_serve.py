"""`reservoir-hw serve`, and experiments that meet what it serves: a server's own process, real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import called as call
from command_line import started
from harvests import committed

from reservoir_hw import open_reservoir
from reservoir_hw.core.store import StateStore
from reservoir_hw.drivers.zeromq import make_keys

SCHEME = "tcp"
ELMAN = """\
task: {kind: elman_grammar, sentences: 300}
reservoir: {kind: esn, nodes: 30, input_scaling: 0.5}
readout: {kind: ridge, alpha: 1e-2, input_connection: true}
training: {priming_passes: 1}
run: {folder: runs, states: null, chunk_steps: 500}
"""
NARMA = """\
task: {kind: narma, train_steps: 800, test_steps: 400}
reservoir: {kind: esn, nodes: 40, nonidealities: {loop: {noise: 0.01}, readout: {noise: 0.01}}}
readout: {kind: ridge, washout: 50}
run: {folder: runs, states: null, chunk_steps: 300}
"""
GRID = "vary: {readout.alpha: [1e-6, 1e-2], training.priming_passes: [0, 1]}\n"
BENCH = """\
import time, pathlib

def slow(u):
    pathlib.Path("driven").touch()
    time.sleep(0.4)
    return [u[0]]

def rest():
    pass

def safe():
    pathlib.Path("safe").touch()
"""
SLOW = """\
kind: python
call: bench:slow
reset_call: bench:rest
close_call: bench:safe
mode: step
inputs: 1
nodes: 1
simulated: true
continuity: held
"""


@contextlib.contextmanager
def serving(*arguments: object, cwd: Path, end: int | None = signal.SIGTERM) -> Iterator[subprocess.Popen[str]]:
    """A server that listens; it ends by itself, without a word of trouble, after the signal."""
    process = started("serve", *arguments, cwd=cwd)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        first = (process.stderr if "--json" in arguments else process.stdout).readline()
        assert "erving" in first, process.communicate()[1]
        yield process
        if end is not None:
            process.send_signal(end)
            _, errors = process.communicate(timeout=30)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors, errors
    finally:
        process.kill()
        process.communicate()


def client(folder: Path, address: str, security: str = "", name: str = "zmq.yaml") -> Path:
    (folder / name).write_text(f"kind: zmq\naddress: {address}\ntimeout_s: 2.0\n{security}")
    return folder / name


def states_of(path: Path) -> dict[str, np.ndarray]:
    store = StateStore.open(path)
    return {
        f"{name} {part}": np.asarray(array[:])
        for name, dataset in store.datasets.items()
        for part, array in (("inputs", dataset.inputs), ("states", dataset.states))
    }


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both experiments, and with what they give on a local reservoir."""
    folder = tmp_path_factory.mktemp("local")
    for name, text in (("elman", ELMAN), ("narma", NARMA)):
        (folder / f"{name}.yaml").write_text(text)
        done = call("run", f"{name}.yaml", "--json", "--set", f"run.record={name}", cwd=folder)
        (folder / f"{name}.json").write_text(done.stdout)
    return folder


@pytest.mark.parametrize(
    ("name", "address", "curve"),
    [
        pytest.param(name, wire, curve, id=f"{wire}{curve * ' curve'} {name}", marks=() if quick else pytest.mark.slow)
        for name, wire, curve, quick in (
            ("elman", "tcp", False, True), ("narma", "tcp", False, False),
            ("elman", "ipc", False, False), ("narma", "ipc", False, False),
            ("elman", "unix", False, False), ("narma", "unix", False, False),
            ("elman", "tcp", True, False), ("narma", "tcp", True, False),
            ("elman", "ipc", True, False), ("narma", "ipc", True, True),
        )
    ],
    indirect=["address"],
)  # fmt: skip
def test_an_experiment_gives_the_same_bits_over_the_wire(
    local: Path, tmp_path: Path, name: str, address: str, curve: bool
) -> None:
    shutil.copy(local / f"{name}.yaml", tmp_path)
    options: list[object] = [f"{name}.yaml", "--bind", address]
    security = ""
    if curve:
        make_keys(tmp_path, "bench")
        make_keys(tmp_path / "clients", "anna")
        options += ["--secret-key", "bench.key_secret", "--clients", "clients"]
        security = "security: {server_key: bench.key, key: clients/anna.key_secret}\n"
    far = client(tmp_path, address, security)
    with serving(*options, cwd=tmp_path):
        done = call("run", f"{name}.yaml", "--reservoir", far, "--json", "--set", "run.record=far", cwd=tmp_path)
    result, expected = json.loads(done.stdout), json.loads((local / f"{name}.json").read_text())
    assert [row["metrics"] for row in result["rows"]] == [row["metrics"] for row in expected["rows"]]
    there, here = states_of(tmp_path / "far"), states_of(local / name)
    assert there.keys() == here.keys() != set()
    for key, array in here.items():
        np.testing.assert_array_equal(there[key], array)
    record = json.loads((Path(tmp_path / result["folder"]) / "provenance.json").read_text())
    near = json.loads((local / expected["folder"] / "provenance.json").read_text())
    device, here_device = (entry["rows"][0]["reservoir"] for entry in (record, near))
    assert device["identity"] == here_device["identity"]
    assert device["address"] == address


@pytest.mark.slow
def test_points_of_a_grid_take_the_device_one_after_the_other(tmp_path: Path, address: str) -> None:
    (tmp_path / "narma.yaml").write_text(NARMA + GRID)
    far = client(tmp_path, address)
    with serving("narma.yaml", "--bind", address, cwd=tmp_path):
        results = []
        for more in ([], ["--reservoir", far]):
            done = call("run", "narma.yaml", *more, "--json", cwd=tmp_path)
            results.append([row["metrics"] for row in json.loads(done.stdout)["rows"]])
        assert results[0] == results[1]
        over = ["--reservoir", far, "--set", "run.states=states"]
        stores = json.loads(call("harvest", "narma.yaml", *over, "--json", cwd=tmp_path).stdout)["stores"]
        assert len(stores) == 2
        done = call("run", "narma.yaml", *over, "--json", cwd=tmp_path)
    # The server is gone: the states are there.
    assert "states were read from" in done.stderr
    assert [row["metrics"] for row in json.loads(done.stdout)["rows"]] == results[0]


def chunks_of(folder: Path) -> dict[str, bytes]:
    store = next((folder / "states").iterdir())
    return {
        str(path.relative_to(store)): path.read_bytes()
        for name in ("states", "inputs")
        for path in sorted(store.glob(f"*/{name}/c/**/*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_a_harvest_survives_the_death_of_the_server(tmp_path: Path, address: str) -> None:
    text = NARMA.replace("train_steps: 800", "train_steps: 6000").replace("300}", "50, states: states}")
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "narma.yaml").write_text(text.replace("states: null, ", ""))
        client(tmp_path / name, address)
    serve = ["narma.yaml", "--bind", address]
    harvest = ["harvest", "narma.yaml", "--reservoir", "zmq.yaml", "--json"]
    with serving(*serve, cwd=tmp_path / "whole"):
        call(*harvest, cwd=tmp_path / "whole")
    whole = chunks_of(tmp_path / "whole")
    assert len(whole) == 2 * (6000 + 400) // 50
    cut = tmp_path / "cut"
    with serving(*serve, cwd=cut, end=None) as server:
        harvester = started(*harvest, cwd=cut)
        while committed(cut) < 20 and harvester.poll() is None:
            time.sleep(0.002)
        server.kill()
        server.wait()
        begun = time.monotonic()
        _, errors = harvester.communicate(timeout=60)
        waited = time.monotonic() - begun
    assert harvester.returncode == 3, errors
    assert "Traceback" not in errors
    assert "the same command goes on from there" in errors
    assert waited < 15
    assert 20 <= committed(cut) < 120
    with serving(*serve, cwd=cut):
        done = call(*harvest, cwd=cut)
    segments = json.loads(done.stdout)["stores"][0]["segments"]
    assert [segment["seam"] for segment in segments] == [None, None]
    assert chunks_of(cut) == whole


@pytest.mark.slow
def test_what_is_served_and_how_to_reach_it(tmp_path: Path, address: str) -> None:
    (tmp_path / "lab.yaml").write_text("kind: esn\nnodes: 12\n")
    options = ["--inputs", "3", "--bind", address, "--lease", "2", "--credits", "3"]
    process = started("serve", "lab.yaml", *options, cwd=tmp_path)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(6)]
    with open_reservoir({"kind": "zmq", "address": address}) as far:
        fingerprint = far.spec.identity.fingerprint
        assert (far.spec.inputs, far.spec.nodes) == (3, 12)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said[0] == f"Serving reservoir_hw esn (simulation), 3 inputs -> 12 nodes, fingerprint {fingerprint[:12]}\n"
    assert said[1].startswith(f"at {address}")
    assert said[3:5] == ["    kind: zmq\n", f"    address: {address}\n"]
    assert "has the device" in errors
    assert "says goodbye" in errors


@pytest.mark.slow
def test_the_log_is_json_where_that_is_wanted(tmp_path: Path, address: str) -> None:
    (tmp_path / "lab.yaml").write_text("kind: esn\nnodes: 12\ninputs: 1\n")
    process = started("serve", "lab.yaml", "--bind", address, "--json", cwd=tmp_path)
    assert process.stderr is not None
    events = [json.loads(process.stderr.readline())]
    with open_reservoir({"kind": "zmq", "address": address}) as far:
        far.run(np.zeros((1, 7, 1)))
    process.terminate()
    output, errors = process.communicate(timeout=30)
    events += map(json.loads, errors.splitlines())
    assert process.returncode == 0
    assert output == ""
    assert [event["event"] for event in events] == ["serving", "leased", "goodbye", "stopped"]
    assert events[0]["address"] == address
    assert events[-1]["status"]["traffic"]["clients"] == 1
    assert {"time", "level", "logger", "message"} <= events[0].keys()


@pytest.mark.slow
def test_a_server_goes_down_safely_in_the_middle_of_a_run(tmp_path: Path, address: str) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    (tmp_path / "lab.yaml").write_text(SLOW)
    (tmp_path / "narma.yaml").write_text(NARMA)
    far = client(tmp_path, address)
    with serving("lab.yaml", "--bind", address, cwd=tmp_path, end=None) as server:
        (tmp_path / "safe").unlink()
        # Each chunk holds the device for longer than the client's patience with a dead one; more are on their way.
        over = ["--set", "run.chunk_steps=8", "--set", "reservoir.timeout_s=0.5"]
        run = started("run", "narma.yaml", "--reservoir", far, *over, cwd=tmp_path)
        while not (tmp_path / "driven").exists() and run.poll() is None:
            time.sleep(0.01)
        server.terminate()
        _, errors = run.communicate(timeout=30)
        assert run.returncode == 3, errors
        assert "the server is shutting down" in errors
        assert "Traceback" not in errors
        _, errors = server.communicate(timeout=30)
        assert server.returncode == 0, errors
    assert (tmp_path / "safe").exists()


@pytest.mark.slow
def test_a_second_signal_does_not_wait(tmp_path: Path, address: str) -> None:
    (tmp_path / "bench.py").write_text(BENCH.replace("0.4", "60"))
    (tmp_path / "lab.yaml").write_text(SLOW)
    (tmp_path / "narma.yaml").write_text(NARMA)
    far = client(tmp_path, address)
    with serving("lab.yaml", "--bind", address, cwd=tmp_path, end=None) as server:
        (tmp_path / "safe").unlink()
        quiet = subprocess.DEVNULL
        run = started("run", "narma.yaml", "--reservoir", far, cwd=tmp_path, stdout=quiet, stderr=quiet)
        while not (tmp_path / "driven").exists() and run.poll() is None:
            time.sleep(0.01)
        while server.poll() is None:
            server.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert server.returncode == 130
        run.kill()
        run.wait()
    assert (tmp_path / "safe").exists()


@pytest.mark.slow
def test_the_way_to_the_safe_state_is_not_interrupted(tmp_path: Path, address: str) -> None:
    safe = 'time.sleep(2)\n    pathlib.Path("safe").touch()'
    (tmp_path / "bench.py").write_text(BENCH.replace('pathlib.Path("safe").touch()', safe))
    (tmp_path / "lab.yaml").write_text(SLOW)
    with serving("lab.yaml", "--bind", address, cwd=tmp_path, end=None) as server:
        (tmp_path / "safe").unlink()
        with open_reservoir({"kind": "zmq", "address": address}) as device:
            device.run(np.zeros((1, 1, 1)))
            server.send_signal(signal.SIGTERM)
            while server.poll() is None:
                time.sleep(0.2)
                server.send_signal(signal.SIGTERM)
    assert (tmp_path / "safe").exists()


HOMING = """\
import pathlib, time

opened = 0

def note(word):
    with pathlib.Path("notes").open("a") as notes:
        notes.write(f"{word}\\n")

def drive(u):
    return u

def rest():
    global opened
    opened += 1
    note("laser on")
    if opened > GOOD:
        raise RuntimeError("stage not homed")

def safe():
    note("closing")
    time.sleep(1.5 if opened > GOOD else 0)
    note("laser off")
"""
HOMED = """\
kind: python
call: homing:drive
reset_call: homing:rest
close_call: homing:safe
inputs: 1
nodes: 1
simulated: true
continuity: held
"""


def signalled(process: subprocess.Popen[str], notes: Path, closings: int) -> list[str]:
    """What a process noted that got two signals on its way to its safe state for that many times."""
    while not notes.exists() or notes.read_text().count("closing") < closings:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.6)
    process.wait(30)
    return notes.read_text().split("\n")[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("good", [0, 1], ids=["at the start", "for a client"])
def test_the_way_to_the_safe_state_after_a_failed_opening_is_not_interrupted(
    tmp_path: Path, address: str, good: int
) -> None:
    (tmp_path / "homing.py").write_text(HOMING.replace("GOOD", str(good)))
    (tmp_path / "lab.yaml").write_text(HOMED)
    if not good:
        process = started("serve", "lab.yaml", "--bind", address, cwd=tmp_path)
        assert signalled(process, tmp_path / "notes", 1) == ["laser on", "closing", "laser off"]
        assert process.returncode == 3
        assert "stage not homed" in process.communicate()[1]
        return
    with serving("lab.yaml", "--bind", address, cwd=tmp_path, end=None) as server:
        quiet = subprocess.DEVNULL
        far = client(tmp_path, address)
        asking = started("device", "info", far, cwd=tmp_path, stdout=quiet, stderr=quiet)
        assert signalled(server, tmp_path / "notes", 2) == 2 * ["laser on", "closing", "laser off"]
        assert asking.wait(30) == 3
        assert server.returncode == 0


@pytest.mark.slow
def test_a_device_that_was_left_unsafe_is_the_status_of_the_server(tmp_path: Path, address: str) -> None:
    broken = 'note("closing")\n    if opened > 1:\n        raise RuntimeError("the interlock does not answer")'
    (tmp_path / "homing.py").write_text(HOMING.replace("GOOD", "9").replace('note("closing")', broken))
    (tmp_path / "lab.yaml").write_text(HOMED)
    far = client(tmp_path, address)
    with serving("lab.yaml", "--bind", address, cwd=tmp_path, end=None) as server:
        call("device", "info", far, "--no-drive", cwd=tmp_path)
        done = call("device", "info", far, "--no-drive", cwd=tmp_path, code=3)
        assert "the interlock does not answer" in done.stderr
        assert "Nobody gets it in this condition" in done.stderr
        server.terminate()
        _, errors = server.communicate(timeout=30)
        assert server.returncode == 3, errors
        assert "device: the device could not be brought to its safe state" in errors.splitlines()[-1]


# What the recipe of docs/zeromq.md does, by a class whose closing takes long.
RECIPE = """\
import sys
import homing
from reservoir_hw import Identity, Reservoir, ReservoirSpec
from reservoir_hw.serving import Server

class Film(Reservoir):
    def _run(self, u, out):
        return u
    def _reset(self, batch):
        homing.rest()
    def _close(self):
        homing.safe()

who = Identity(vendor="lab", model="film", serial="7", simulated=False)
Server(Film(ReservoirSpec(inputs=1, nodes=1, identity=who)), sys.argv[1]).run(lambda: print("ready", flush=True))
"""


@pytest.mark.parametrize(
    "ending", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_server_of_ones_own_ends_safely_by_a_signal(tmp_path: Path, address: str, ending: int) -> None:
    slow = HOMING.replace("time.sleep(1.5 if opened > GOOD else 0)", "time.sleep(1 if opened > 1 else 0)")
    (tmp_path / "homing.py").write_text(slow.replace("GOOD", "9"))
    (tmp_path / "film.py").write_text(RECIPE)

    def listen() -> None:
        # A shell that runs this in the background ignores SIGINT, `nohup` SIGHUP, and children inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        [sys.executable, "film.py", address], cwd=tmp_path, **pipes, text=True, preexec_fn=listen
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    with open_reservoir({"kind": "zmq", "address": address}) as far:
        far.run(np.zeros((1, 3, 1)))
        for _ in range(2):
            process.send_signal(ending)
            time.sleep(0.6)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert (tmp_path / "notes").read_text().split() == 2 * ["laser", "on", "closing", "laser", "off"]


# ---- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bind", "tcp://0.0.0.0:5555"], "can be reached by other hosts: give keys .* --insecure"),
        (["--bind", "5555"], "is not tcp://host:port"),
        (["--bind", "tcp://127.0.0.1:x"], "is not tcp://host:port"),
        (["--bind", "ipc:///no/such/folder/x"], "cannot listen at ipc:///no/such/folder/x: No such file"),
        (["--bind", "unix:///no/such/folder/x"], "cannot listen at unix:///no/such/folder/x: No such file"),
        (["--bind", "unix:///tmp/x", "--control", "tcp://127.0.0.1:5555"], "both unix addresses, or none is"),
        (["--bind", "tcp://[zz]:5555"], "is not tcp://host:port"),
        (["--bind", "ipc:///tmp/\udcff"], "printable text"),
        (["--bind", "ipc://*"], "name one"),
        (["--bind", "tcp://127.0.0.1:65535"], "tcp://127.0.0.1:65535: there is no port behind it"),
        (["--max-message", "lots"], "write a number of bytes"),
        (["--max-message", "1K"], "max_frame_bytes at least 4096"),
        (["--lease", "0"], "lease_s must be"),
        (["--secret-key", "x"], "belong together"),
        (["--secret-key", "x", "--clients", "nowhere"], "nowhere is not a folder"),
        (["--inputs", "2", "--set", "input_mask=none"], "2 channels for 1 input .*`input_mask: none`"),
        (["--set", "nodes=-1"], "nodes = -1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "says",
)
def test_one_sentence_for_each_mistake(tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "lab.yaml").write_text("kind: esn\nnodes: 3\ninputs: 1\n")
    done = call("serve", "lab.yaml", *options, cwd=tmp_path, code=2)
    assert re.search(message, done.stderr)
    assert len(done.stderr.strip().splitlines()) == 1


def test_inputs_must_be_known(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("kind: esn\nnodes: 3\n")
    assert "--inputs N" in call("serve", "lab.yaml", cwd=tmp_path, code=2).stderr
    (tmp_path / "narma.yaml").write_text(NARMA)
    done = call("serve", "narma.yaml", "--inputs", 2, cwd=tmp_path, code=2)
    assert "its task has 1 input channels, not 2" in done.stderr


@pytest.mark.slow
def test_mistakes_between_two_processes(tmp_path: Path, address: str) -> None:
    (tmp_path / "narma.yaml").write_text(NARMA)
    (tmp_path / "three.yaml").write_text("kind: esn\nnodes: 3\n")
    far = client(tmp_path, address)
    run = ["run", "narma.yaml", "--reservoir", far]
    done = call(*run, "--set", "reservoir.timeout_s=0.5", cwd=tmp_path, code=3)
    assert "no connection within 0.5 s" in done.stderr
    assert "Is the server running" in done.stderr
    with serving("three.yaml", "--inputs", 3, "--bind", address, "--insecure", cwd=tmp_path):
        assert "cannot listen at" in call("serve", "narma.yaml", "--bind", address, cwd=tmp_path, code=2).stderr
        wanted = call(*run, "--set", "reservoir.inputs=1", cwd=tmp_path, code=2)
        assert "has 3 inputs, but 1 are wanted" in wanted.stderr
        done = call(*run, "--set", "reservoir.input_mask=none", cwd=tmp_path, code=2)
        assert "`input_mask: none` refuses to spread" in done.stderr
        with open_reservoir({"kind": "zmq", "address": address}):
            done = call(*run, cwd=tmp_path, code=3)
            assert "is in use by" in done.stderr
            assert f"(process {os.getpid()})" in done.stderr


# What is wrong: the own key, the server's, that there is none.
STRANGERS = {
    "{server_key: bench.key, key: berta.key_secret}": "does not let us in",
    "{server_key: berta.key, key: anna.key_secret}": "not the device that security.server_key belongs to",
    "null": "it asks for keys",
}


@pytest.mark.slow
def test_whoever_has_no_key_learns_nothing(tmp_path: Path, address: str) -> None:
    (tmp_path / "narma.yaml").write_text(NARMA)
    for name in ("bench", "anna", "berta"):
        make_keys(tmp_path, name)
    (tmp_path / "clients").mkdir()
    shutil.copy(tmp_path / "anna.key", tmp_path / "clients")
    options = ["--secret-key", "bench.key_secret", "--clients", "clients", "--json"]
    with serving("narma.yaml", "--bind", address, *options, cwd=tmp_path, end=None) as server:
        for security, message in STRANGERS.items():
            far = client(tmp_path, address, f"security: {security}\n")
            done = call("run", "narma.yaml", "--reservoir", far, cwd=tmp_path, code=3)
            (said,) = (line for line in done.stderr.splitlines() if line.startswith("device:"))
            assert message in said
            assert "esn" not in said
        server.terminate()
        _, errors = server.communicate(timeout=30)
        last = json.loads(errors.splitlines()[-1])
        assert last["event"] == "stopped"
        assert set(last["status"]["traffic"].values()) == {0}


@pytest.mark.slow
def test_the_example(tmp_path: Path, address: str) -> None:
    shutil.copytree(Path(__file__).parents[2] / "examples/remote", tmp_path / "examples/remote")
    folder = tmp_path / "examples/remote"
    small = ["--set", "task.train_steps=600", "--set", "task.test_steps=300", "--json"]
    there = ["--reservoir", folder / "bench.yaml", "--set", f"reservoir.address={address}"]
    with serving(folder / "experiment.yaml", "--bind", address, cwd=tmp_path):
        call("device", "info", folder / "bench.yaml", "--set", f"address={address}", cwd=tmp_path)
        far = json.loads(call("run", folder / "experiment.yaml", *small, *there, cwd=tmp_path).stdout)
    near = json.loads(call("run", folder / "experiment.yaml", *small, cwd=tmp_path).stdout)
    assert [row["metrics"] for row in far["rows"]] == [row["metrics"] for row in near["rows"]]
