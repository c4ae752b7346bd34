"""A device of one's own behind the C server: five functions in C, its faults, its safe state."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from board_server import built, running

from reservoir_hw.core.errors import DeviceFault, InputRangeError
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.device import Device

LEAKY = Path(__file__).with_name("leaky_device.c")


@pytest.fixture
def program() -> Path:
    return built(DEVICE=str(LEAKY))


@pytest.fixture
def address(program: Path) -> Iterator[str]:
    with running(program) as (address, _):
        yield address


def integrated(u: np.ndarray) -> np.ndarray:
    x, states = np.zeros((len(u), 2)), np.empty((*u.shape[:2], 2))
    for t in range(u.shape[1]):
        states[:, t] = x = x / [2, 3] + u[:, t]
    return states


def test_states_and_faults(address: str) -> None:
    u = np.random.default_rng(1).uniform(-1, 1, (2, 30, 1)).astype(np.float32)
    with open_reservoir({"kind": "zmq", "address": address}) as device:
        device.reset(2)
        assert np.array_equal(device.run(u), integrated(u))
        device.reset(2)
        u[1, 20] = 0.5
        with pytest.raises(DeviceFault, match="the laser went out") as fault:
            device.run(u)
        assert fault.value.steps_done == 20
        assert np.array_equal(np.asarray(fault.value.states), integrated(u)[:, :20])
        device.reset(1)
        with pytest.raises(InputRangeError):
            device.run(np.full((1, 3, 1), 2.0))


def test_what_it_does_not_declare(address: str) -> None:
    half = {"batch": 1, "steps": 1, "width": 1, "dtype": wire.F4}
    with Device(address) as line, line.client() as client:
        client.hello()
        client.attach()
        for operation, fields, payload, code in [
            (wire.RUN, half, np.float32(2).tobytes(), wire.E_RANGE),
            (wire.RUN, half, np.float32("nan").tobytes(), wire.E_RANGE),
            (wire.SNAPSHOT, {}, b"", wire.E_NOT_SUPPORTED),
            (wire.RESTORE, {"batch": 1}, b"\x80", wire.E_NOT_SUPPORTED),
            (wire.TRANSITION, {**half, "width": 3, "dtype": wire.F8}, bytes(24), wire.E_NOT_SUPPORTED),
            (wire.RUN, {**half, "flags": wire.MORE}, bytes(4), wire.E_NOT_SUPPORTED),
            (wire.RUN, half, bytes(4), wire.E_STATE_LOST),
        ]:
            client.refused(operation, code, payload=payload, **fields)


def test_nobody_gets_a_device_that_is_not_safe(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe = tmp_path / "unsafe"
    monkeypatch.setenv("LEAKY_UNSAFE", str(unsafe))
    with running(program, code=3) as (address, process):
        with open_reservoir({"kind": "zmq", "address": address}):
            unsafe.touch()
        with Device(address) as line, line.client() as client:
            client.hello()
            assert "the shutter is stuck" in client.refused(wire.ATTACH, wire.E_FAULT)["text"]
            assert "safe state: the shutter is stuck" in client.told("status")["status"]["problem"]
            client.goodbye()
        unsafe.unlink()
        with open_reservoir({"kind": "zmq", "address": address, "timeout_s": 0.5}) as device:
            assert np.array_equal(device.run(np.ones((1, 3, 1))), integrated(np.ones((1, 3, 1))))
            unsafe.touch()
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 3


@pytest.mark.slow
def test_a_step_that_does_not_go_into_a_frame() -> None:
    program = built(DEFINES="-DVN_NODES=4000", CFLAGS="-O0 -Werror")
    done = subprocess.run([program, "-m", "4096"], capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "board_server: the device: one step of all sequences does not go into a frame\n"
