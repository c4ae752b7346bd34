"""The C server: the golden model behind the page, driven by the page's client and by `kind: zmq`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from board_server import built, running
from served import ipc_address
from serving.page_client import PageClient, Refused, receive_within

from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.emulators.virtual_nodes import SCALE, VirtualNodes
from reservoir_hw.testing.protocol import codec as wire

NODES, INPUTS = 50, 2
DEFINES = f"-DVN_NODES={NODES} -DVN_INPUTS={INPUTS}"
LEASE_S = 0.5


def golden(u: np.ndarray) -> np.ndarray:
    """What the device must answer to `u` (batch, time, inputs) from rest, as counts."""
    counts = np.rint(np.asarray(u, np.float64) / SCALE).astype(np.int16)
    return np.stack([VirtualNodes(NODES, INPUTS).run(one) for one in counts])


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


@pytest.fixture
def client(address: str) -> Iterator[PageClient]:
    with PageClient(address, "page client") as client:
        client.hello()
        client.attach()
        yield client
        client.goodbye()


def test_states_are_those_of_the_golden_model(device: Reservoir) -> None:
    u = inputs(batch=4)
    device.reset(4)
    states = device.run(u)
    assert np.array_equal(states, golden(u) * np.float32(SCALE))


def test_chunks_and_steps_go_on_from_each_other(device: Reservoir) -> None:
    u = inputs(batch=2)
    device.reset(2)
    parts = [device.run(u[:, :1]), device.run(u[:, 1:17]), *(device.run(u[:, t : t + 1]) for t in range(17, 60))]
    assert np.array_equal(np.concatenate(parts, axis=1), golden(u) * np.float32(SCALE))


def test_a_state_comes_back(device: Reservoir) -> None:
    u = inputs(batch=2)
    device.reset(2)
    device.run(u[:, :20])
    state = device.snapshot()
    device.reset(1)
    device.restore(state)
    assert np.array_equal(device.run(u[:, 20:]), golden(u)[:, 20:] * np.float32(SCALE))


def test_a_transition_leaves_the_device_where_it_was(device: Reservoir) -> None:
    u, states = inputs(batch=3), golden(inputs(batch=3)) * np.float32(SCALE)
    device.reset(1)
    device.run(u[:1, :20])
    assert np.array_equal(device.transition(u[:, 40], states[:, 39]), states[:, 40])
    assert np.array_equal(device.run(u[:1, 20:]), states[:1, 20:])


def test_inputs_beyond_the_numbers_of_the_wire(device: Reservoir) -> None:
    with pytest.raises(InputRangeError):
        device.run(np.full((1, 1, INPUTS), 2.0))


def error_of(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(Refused) as refused:
        call()
    return dict(refused.value.error)


HERE = {"batch": 1, "steps": 1, "width": INPUTS, "dtype": wire.I2, "scale": SCALE}
STEP = bytes(2 * INPUTS)


@pytest.mark.parametrize(
    ("operation", "fields", "payload", "code", "lost"),
    [
        (wire.RUN, {**HERE, "step": 1}, STEP, wire.E_SEQUENCE, True),
        (wire.RUN, {**HERE, "flags": 4}, STEP, wire.E_MALFORMED, True),
        (wire.RUN, {**HERE, "flags": wire.OUTPUTS}, STEP, wire.E_CONFIGURATION, False),
        (wire.RUN, {**HERE, "width": INPUTS + 1}, STEP, wire.E_SHAPE, False),
        (wire.RUN, {**HERE, "width": INPUTS + 1, "flags": wire.MORE}, STEP, wire.E_SHAPE, True),
        (wire.RUN, {**HERE, "steps": 0}, b"", wire.E_SHAPE, False),
        (wire.RUN, {**HERE, "batch": 2}, 2 * STEP, wire.E_SHAPE, False),
        (wire.RUN, {**HERE, "scale": 1.0}, STEP, wire.E_MALFORMED, True),
        (wire.RUN, {**HERE, "dtype": wire.F4, "scale": 1.0}, 2 * STEP, wire.E_MALFORMED, True),
        (wire.RUN, HERE, STEP + b"x", wire.E_MALFORMED, True),
        (wire.RUN, {**HERE, "time": 5}, STEP, wire.E_MALFORMED, True),
        (wire.RUN, {**HERE, "steps": 1 << 31}, STEP, wire.E_TOO_LARGE, False),
        (wire.RESET, {"batch": 0}, b"", wire.E_SHAPE, False),
        (wire.RESET, {"batch": 5}, b"", wire.E_TOO_LARGE, False),
        (wire.RESET, {"batch": 1, "step": 1}, b"", wire.E_MALFORMED, True),
        (wire.RESET, {"batch": 1}, b"x", wire.E_MALFORMED, True),
        (wire.RESTORE, {"batch": 1}, b"\xc1", wire.E_MALFORMED, True),
        (wire.RESTORE, {"batch": 1, "step": 1 << 63}, b"\x80", wire.E_MALFORMED, True),
        (wire.RESTORE, {"batch": 1}, wire.pack_named({"x": np.zeros((1, 3), np.uint8)}), wire.E_CONFIGURATION, False),
        (wire.RESTORE, {"batch": 2}, wire.pack_named({"x": np.zeros((1, 3), np.uint8)}), wire.E_SHAPE, False),
        (wire.TRANSITION, {**HERE, "width": 7}, STEP, wire.E_SHAPE, False),
        (wire.UPLOAD, {}, b"\x80", wire.E_NOT_SUPPORTED, False),
        (wire.READOUT, {}, b"\x80", wire.E_NOT_SUPPORTED, False),
        (0x60, {}, b"", wire.E_NOT_SUPPORTED, False),
        (wire.ATTACH, {}, b"", wire.E_SEQUENCE, True),
    ],
)  # fmt: skip
def test_a_wrong_request(
    client: PageClient, operation: int, fields: dict[str, Any], payload: bytes, code: int, lost: bool
) -> None:
    error = error_of(lambda: client.call(operation, payload, **fields))
    assert (error["code"], error["state_lost"], error["steps_done"], error["states"]) == (code, lost, 0, None)
    assert error["text"]
    if lost:
        assert error_of(lambda: client.call(wire.RUN, STEP, **HERE))["code"] == wire.E_STATE_LOST
        assert error_of(lambda: client.call(wire.SNAPSHOT))["code"] == wire.E_STATE_LOST
        client.reset()
    assert np.array_equal(client.run(inputs()), golden(inputs()) * np.float32(SCALE))


def test_damage_and_gaps(client: PageClient) -> None:
    header, payload = client.run_header(inputs())
    head, _ = wire.pack_data(client.put(header, payload), payload)
    client.states(header)
    client.data.send_multipart([head, payload])  # a copy: dropped
    client.data.send_multipart([bytes([*head[:40], head[40] ^ 1, *head[41:]]), payload])
    refused, _ = client.take()
    assert (refused.operation, refused.session, refused.request) == (wire.ERROR, 0, 0)
    client.data.send_multipart([head, payload, b""])
    assert client.take()[0].request == 0
    client.request += 2
    assert error_of(client.reset)["code"] == wire.E_SEQUENCE
    head, _ = wire.pack_data(client.head(wire.RUN, **HERE), STEP)
    client.data.send_multipart([head, b"x" + STEP[1:]])
    refused, payload = client.take()
    assert refused.request == client.request + 1
    assert msgpack.unpackb(payload)["code"] == wire.E_CHECKSUM


def test_cancelled(client: PageClient) -> None:
    client.cancel(client.request + 2)
    errors = [error_of(lambda: client.run(inputs(), flags=wire.MORE)) for _ in range(3)]
    assert [error["code"] for error in errors] == [wire.E_CANCELLED, wire.E_CANCELLED, wire.E_STATE_LOST]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"versions": [2, 7]}, wire.E_VERSION),
        ({"versions": 1}, wire.E_MALFORMED),
        ({"nonce": b"short"}, wire.E_MALFORMED),
        ({"client": 5}, wire.E_MALFORMED),
        ({}, wire.E_BUSY),
        ({"op": "sing"}, wire.E_MALFORMED),
        ({"op": "release"}, wire.E_CONFIGURATION),
        ({"op": "ping"}, wire.E_MALFORMED),
        ({"op": "goodbye", "session": 1}, wire.E_NO_SESSION),
    ],
)
def test_a_wrong_question(client: PageClient, address: str, fields: dict[str, Any], code: int) -> None:
    hello = {"op": "hello", "versions": [1], "client": "other", "nonce": bytes(16)}
    with PageClient(address) as other:
        error = error_of(lambda: other.ask(**{**hello, **fields}))
    assert error["code"] == code
    if code == wire.E_BUSY:
        assert "page client" in error["text"]


def wait_until_free(address: str, within_s: float) -> dict[str, Any]:
    with PageClient(address) as stranger:
        until = time.monotonic() + within_s
        while (status := stranger.status())["holder"] is not None:
            assert time.monotonic() < until
            time.sleep(0.01)
        return status


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
        assert np.array_equal(device.run(inputs()), golden(inputs()) * np.float32(SCALE))
    assert wait_until_free(address, 1)["counters"]["safe_states"] >= before["safe_states"] + 1


def test_sigterm_refuses_what_waits() -> None:
    with running(built(DEFINES=DEFINES)) as (address, process), PageClient(address) as client:
        client.hello()
        client.attach()
        process.send_signal(signal.SIGTERM)
        codes = set()
        for _ in range(20):
            client.put(client.head(wire.RESET, batch=1))
        while (frames := receive_within(client.data, 1.0)) is not None:
            header, payload = wire.unpack_data(frames)
            codes.add(msgpack.unpackb(payload)["code"] if header.operation == wire.ERROR else 0)
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
