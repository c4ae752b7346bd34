"""`reservoir-hw device`: what a device is, how fast it answers, keys."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import stat
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import alone
from ruamel.yaml import YAML
from serial.tools import list_ports
from serial.tools.list_ports_common import ListPortInfo
from served import ipc_address, served
from toys import Toy

from reservoir_hw.backends.visa.reservoir import VisaConfig
from reservoir_hw.cli import device
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.core.spec import Identity
from reservoir_hw.drivers.zeromq.security import read_pair, read_public
from reservoir_hw.emulators.board.line import emulated_board
from reservoir_hw.emulators.lab import DIALECTS, virtual_lab
from reservoir_hw.experiment.devices.info import look_at

call = alone("device", device.app)


@pytest.fixture(params=["ipc", "unix"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with ipc_address(request.param) as address:
        yield address


@pytest.fixture
def esn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "lab.yaml"
    path.write_text("kind: esn\nnodes: 20\n")
    return path


def test_a_simulation(esn: Path) -> None:
    done = call("info", esn, "--inputs", 2)
    for text in ("reservoir_hw esn", "a simulation", "fingerprint", "held", "settable", "99th percentile", "MB/s"):
        assert text in done.stdout
    assert "Its status" not in done.stdout
    found = json.loads(call("info", esn, "--inputs", 2, "--json", "--set", "nodes=30").stdout)
    assert found["kind"] == "esn"
    assert found["identity"]["simulated"] is True
    assert (found["spec"]["inputs"], found["spec"]["nodes"]) == (2, 30)
    assert found["round_trip"]["steps"] == 300
    assert 0 < found["round_trip"]["p50_s"] <= found["round_trip"]["p99_s"]
    run = found["throughput"]
    assert run["bytes_per_s"] == pytest.approx(run["steps_per_s"] * 32 * 4)
    assert found["server"] is None


def test_the_reservoir_of_an_experiment(esn: Path) -> None:
    esn.write_text("task: {kind: narma}\nreservoir: {kind: esn, nodes: 7}\nreadout: {kind: ridge}\n")
    found = json.loads(call("info", esn, "--no-drive", "--json").stdout)
    assert (found["spec"]["inputs"], found["spec"]["nodes"]) == (1, 7)


@pytest.mark.slow
def test_a_served_device(esn: Path, address: str) -> None:
    esn.write_text(f"kind: zmq\naddress: {address}\n")
    with served(Toy(input_range=(0, 1)), address):
        done = call("info", esn)
        assert "Its status" in done.stdout
        assert address in done.stdout
        found = json.loads(call("info", esn, "--json").stdout)
    assert found["server"]["address"] == address
    assert found["server"]["traffic"]["clients"] == 2
    assert str(os.getpid()) in found["server"]["holder"]
    assert found["settings"]["incidents"] == {"repeated": 0, "stale": 0, "damaged": 0}
    assert found["throughput"]["steps"] > 1000


@pytest.mark.parametrize("continuity", ["held", "replayed", "free_running"])
def test_a_device_is_driven_within_its_range_from_rest_and_left_at_rest(continuity: Any) -> None:
    memory = {"memory_steps": 3} if continuity == "replayed" else {}
    with Toy(input_range=(0.25, 0.5), continuity=continuity, **memory) as toy:
        info = look_at(toy, "toy", seconds=0.3)
        driven = np.concatenate([u.reshape(-1) for u in toy.driven])
        assert 0.25 <= driven.min() < driven.max() <= 0.5
        assert toy.at_rest
        assert len(toy.resets) >= 3
        assert info.round_trip is not None
        assert info.throughput is not None


def test_a_device_that_must_not_be_driven() -> None:
    with Toy(identity=Identity(vendor="lab", model="film", serial="7", simulated=False)) as toy:
        opened = len(toy.resets)
        info = look_at(toy, "toy", drive=False)
        assert toy.driven == []
        assert len(toy.resets) == opened
    assert info.round_trip is info.throughput is None
    said = {name: text for _, facts in info.sections() for name, text in facts}
    assert said["is"] == "hardware"
    assert said["serial"] == "7"
    assert "--no-drive" in said["not measured"]


class Slow(Toy):
    """A hundredth of a second a step."""

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        time.sleep(0.01 * u.shape[1])
        return super()._run(u, out)


def test_a_slow_device_is_asked_for_few_steps() -> None:
    with Slow() as slow:
        began = time.monotonic()
        info = look_at(slow, "slow", seconds=0.5)
        assert time.monotonic() - began < 2
        assert slow.counters.steps < 150
    assert info.round_trip is not None
    assert 0.01 <= info.round_trip.p50_s < 0.03
    assert info.throughput is not None
    assert 30 < info.throughput.steps_per_s <= 100


def test_what_cannot_be_driven_says_why(esn: Path) -> None:
    esn.write_text("kind: esn\nnodes: 4\nnonidealities: {drive: {bits: 8, range: [-0.1, 0.1]}}\n")
    assert "it could not be driven: input at" in call("info", esn, "--inputs", 1, "--input-range", -1, 1).stdout
    assert call("info", esn, "--inputs", 1).stdout.count("MB/s") == 1
    call("info", esn, "--inputs", 1, "--input-range", 1, -1, code=2)
    assert "--inputs N" in call("info", esn, code=2).stderr


def test_a_faulty_or_absent_device(esn: Path, address: str) -> None:
    esn.write_text(f"kind: zmq\naddress: {address}\ntimeout_s: 0.3\n")
    assert "Is the server running" in call("info", esn, code=3).stderr
    with served(Toy(fails_at=0), address):
        assert "toy fault at step 0" in call("info", esn, code=3).stderr


def test_keys(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    done = call("keys", "bench", "--folder", folder)
    pair = read_pair(folder / "bench.key_secret")
    assert pair.public == read_public(folder / "bench.key")
    assert pair.secret.decode() not in done.output
    for words in ("bench.key_secret stays on this machine", "bench.key may be read by everybody", "--clients DIR"):
        assert words in done.stdout
    assert stat.S_IMODE((folder / "bench.key_secret").stat().st_mode) == 0o600
    before = (folder / "bench.key_secret").read_bytes()
    assert "exists already" in call("keys", "bench", "--folder", folder, code=2).stderr
    assert (folder / "bench.key_secret").read_bytes() == before
    for name in ("../x", "a/b", "..", ""):
        call("keys", name, "--folder", folder, code=2)
    assert "cannot be written to" in call("keys", "x", "--folder", "/proc/nowhere", code=2).stderr


def test_who_answers_at_an_address_and_what_to_write_for_it(address: str) -> None:
    """Emulated instruments, a served device, and one that speaks SCPI over a serial line."""
    keysight, tektronix = DIALECTS["keysight"], DIALECTS["tektronix"]
    with (
        virtual_lab(keysight) as lab,
        virtual_lab(tektronix) as other,
        virtual_lab(DIALECTS["red_pitaya"]) as board,
        served(Toy(), address),
        serial_line(b"ACME,supply,1,0\n") as line,
    ):
        asked = (lab.generator, other.digitizer, address, line)
        done = call("find", *asked)
        found = json.loads(call("find", *asked, "--json").stdout)
        (both,) = json.loads(call("find", board.generator, "--json").stdout)
    assert [one["way"] for one in found] == ["visa", "visa", "zeromq", "visa"]
    for one in found:
        assert (
            f"{one['address']} ({one['way']}): {one['identity']}\n    {one['snippet'].splitlines()[0]}\n" in done.stdout
        )
    assert [one["identity"].split(",")[0] for one in found] == [
        "Keysight Technologies", "TEKTRONIX", "tests toy", "ACME",
    ]  # fmt: skip
    # One kind in two roles.
    assert {name: section["kind"] for name, section in YAML(typ="safe", pure=True).load(both["snippet"]).items()} == {
        "generator": "red_pitaya", "digitizer": "red_pitaya",
    }  # fmt: skip
    # Together they are a reservoir file.
    text = "kind: visa\ndevice_name: film\nsimulated: false\ninputs: 1\nnodes: 5\ntheta_s: 1e-5\nmemory_steps: 3\n"
    text += "channels: {monitor: 2}\n" + "".join(found[k]["snippet"] for k in (0, 1, 3))
    sections = YAML(typ="safe", pure=True).load(text)
    sections["digitizer"]["inputs"][2] = {"range_v": [-1, 1]}
    config = validate(VisaConfig, Document.from_mapping(json.loads(json.dumps(sections)), "snippets"))
    assert (config.generator.kind, config.digitizer.kind) == (keysight.generator_kind, tektronix.digitizer_kind)
    assert (config.generator.address, config.knobs["NAME"].address) == (lab.generator, line)
    assert YAML(typ="safe", pure=True).load(found[2]["snippet"]) == {"kind": "zmq", "address": address}

    done = call("find", lab.generator, "XX::1::INSTR", address, "--timeout", 0.1, "--json", code=3)
    for one, said in zip(
        json.loads(done.stdout), ("nobody answers", "is no VISA address", "nobody listens"), strict=True
    ):
        assert said in one["problem"]
        assert one["snippet"] == ""
    call("find", "lab", code=2)


def test_a_board_at_a_serial_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A board that is there, and a line whose other end says nothing.
    with emulated_board(7, 2, link=tmp_path / "board") as line, serial_line(b"") as silent:
        nobody = silent.removeprefix("ASRL").removesuffix("::INSTR")
        done = call("find", line.port, nobody, "/dev/nowhere", "--timeout", 0.3, code=3)
        shown = f"{line.port} (serial): reservoir_hw virtual nodes emulated 1, 2 inputs, 7 nodes\n    kind: serial\n"
        assert shown in done.stdout
        found = json.loads(call("find", line.port, "--json").stdout)
        snippet = YAML(typ="safe", pure=True).load(found[0]["snippet"])
        assert snippet == {"kind": "serial", "port": line.port, "baud": 115200}
        with open_reservoir(snippet) as reservoir:
            assert reservoir.run(np.zeros((1, 3, 2))).shape == (1, 3, 7)
            # Who has it is not disturbed.
            assert "in use by" in call("find", line.port, code=3).stdout
            assert reservoir.run(np.zeros((1, 3, 2))).shape == (1, 3, 7)

        # All that this computer has: without --serial nothing is sent to them.
        monkeypatch.setattr(list_ports, "comports", lambda: [ListPortInfo(line.port), ListPortInfo(nobody)])
        listed = json.loads(call("find", "--json", "--library", "@nowhere").stdout)
        assert [one["snippet"].split(":")[0] for one in listed] == ["knobs", "knobs"]
        assert line.board.sessions == 1
        asked = json.loads(call("find", "--serial", "--timeout", 0.3, "--json", "--library", "@nowhere").stdout)
        assert asked[0] == found[0]
        assert "nobody answers" in asked[1]["problem"]
        call("find", "--serial", line.port, code=2)


SHELF = """
import os, warnings
from pyvisa_py.highlevel import PyVisaLibrary

class WRAPPER_CLASS(PyVisaLibrary):
    def list_resources(self, session, query="?*::INSTR"):
        warnings.warn("USB is not searched", UserWarning)
        return tuple(os.environ["SHELF"].split())
"""


def test_what_shows_itself_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A VISA library that finds what is on the shelf; its instruments are on real sockets."""
    (tmp_path / "pyvisa_shelf.py").write_text(SHELF)
    monkeypatch.syspath_prepend(tmp_path)
    nobody = "TCPIP::127.0.0.1::1::SOCKET"
    with virtual_lab(DIALECTS["keysight"]) as lab:
        monkeypatch.setenv("SHELF", f"{lab.generator} ASRL/dev/ttyS9::INSTR {lab.digitizer} {nobody}")
        # With nobody where somebody was it has done its work, too: no address was given.
        done = call("find", "--library", "@shelf", "--json")
        said = call("find", "--library", "@shelf").stderr
    found = json.loads(done.stdout)
    instruments = [one for one in found if one["way"] == "visa"]
    assert [one["address"] for one in instruments] == [lab.generator, lab.digitizer, nobody]
    assert [one["snippet"].split(":")[0] for one in instruments] == ["generator", "digitizer", ""]
    assert "nobody answers" in instruments[2]["problem"]
    # They are listed as this computer has them, and not asked.
    ports = [(one["address"], one["identity"] + one["problem"]) for one in found if one["way"] == "serial"]
    named = {port.device: "" if port.description == "n/a" else port.description for port in list_ports.comports()}
    assert dict(ports) == named
    assert "USB is not searched" in said
    call("find", "--library", "@nowhere")


@contextlib.contextmanager
def serial_line(answer: bytes) -> Iterator[str]:
    """The address of a serial port behind which each line is answered."""
    board, port = pty.openpty()
    tty.setraw(board)
    tty.setraw(port)

    def speak() -> None:
        # The system ends it when the other side has been closed.
        with contextlib.suppress(OSError), open(board, "rb", buffering=0, closefd=False) as file:
            while b"\n" in file.read(100):
                os.write(board, answer)

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield f"ASRL{os.ttyname(port)}::INSTR"
    finally:
        os.close(port)
        thread.join()
        os.close(board)
