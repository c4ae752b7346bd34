"""Boards on a serial line: states equal to the model's to the last bit, faults that keep what came, one owner."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here
from scripted_board import ScriptedBoard, declared, line_of, nak
from serial_boards import BOARDS, Sizes

from reservoir_hw import open_reservoir
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    InputRangeError,
    MissingExtra,
    NotSupported,
    ProtocolError,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import reservoir_config
from reservoir_hw.drivers.serial.frames import NAK, Operation
from reservoir_hw.emulators.board.board import SCALE, VirtualNodes
from reservoir_hw.emulators.board.faults import BoardFaultPlan
from reservoir_hw.emulators.board.line import Line, emulated_board

SIZES = Sizes(nodes=3, inputs=2)
STEPS = 200
VALUES = np.random.default_rng(0).uniform(-1, 1, (1, STEPS, 2)).astype(np.float32)


def golden(values: np.ndarray, nodes: int = 3) -> np.ndarray:
    """States (1, time, nodes) of the integer model, from rest."""
    counts = np.rint(values[0].astype(np.float64) / SCALE).astype(np.int64)
    return (VirtualNodes(nodes, values.shape[2]).run(counts) * SCALE).astype(np.float32)[None]


STATES = golden(VALUES)


def opened(port: str, **more: Any) -> Reservoir:
    return open_reservoir({"kind": "serial", "port": port, "timeout_s": 0.3, **more})


@contextlib.contextmanager
def emulated(*faults: dict[str, Any], **sizes: Any) -> Iterator[Line]:
    plan = validate(BoardFaultPlan, Document.from_mapping({"faults": list(faults)}, "a test"))
    with emulated_board(3, 2, faults=plan, **{"frame_bytes": 256, **sizes}) as line:
        yield line


@pytest.fixture
def board() -> Iterator[ScriptedBoard]:
    with ScriptedBoard() as board:
        yield board


# ---- states -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_states_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    with BOARDS[name](SIZES, tmp_path / "log.jsonl") as port, opened(port) as reservoir:
        whole = reservoir.run(VALUES)
        assert whole.dtype == np.float32
        assert np.array_equal(whole, STATES)
        reservoir.reset()
        cuts = [0, 1, 7, 60, 61, STEPS]
        parts = [reservoir.run(VALUES[:, a:b]) for a, b in itertools.pairwise(cuts)]
        assert np.array_equal(np.concatenate(parts, 1), STATES)
        reservoir.reset()
        steps = [reservoir.step(VALUES[:, at])[:, None] for at in range(STEPS)]
        assert np.array_equal(np.concatenate(steps, 1), STATES)
        reservoir.reset()
        out = np.empty_like(STATES)
        assert reservoir.run(VALUES, out) is out
        assert np.array_equal(out, STATES)
        # Two sequences, one after the other.
        reservoir.reset(2)
        both = reservoir.run(np.concatenate([VALUES, -VALUES]))
        assert np.array_equal(both, np.concatenate([STATES, golden(-VALUES)]))


def test_what_a_board_declares(board: ScriptedBoard) -> None:
    with opened(board.port) as reservoir:
        spec = reservoir.spec
        assert (spec.inputs, spec.nodes, spec.dtype, spec.max_batch) == (1, 5, "float32", 1)
        assert (spec.input_range, spec.input_bits, spec.output_bits) == ((-1, 1), 16, 16)
        assert (spec.deterministic, spec.memory_steps, spec.step_period_s) == (True, 100, None)
        who = spec.identity
        assert (who.vendor, who.model, who.serial, who.firmware) == ("Lab 5", "loop", "7", "1.2")
        assert (who.content, who.simulated) == ("five nodes", True)
        fingerprint = who.fingerprint
    for texts, same in ((("Lab 5", "loop", "7", "1.2", "five nodes"), True), (("", "", "", "", "others"), False)):
        with ScriptedBoard(declared(texts=texts)) as other, opened(other.port) as reservoir:
            assert (reservoir.spec.identity.fingerprint == fingerprint) is same


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"low": 0.0, "high": 0.0}, (-2.0, 2 - SCALE)),
        ({"low": -3.0, "high": 2.0}, (-2.0, 2 - SCALE)),
        ({"low": 0.5, "high": 1.0}, (0.5, 1.0)),
        ({"input_format": 1, "input_scale": 1.0, "low": 0.0, "high": 0.0}, None),
    ],
)
def test_the_range_is_what_the_integers_reach(changes: dict[str, Any], expected: tuple[float, float] | None) -> None:
    with ScriptedBoard(declared(**changes)) as board, opened(board.port) as reservoir:
        assert reservoir.spec.input_range == expected


def test_inputs_out_of_range_are_not_sent(board: ScriptedBoard) -> None:
    with opened(board.port) as reservoir:
        before = len(board.seen)
        with pytest.raises(InputRangeError):
            reservoir.run(np.full((1, 3, 1), 1.01))
        assert len(board.seen) == before
    with opened(board.port, out_of_range="clip") as reservoir:
        states = reservoir.run(np.full((1, 3, 1), 5.0))
        assert np.array_equal(states, golden(np.ones((1, 3, 1)), 5))
        assert reservoir.counters.clipped == 3


def test_int32_states_need_float64() -> None:
    with ScriptedBoard(declared(state_format=4, run_steps=10)) as board, opened(board.port) as reservoir:
        assert (reservoir.spec.dtype, reservoir.spec.output_bits) == ("float64", 32)
        states = np.array([[1, -1, 2**31 - 1, -(2**31), 12345678]], "<i4")
        board.answer_with(Operation.STEP, 0x85, bytes(4) + states.tobytes())
        assert np.array_equal(reservoir.run(np.zeros((1, 1, 1)))[0], states * SCALE)


@pytest.mark.parametrize(("value", "said"), [(np.nan, "not finite"), (9.9e37, r"9.9e\+37")])
def test_float_states_that_are_no_numbers_are_no_states(value: float, said: str) -> None:
    info = declared(state_format=1, state_scale=1.0, run_steps=10)
    with ScriptedBoard(info) as board, opened(board.port) as reservoir:
        states = np.arange(15, dtype="<f4").reshape(3, 5)
        states[2, 3] = value
        board.answer_with(Operation.RUN, 0x86, b"\0\0\0\0\x03\0" + states.tobytes())
        with pytest.raises(DeviceFault, match=said) as caught:
            reservoir.run(np.zeros((1, 3, 1)))
        assert np.array_equal(caught.value.states[0], states[:2])
        reservoir.reset()
        board.answer_with(Operation.RUN, NAK, nak(13, text="no light", step=3, done=3, states=states.tobytes()))
        with pytest.raises(DeviceFault, match="no light") as caught:
            reservoir.run(np.zeros((1, 4, 1)))
        assert np.array_equal(caught.value.states[0], states[:2])


def test_continuity_that_is_not_held() -> None:
    with ScriptedBoard(declared(continuity=1, memory_steps=4)) as board, opened(board.port) as reservoir:
        reservoir.run(np.zeros((1, 6, 1)))
        reservoir.run(np.zeros((1, 3, 1)))
        assert board.seen_operations()[2:] == ["ATTACH", "RUN", "RESET", "RUN"]
    with ScriptedBoard(declared(continuity=2, memory_steps=4)) as board, opened(board.port) as reservoir:
        with pytest.raises(NotSupported, match="takes at most 20 steps after a reset, not 21"):
            reservoir.run(np.zeros((1, 21, 1)))
        reservoir.run(np.zeros((1, 20, 1)))
        with pytest.raises(StateLost, match="free running"):
            reservoir.run(np.zeros((1, 1, 1)))
    with (
        ScriptedBoard(declared(continuity=1, memory_steps=0)) as board,
        pytest.raises(ProtocolError, match="the board declares what cannot be used: a replayed device must declare"),
    ):
        opened(board.port)


def test_chunks(board: ScriptedBoard) -> None:
    values = VALUES[:, :50, :1]
    for more, frames in (({}, 3), ({"chunk_steps": 7}, 8), ({"baud": 1200, "timeout_s": 0.2}, 3)):
        board.seen.clear()
        with opened(board.port, **more) as reservoir:
            assert np.array_equal(reservoir.run(values), golden(values, 5))
        assert board.seen_operations().count("RUN") + board.seen_operations().count("STEP") == frames


def test_frames_of_a_slow_line_come_before_the_lease_ends() -> None:
    # Half a lease at 300 baud are 25 bytes.
    with ScriptedBoard(declared(lease_ms=1700)) as board, opened(board.port, baud=300) as reservoir:
        reservoir.run(np.zeros((1, 4, 1)))
        assert board.seen_operations()[3:] == ["RUN", "RUN"]


# ---- faults -------------------------------------------------------------------------------------


def test_a_fault_keeps_what_came(tmp_path: Path) -> None:
    most = 20
    for name in BOARDS:
        sizes = Sizes(nodes=3, inputs=2, fails_at=4 * most + 8)
        with BOARDS[name](sizes, tmp_path / f"{name}.jsonl") as port, opened(port, chunk_steps=most) as reservoir:
            with pytest.raises(DeviceFault) as caught:
                reservoir.run(VALUES)
            assert caught.value.steps_done == 4 * most + 7
            assert np.array_equal(caught.value.states, STATES[:, : 4 * most + 7])
            with pytest.raises(StateLost, match="last good step is 86"):
                reservoir.run(VALUES)
            reservoir.reset()
            assert np.array_equal(reservoir.run(VALUES), STATES)


def test_a_lost_frame_keeps_the_frames_before_it() -> None:
    lost = {"kind": "drop", "direction": "to_host", "operation": "run", "occurrence": 5}
    with emulated(lost) as line, opened(line.port, chunk_steps=20) as reservoir:
        with pytest.raises(DeviceTimeout, match="the board is there") as caught:
            reservoir.run(VALUES)
        assert caught.value.steps_done == 80
        assert np.array_equal(caught.value.states, STATES[:, :80])
        reservoir.reset()
        assert np.array_equal(reservoir.run(VALUES), STATES)


def test_close_does_not_wake_a_board_in_its_safe_state(tmp_path: Path) -> None:
    for name in BOARDS:
        log = tmp_path / f"{name}.jsonl"
        with BOARDS[name](Sizes(fails_at=100, lease_ms=200), log) as port, opened(port) as reservoir:
            with pytest.raises(DeviceFault):
                reservoir.run(VALUES)
            deadline = time.monotonic() + 5
            while '"off"' not in log.read_text().partition('"on"')[2]:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        assert events.count("on") == 1, name
        assert events[-1] == "off", name


@pytest.mark.parametrize("direction", ["to_board", "to_host"])
def test_a_board_out_of_step_is_told_goodbye(direction: str, tmp_path: Path) -> None:
    lost = {"kind": "drop", "direction": direction, "operation": "run", "occurrence": 3}
    with emulated(lost, log=tmp_path / "log", lease_ms=30000) as line:
        with opened(line.port, chunk_steps=20) as reservoir, pytest.raises(DeviceTimeout):
            reservoir.run(VALUES)
        events = [json.loads(text) for text in (tmp_path / "log").read_text().splitlines()]
    assert [(event["event"], event.get("why")) for event in events][-2:] == [("on", None), ("off", "detach")]


def test_states_with_a_fault_that_are_not_its_steps(board: ScriptedBoard) -> None:
    with opened(board.port) as reservoir:
        board.answer_with(Operation.RUN, NAK, nak(13, text="no light", step=2, done=2, states=bytes(7)))
        with pytest.raises(DeviceFault, match="no light") as caught:
            reservoir.run(np.zeros((1, 4, 1)))
        assert (caught.value.steps_done, caught.value.states.shape) == (0, (1, 0, 5))
        assert "they are not 2 steps of this request" in str(caught.value.__notes__)


def test_a_discontinuity_says_what_had_come(board: ScriptedBoard) -> None:
    with opened(board.port) as reservoir:
        board.answer_with(Operation.RUN, NAK, nak(12, text="fed too late", step=25), after=1)
        with pytest.raises(StateLost, match="fed too late") as caught:
            reservoir.run(np.zeros((1, 40, 1)))
        assert caught.value.__notes__ == ["20 steps of this run had come before"]


def test_a_board_that_restarts_or_is_unplugged() -> None:
    with emulated({"kind": "reboot", "occurrence": 8}) as line, opened(line.port, chunk_steps=20) as reservoir:
        with pytest.raises(DeviceTimeout, match="the board is there"):
            reservoir.run(VALUES)
        reservoir.reset()
        assert np.array_equal(reservoir.run(VALUES), STATES)
    with emulated({"kind": "unplug", "occurrence": 8}) as line, opened(line.port, chunk_steps=20) as reservoir:
        with pytest.raises(DeviceDisconnected, match="the port is gone"):
            reservoir.run(VALUES)
        with pytest.raises(DeviceDisconnected):
            reservoir.reset()


def test_another_baud_rate() -> None:
    # Not every garbage ends with a zero, and then the board says nothing.
    said = r"at 9600 baud: (.* the board has another baud rate|nobody answers .* this baud rate\?)"
    with emulated() as line, pytest.raises((ProtocolError, DeviceDisconnected), match=said):
        opened(line.port, baud=9600)


def test_a_board_with_a_problem_and_what_is_kept_of_it(board: ScriptedBoard, caplog: pytest.LogCaptureFixture) -> None:
    board.problem = "fan stands still"
    with opened(board.port, label="loop") as reservoir:
        assert "the board says: fan stands still" in caplog.text
        board.change(Operation.RUN, lambda line: line_of(0x86, board.session, 0) + line)
        reservoir.run(np.zeros((1, 2, 1)))
        board.problem = "fan and pump stand still"
        known = reservoir.provenance()
        json.dumps(known)
        assert (known["port"], known["baud"]) == (board.port, 115200)
        assert known["incidents"] == {"damaged": 0, "repeated": 1, "dropped": 0}
        assert known["board"]["problem"] == "fan and pump stand still"
        assert reservoir.status()["state"] == "at rest"  # type: ignore[attr-defined]


# ---- one owner ----------------------------------------------------------------------------------


def test_one_owner_at_a_time(board: ScriptedBoard, tmp_path: Path) -> None:
    link = tmp_path / "usb-Lab_5_loop_7"
    link.symlink_to(board.port)
    with opened(board.port) as reservoir:
        assert reservoir.resources == (f"serial {board.port}",)
        with pytest.raises(DeviceBusy, match=rf"in use by process {os.getpid()}"):
            opened(str(link))
    with opened(str(link)) as reservoir:
        assert np.array_equal(reservoir.run(VALUES[:, :9, :1]), golden(VALUES[:, :9, :1], 5))


CLIENT = """
import sys, time
import numpy as np
from reservoir_hw import open_reservoir
with open_reservoir({"kind": "serial", "port": sys.argv[1]}) as reservoir:
    while True:
        print(reservoir.run(np.zeros((1, 100, 2))).shape, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_next_client_gets_the_board_of_one_that_ended(how: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with emulated(lease_ms=500, log=log) as line:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, line.port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        for _ in range(3):
            assert client.stdout.readline() == "(1, 100, 3)\n"
        client.send_signal(how)
        _, said = client.communicate(timeout=30)
        ended = time.time()
        if how == signal.SIGINT:
            # Ctrl-C brings the board to its safe state at once, and kill -9 leaves that to the lease.
            assert said.rstrip().endswith("KeyboardInterrupt")
        else:
            time.sleep(0.8)
        last = json.loads(log.read_text().splitlines()[-1])
        assert last["event"] == "off"
        assert last["unix_s"] < ended + (0.7 if how == signal.SIGKILL else 0.0)
        with opened(line.port) as reservoir:
            assert np.array_equal(reservoir.run(VALUES), STATES)
            assert reservoir.status()["leases_ended"] == (how == signal.SIGKILL)  # type: ignore[attr-defined]


# ---- the file -----------------------------------------------------------------------------------


def test_what_the_file_may_say(board: ScriptedBoard) -> None:
    with pytest.raises(ConfigurationError, match=r"has 1 inputs, but 3 are wanted: leave reservoir.inputs out"):
        opened(board.port, inputs=3)
    for wrong in (
        {"port": ""},
        {"port": "socket://bench"},
        {"port": "socket://bench:x"},
        {"baud": 0},
        {"timeout_s": 0},
        {"chunk_steps": 0},
        {"bauds": 1},
        {"memory_steps": 0},
    ):
        with pytest.raises(ConfigurationError, match=str(next(iter(wrong)))):
            reservoir_config({"kind": "serial", "port": "COM5", **wrong})
    with pytest.raises(ConfigurationError, match="at 99999999999 baud cannot be opened"):
        opened(board.port, baud=99999999999)
    with opened(board.port, memory_steps=7) as reservoir:
        assert reservoir.spec.memory_steps == 7
    mask = {"kind": "binary", "scaling": 0.2}
    config = reservoir_config({"kind": "serial", "port": board.port, "inputs": 1, "input_mask": mask})
    with open_reservoir(config, inputs=3) as reservoir:
        assert reservoir.run(np.zeros((1, 4, 3))).shape == (1, 4, 5)
        with pytest.raises(ShapeError):
            reservoir.run(np.zeros((1, 4, 1)))


def test_without_pyserial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "reservoir_hw.drivers.serial.line", raising=False)
    monkeypatch.delitem(sys.modules, "reservoir_hw.drivers.serial", raising=False)
    monkeypatch.delitem(sys.modules, "reservoir_hw.drivers.serial.client", raising=False)
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(MissingExtra, match=r"pyserial: pip install 'reservoir-hw\[serial\]'"):
        opened("/dev/ttyACM0")


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    """NARMA10 on the model of the boards, and on an emulated board in place of the port of the example."""
    root = Path(__file__).parents[2]
    board = "examples/boards/serial.yaml"
    found = []
    with emulated_board(50) as line:
        for more in ((), ("--reservoir", board, "--set", f"reservoir.port={line.port}")):
            folder = tmp_path / str(len(found))
            sets = ("--set", f"run.folder={folder}", "--set", "baselines=[]")
            done = call_here("run", "examples/boards/narma.yaml", *more, *sets, cwd=root)
            assert done.returncode == 0, done.stderr
            (metrics,) = folder.glob("*/metrics.json")
            (row,) = json.loads(metrics.read_text())["rows"]
            found.append(row["metrics"])
    assert found[0] == found[1]
    done = call_here("device", "info", board, "--set", "port=/dev/ttyACM77", cwd=root)
    assert done.returncode == 2
    assert "there is no port /dev/ttyACM77" in done.stderr
    assert "Traceback" not in done.stderr
