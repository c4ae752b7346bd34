"""The C server: the golden model behind the page, driven by `kind: zmq`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from board_server import DEFINES, INPUTS, built, golden, running, wait_until_free
from served import ipc_address

from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.emulators.board.board import SCALE
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.device import Device

LEASE_S = 0.5


def inputs(batch: int = 1, steps: int = 60) -> np.ndarray:
    rng = np.random.default_rng(3)
    u = rng.uniform(-2, 32767 * SCALE, (batch, steps, INPUTS)).astype(np.float32)
    u[:, ::7] = -2.0  # the ends of the range, too
    u[:, 1::7] = 32767 * SCALE
    return u


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ipc_address() as path, running(built(DEFINES=DEFINES), "-l", str(LEASE_S), address=path) as (bound, _):
        assert bound == path
        yield bound


@pytest.fixture
def device(address: str) -> Iterator[Reservoir]:
    with open_reservoir({"kind": "zmq", "address": address}) as reservoir:
        yield reservoir


def test_states_are_those_of_the_golden_model(device: Reservoir) -> None:
    u = inputs(batch=4)
    device.reset(4)
    states = device.run(u)
    assert np.array_equal(states, golden(u))


def test_chunks_and_steps_go_on_from_each_other(device: Reservoir) -> None:
    u = inputs(batch=2)
    device.reset(2)
    parts = [device.run(u[:, :1]), device.run(u[:, 1:17]), *(device.run(u[:, t : t + 1]) for t in range(17, 60))]
    assert np.array_equal(np.concatenate(parts, axis=1), golden(u))


def test_a_state_comes_back(device: Reservoir) -> None:
    u = inputs(batch=2)
    device.reset(2)
    device.run(u[:, :20])
    state = device.snapshot()
    device.reset(1)
    device.restore(state)
    assert np.array_equal(device.run(u[:, 20:]), golden(u)[:, 20:])


def test_a_transition_leaves_the_device_where_it_was(device: Reservoir) -> None:
    u, states = inputs(batch=3), golden(inputs(batch=3))
    device.reset(1)
    device.run(u[:1, :20])
    assert np.array_equal(device.transition(u[:, 40], states[:, 39]), states[:, 40])
    assert np.array_equal(device.run(u[:1, 20:]), states[:1, 20:])


def test_inputs_beyond_the_numbers_of_the_wire(device: Reservoir) -> None:
    with pytest.raises(InputRangeError):
        device.run(np.full((1, 1, INPUTS), 2.0))


@pytest.mark.slow
def test_a_killed_client_loses_the_device(address: str) -> None:
    before = wait_until_free(address, 1)["counters"]
    idle = str(Path(__file__).parents[1] / "serving" / "idle_client.py")
    with subprocess.Popen(
        [sys.executable, idle, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driven\n"
        process.kill()
    after = wait_until_free(address, LEASE_S + 1)["counters"]
    assert after["expired_leases"] == before["expired_leases"] + 1
    with open_reservoir({"kind": "zmq", "address": address}) as device:
        assert np.array_equal(device.run(inputs()), golden(inputs()))
    assert wait_until_free(address, 1)["counters"]["safe_states"] >= before["safe_states"] + 1


@pytest.mark.slow
def test_sigterm_refuses_what_waits() -> None:
    with running(built(DEFINES=DEFINES)) as (address, process), Device(address) as line, line.client() as client:
        client.hello()
        client.attach()
        process.send_signal(signal.SIGTERM)
        codes = set()
        for _ in range(20):
            client.send(client.head(wire.RESET, batch=1))
        while (frames := line.receive(client.data, 1.0)) is not None:
            header, payload = wire.unpack_data(frames)
            codes.add(wire.from_msgpack(payload)["code"] if header.operation == wire.ERROR else 0)
        assert codes <= {0, wire.E_SHUTTING_DOWN}
        assert process.wait(5) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tcp://0.0.0.0:5555"], "its own host alone"),
        (["nonsense"], "its own host alone"),
        (["tcp://127.0.0.1:1x"], "0 to 65534"),
        (["tcp://[::1]:65535"], "0 to 65534"),
        (["ipc:///no/such/folder/d"], "No such file"),
        (["-l", "0"], "usage"),
        (["-c", "x"], "usage"),
        (["-z"], "usage"),
        (["a", "b"], "usage"),
        (["ipc:///tmp/" + 100 * "x"], "104 characters"),
    ],
)
def test_a_server_that_cannot_start(arguments: list[str], message: str) -> None:
    done = subprocess.run([built(DEFINES=DEFINES), *arguments], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode in (1, 2)
    assert message in done.stderr


def test_an_address_in_use(address: str) -> None:
    done = subprocess.run([built(DEFINES=DEFINES), address], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode == 1
    assert "in use" in done.stderr
