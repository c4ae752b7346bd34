"""The plugin for pytest: real sessions in processes of their own, on simulations, functions of a lab and servers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import free_address, served
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.testing import plugin

PLUGINS = [plugin.__name__, "pytest_rerunfailures"]
ALONE = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
for name in ("CI", "PYTEST_ADDOPTS", "RESERVOIR_HW_WAIT_S"):
    ALONE.pop(name, None)

NARMA = """\
task: {kind: narma, train_steps: 400, test_steps: 200}
reservoir: {kind: esn, nodes: 60}
readout: {kind: ridge, washout: 50}
training: {test_warmup_steps: 50}
"""
MEMORY = """\
import numpy as np
from reservoir_hw.testing import task_metrics

def test_memory(reservoir, record_property):
    metrics = task_metrics(reservoir, "narma.yaml")
    record_property("nrmse", metrics["nrmse"])
    assert metrics["nrmse"] < 0.9

def test_as_its_twin(reservoir, reservoir_twin):
    u = np.random.default_rng(0).uniform(-1, 1, (1, 50, 1)).astype("float32")
    assert np.array_equal(reservoir.run(u), reservoir_twin.run(u))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sessions run. No settings of this repository reach it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\njunit_family = legacy\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments: str) -> subprocess.Popen[str]:
    chosen = [word for name in PLUGINS for word in ("-p", name)]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *chosen, "-p", "no:cacheprovider", "--junitxml=junit.xml", "-rA", *arguments],
        env=ALONE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def session(*arguments: str) -> tuple[int, str]:
    """The exit status, and what pytest said."""
    with start(*arguments) as process:
        said, _ = process.communicate(timeout=120)
    return process.returncode, said


def wait_for(text: str, process: subprocess.Popen[str]) -> str:
    """The line in which a session says it."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"the session ended without saying {text!r}")


def cases() -> dict[str, list[dict[str, str]]]:
    """From JUnit: the properties of each attempt of each test, with what went wrong in `problem`."""
    found: dict[str, list[dict[str, str]]] = {}
    for case in ElementTree.parse("junit.xml").iter("testcase"):
        facts = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        problems = [one for one in case if one.tag in ("failure", "error", "skipped")]
        facts["problem"] = problems[0].attrib["message"] if problems else ""
        found.setdefault(case.attrib["name"], []).append(facts)
    return found


@pytest.mark.slow
def test_nothing_is_imported_before_it_is_needed(folder: Path) -> None:
    assert "reservoir_hw.testing.plugin" in [one.value for one in entry_points(group="pytest11")]
    (folder / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n    print(*sorted(n for n in sys.modules if 'reservoir_hw' in n))\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    status, said = session()
    assert status == 0, said
    core = ["reservoir_hw.core", "reservoir_hw.core.errors", "reservoir_hw.core.lazy", "reservoir_hw.core.threads"]
    assert " ".join(["reservoir_hw", *core, "reservoir_hw.testing", plugin.__name__]) + "\n" in said


@pytest.mark.slow
def test_the_same_test_on_a_simulation_a_server_and_a_recording(folder: Path) -> None:
    (folder / "test_film.py").write_text(MEMORY)
    (folder / "narma.yaml").write_text(NARMA)
    film = {"kind": "esn", "nodes": 60, "inputs": 1, "seed": 3}
    (folder / "film.yaml").write_text("kind: esn\nnodes: 60\nseed: 3\nhil: {twin: film.yaml}\n")
    address = free_address()
    (folder / "remote.yaml").write_text(f"kind: zmq\naddress: {address}\nhil: {{twin: film.yaml}}\n")
    with served(open_reservoir(film), address):
        status, said = session("--reservoir=film.yaml", "--reservoir=remote.yaml", "--reservoir-record=monday")
    assert status == 0, said
    there = cases()
    # Without the server.
    status, said = session("--reservoir=remote.yaml", "--reservoir-replay=monday")
    assert status == 0, said
    again = cases()["test_memory[remote]"][0]
    (simulated,), (remote,) = there["test_memory[film]"], there["test_memory[remote]"]
    assert simulated["nrmse"] == remote["nrmse"] == again["nrmse"]
    assert simulated["fingerprint"] == remote["fingerprint"] == again["fingerprint"]
    assert simulated["configuration_hash"] != remote["configuration_hash"]
    assert (remote["attempts"], remote["first_error"], remote["simulated"]) == ("1", "", "True")
    assert "firmware" in remote


LAB = """\
from pathlib import Path

def log(line):
    with open("log.txt", "a") as file:
        file.write(line + "\\n")

def measure(u):
    if Path("broken").exists():
        raise RuntimeError("the amplifier has tripped")
    return [[x[0], 0.0] for x in u]

def rest(): pass
def setup():
    log("opened")
    measure([])
def safe(): log("safe")
def recover(config):
    log("recovered")
    if Path("stuck").exists():
        Path("stuck").unlink()
        return False
    Path("broken").unlink(missing_ok=True)
"""
BENCH = """\
kind: python
call: lab:measure
setup_call: lab:setup
reset_call: lab:rest
close_call: lab:safe
inputs: 1
nodes: 2
simulated: false
continuity: held
firmware: r7
hil: {recover: "lab:recover", twin: twin.yaml}
"""
FLAKY = """\
from pathlib import Path
import numpy as np, pytest
from reservoir_hw.core.errors import DeviceBusy, DeviceTimeout, StateLost

tried = []

def test_opened(reservoir): pass

def test_flaky(reservoir):
    tried.append("flaky")
    if tried.count("flaky") == 1:
        Path("broken").touch()
    assert reservoir.at_rest
    reservoir.run(np.zeros((1, 5, 1)))

def test_expected(reservoir):
    Path("broken").touch()
    with pytest.raises(Exception, match="tripped"):
        reservoir.run(np.zeros((1, 5, 1)))

def test_after_it(reservoir):
    reservoir.run(np.zeros((1, 5, 1)))
    Path("broken").touch()
    with pytest.raises(Exception, match="tripped"):
        reservoir.run(np.zeros((1, 5, 1)))
    reservoir.close()

def test_after_closing(reservoir):
    reservoir.run(np.zeros((1, 5, 1)))

def test_wrong(reservoir):
    try:
        raise DeviceTimeout("too slow")
    except DeviceTimeout:
        assert tried == []

@pytest.mark.flaky(reruns=5)
def test_lost(reservoir):
    try:
        raise DeviceTimeout("too slow")
    except DeviceTimeout as error:
        raise StateLost("gone") from error

def test_busy(reservoir):
    raise DeviceBusy("it is in use by Ada; she had a DeviceTimeout")

@pytest.fixture
def amplifier(reservoir):
    yield
    raise DeviceTimeout("the amplifier did not answer")

def test_wrong_and_late(amplifier):
    assert tried == []

def test_always(reservoir):
    raise DeviceTimeout("too slow")

@pytest.mark.reservoir_simulation
def test_simulation(reservoir): raise AssertionError

@pytest.mark.reservoir_hardware
def test_hardware(reservoir): pass

@pytest.mark.reservoir_needs("deterministic", "snapshot")
def test_snapshot(reservoir): raise AssertionError

def test_twin(reservoir_twin): raise AssertionError

def test_stuck(reservoir):
    Path("stuck").touch()
    raise DeviceTimeout("too slow")

def test_after_stuck(reservoir): pass
"""


@pytest.mark.slow
def test_flaky_hardware(folder: Path) -> None:
    (folder / "lab.py").write_text(LAB)
    (folder / "bench.yaml").write_text(BENCH)
    (folder / "twin.yaml").write_text("kind: esn\nnodes: 3\n")
    (folder / "test_bench.py").write_text(FLAKY)
    (folder / "broken").touch()
    status, said = session("--reservoir=bench.yaml", "--reruns=2", "--reservoir-html=page.html")
    assert status == 1, said
    found = {name.removesuffix("[bench]"): attempts for name, attempts in cases().items()}
    fault = "DeviceFault: lab:measure in steps 0 to 4 (lab.py:9): RuntimeError: the amplifier has tripped"
    last = {name: attempts[-1] for name, attempts in found.items()}
    assert (last["test_flaky"]["attempts"], last["test_flaky"]["problem"]) == ("2", "")
    assert fault in last["test_flaky"]["first_error"]
    assert last["test_flaky"]["firmware"] == "r7"
    tried = {name: facts["attempts"] for name, facts in last.items() if facts["attempts"] != "1"}
    assert tried == {
        "test_opened": "2",
        "test_flaky": "2",
        "test_always": "3",
        "test_stuck": "3",
        "test_after_stuck": "2",
    }
    stuck = "DeviceFault: the device was not recovered: lab:recover returned False (hil: recover:)"
    assert last["test_after_stuck"]["first_error"] == stuck
    for name in ("test_after_it", "test_after_closing"):
        assert last[name]["problem"] == "", "a fault that a test expected was left to the next one"
    assert last["test_simulation"]["problem"] == "bench is hardware, and the test is for simulations"
    assert last["test_snapshot"]["problem"] == "bench has no deterministic: it does not declare it"
    assert last["test_hardware"]["problem"] == ""
    assert "hil.twin of bench has 3 nodes, and the device 2" in last["test_twin"]["problem"]
    # Once for all tests, and again after each fault; a device that somebody else has is left alone.
    log = (folder / "log.txt").read_text().split()
    again = ["safe", "recovered", "opened"]
    faults = [
        "test_opened",
        "test_flaky",
        "test_expected",
        "test_after_it",
        "test_wrong_and_late",
        *3 * ["test_always"],
    ]
    assert log == ["opened", *len(faults) * again, *2 * ["safe", "recovered", "recovered", "opened"], "safe"]
    page = (folder / "page.html").read_text()
    row = next(line for line in page.splitlines() if "test_flaky" in line)
    assert re.search(r'"passed">passed</td><td class="number">2</td><td>DeviceFault: .*hardware', row)
    assert "http" not in page


GOLDEN = """\
import numpy as np, pytest

U = np.random.default_rng(0).uniform(-1, 1, (1, 40, 1))

def test_same(golden_trace): golden_trace(U)
def test_gain(golden_trace, request): golden_trace(U if UPDATE else 1.02 * U, "gain")
def test_any(golden_trace): golden_trace(U, any_device=True)
def test_twice(golden_trace): golden_trace(U), golden_trace(U)
def test_missing(golden_trace): golden_trace(U, "missing")
def test_late(request): request.getfixturevalue("golden_trace")
def test_fault(golden_trace): golden_trace(np.nan * U)
def test_nothing(golden_trace): golden_trace(U[:, :0])

class TestLow:
    def test_same(self, golden_trace): golden_trace(U / 2)

@pytest.mark.parametrize("channel", ["a/b", "a_b"])
def test_same_channel(golden_trace, channel): golden_trace(U if channel == "a/b" else -U)

@pytest.mark.parametrize("name", ["", ".", "..", "a/b", 101 * "x", 3])
def test_name(golden_trace, name): golden_trace(U, name)

@pytest.mark.reservoir_needs("deterministic")
def test_same_bits(reservoir): reservoir.run(U / 3)
"""


@pytest.mark.slow
def test_golden_traces(folder: Path) -> None:
    (folder / "film.yaml").write_text("kind: esn\nnodes: 20\nseed: 1\nnonidealities: memristive_film\n")
    (folder / "exact.yaml").write_text("kind: esn\nnodes: 20\nseed: 2\n")
    (folder / "test_golden.py").write_text(f"UPDATE = True\n{GOLDEN}")
    both = ("--reservoir=film.yaml", "--reservoir=exact.yaml")
    session(*both, "--update-golden-traces", "-k", "not missing")
    recorded = {name: attempts[-1]["problem"] for name, attempts in cases().items()}
    refused = {name.partition("[")[0] for name, problem in recorded.items() if problem}
    assert refused == {
        "test_any",
        "test_late",
        "test_fault",
        "test_nothing",
        "test_twice",
        "test_name",
        "test_same_bits",
    }
    assert recorded["test_any[film]"] == ""
    assert (
        "test_golden.test_any was just recorded by test_golden.py::test_any[film], and" in recorded["test_any[exact]"]
    )
    assert "name the fixture among the arguments of the test" in recorded["test_late"]
    assert "of at least one step, not (1, 0, 1)" in recorded["test_nothing[film]"]
    assert "give each drive a name of its own" in recorded["test_twice[film]"]
    names = [problem for name, problem in recorded.items() if name.startswith("test_name")]
    assert len(names) == 12
    assert all("is no name of a golden trace" in problem for problem in names)
    (folder / "test_golden.py").write_text(f"UPDATE = False\n{GOLDEN}")
    (folder / "exact.yaml").write_text("kind: esn\nnodes: 20\nseed: 3\n")
    before = sorted((folder / "golden_traces").rglob("*"))
    # One for any device, and six of each.
    assert len(list((folder / "golden_traces").iterdir())) == 1 + 2 * 6
    status, said = session(*both, "--reservoir-record=monday", "-k", "not name and not twice")
    assert status == 1
    problems = {name: attempts[-1]["problem"] for name, attempts in cases().items()}
    same = [one["problem"] for name, tests in cases().items() if re.match(r"test_same.*film", name) for one in tests]
    assert same == [*4 * [""], "film has no deterministic: it does not declare it"]
    assert "was recorded with other inputs" in problems["test_gain[film]"]
    assert problems["test_any[film]"] == ""
    assert "there is no golden trace" in problems["test_missing[film]"]
    assert "--update-golden-traces records it" in problems["test_missing[film]"]
    assert "was recorded on another device" in problems["test_same[exact]"]
    # The film has dead nodes.
    assert "the device answers otherwise: p = " in problems["test_any[exact]"]
    assert "test_golden.py:7: Failed" in said, "the line of the test is not shown"
    # The recording of a device is compared as the device is, and can do no more.
    status, said = session("--reservoir=film.yaml", "--reservoir-replay=monday", "-k", "same or any")
    assert status == 0, said
    assert "film has no deterministic" in cases()["test_same_bits[film]"][0]["problem"]
    assert sorted((folder / "golden_traces").rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "2"], "-n: remote is a device that one process has at a time, so its tests cannot run side by side"),
        (["--reservoir=other.yaml"], "--reservoir other.yaml: "),
        (["--reservoir-replay=monday"], "there is no trace monday/remote; --reservoir-record makes it"),
        (["--reservoir-record=there"], "there is a recording there/remote already"),
        (["--reservoir-wait=soon"], "'soon' is no number of seconds"),
        (["--reservoir-wait=inf"], "'inf' is no number of seconds"),
        (["-n", "2", "--reservoir-record=monday"], "-n: --reservoir-record needs the tests in one process"),
        (
            ["--reservoir-html=pytest.ini/page.html"],
            "--reservoir-html pytest.ini/page.html: no file can be written there",
        ),
        (["--update-golden-traces"], "the environment variable CI is set"),
        (
            ["needs('snapshots')"],
            "test_it.py::test_it: reservoir_needs('snapshots'): there is no such capability; there are",
        ),
        (["needs()"], "test_it.py::test_it: write what the test needs as in reservoir_needs('snapshot')"),
        (["needs(capability='snapshot')"], "write what the test needs as in reservoir_needs('snapshot')"),
        (["hardware('foo')"], "test_it.py::test_it: the marker reservoir_hardware takes nothing in brackets"),
    ],
)
def test_wrong_requests(
    folder: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (folder / "remote.yaml").write_text("kind: zmq\naddress: tcp://127.0.0.1:9\n")
    (folder / "there" / "remote").mkdir(parents=True)
    markers = [one for one in arguments if not one.startswith("-") and one != "2"]
    arguments = [one for one in arguments if one not in markers]
    (folder / "test_it.py").write_text(
        "import pytest\n\n" + "".join(f"@pytest.mark.reservoir_{one}\n" for one in markers) + "def test_it(): pass\n"
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("CI", "true")
    monkeypatch.delitem(sys.modules, "test_it", raising=False)
    chosen = [word for name in ["xdist.plugin", *PLUGINS] for word in ("-p", name)]
    status = pytest.main(
        [
            *chosen,
            "-p",
            "no:cacheprovider",
            "-p",
            "no:warnings",
            "--reservoir=remote.yaml",
            *arguments,
        ]
    )
    shown = "".join(capfd.readouterr())
    assert status == pytest.ExitCode.USAGE_ERROR, shown
    lines = [line for line in shown.splitlines() if "error: " in line.lower() and "ERROR: usage:" not in line]
    assert len(lines) == 1, shown
    assert said in lines[0]
    assert "Traceback" not in shown


class Slow(Toy):
    """A device whose drive takes until somebody says so."""

    def __init__(self) -> None:
        super().__init__(inputs=2)
        self.driving, self.go_on, self.safe = threading.Event(), threading.Event(), threading.Event()

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        self.driving.set()
        assert self.go_on.wait(60)
        return super()._run(u, out)

    def _close(self) -> None:
        super()._close()
        self.safe.set()


@pytest.mark.slow
def test_a_killed_session_gives_the_device_back(folder: Path) -> None:
    (folder / "test_it.py").write_text(
        "import numpy as np\n\ndef test_it(reservoir):\n    reservoir.run(np.zeros((1, 5, 2)))\n"
    )
    device, address = Slow(), free_address()
    (folder / "remote.yaml").write_text(f"kind: zmq\naddress: {address}\n")
    with served(device, address, lease_s=1):
        with start("--reservoir=remote.yaml") as first:
            assert device.driving.wait(60)
            device.safe.clear()
            first.send_signal(signal.SIGKILL)
        with start("--reservoir=remote.yaml", "--reservoir-wait=60") as second:
            assert re.search(f"is in use by .*{first.pid}.*: waiting for at most 60 s", wait_for("waiting", second))
            device.go_on.set()
            assert device.safe.wait(60)
            said, _ = second.communicate(timeout=60)
        assert second.returncode == 0, said
        assert "1 passed" in said


@pytest.mark.slow
def test_a_session_that_is_terminated_leaves_the_device_safe(folder: Path) -> None:
    (folder / "lab.py").write_text(LAB)
    (folder / "bench.yaml").write_text(BENCH)
    (folder / "test_it.py").write_text(
        "import time\n\ndef test_it(reservoir):\n    print('here')\n    time.sleep(60)\n"
    )
    with start("--reservoir=bench.yaml", "-s") as process:
        wait_for("here", process)
        process.terminate()
        assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert (folder / "log.txt").read_text().split() == ["opened", "safe"]
