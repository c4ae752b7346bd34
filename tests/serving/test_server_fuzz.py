"""Whatever arrives at a server, it goes on: a normal client still gets the device, and right states."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from served import ipc_address, served, socket_of
from toys import SnapshotToy, Toy

from reservoir_hw.core.errors import ConfigurationError, ProtocolError, ReservoirError
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.drivers.zeromq import Connection, frames
from reservoir_hw.drivers.zeromq.addresses import control_address
from reservoir_hw.drivers.zeromq.frames import Header, Operation
from reservoir_hw.serving import Server

SMALL = 1 << 16


class StrictToy(SnapshotToy):
    """Takes back only what it gave, as a device should that others can write to."""

    def _snapshot(self) -> dict[str, np.ndarray]:
        return {"x": self.x.copy(), "t": self.t.copy()}

    def _restore(self, state: Any) -> None:
        if set(state) != {"x", "t"} or state["x"].shape[1:] != (2,) or state["t"].ndim != 1:
            raise ConfigurationError("this is no state of a toy")
        self.x, self.t = state["x"].astype(np.float64), state["t"].astype(np.int64)


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    with ipc_address() as address, served(StrictToy(), address, lease_s=0.5, max_frame_bytes=SMALL) as server:
        yield server, address


@pytest.fixture
def peer(server: tuple[Server, str]) -> Iterator[list[zmq.Socket[bytes]]]:
    """Somebody with a data and a control socket."""
    context: zmq.Context[Any] = zmq.Context()
    sockets = []
    for address in (server[1], control_address(server[1])):
        socket = context.socket(zmq.DEALER)
        socket.connect(address)
        socket.setsockopt(zmq.SNDTIMEO, 10_000)
        sockets.append(socket)
    yield sockets
    for socket in sockets:
        socket.close(linger=0)
    context.term()


def pick(random: np.random.Generator, choices: list[Any]) -> Any:
    """One of them, as it is: numpy would make floating point numbers of large ones."""
    return choices[random.integers(len(choices))]


def drain(socket: zmq.Socket[bytes]) -> list[list[bytes]]:
    """What was answered so far."""
    received = []
    while socket.poll(0):
        received.append(socket.recv_multipart())
    return received


def assert_normal(address: str) -> None:
    """A normal client gets the device within a lease, and right states."""
    u = np.random.default_rng(5).uniform(-1, 1, (2, 40, 2))
    with Toy() as local:
        local.reset(2)
        true = local.run(u)
    until = time.monotonic() + 20
    while True:
        try:
            with open_reservoir({"kind": "zmq", "address": address, "chunk_steps": 7}) as device:
                device.reset(2)
                assert np.array_equal(device.run(u), true)
            return
        except ReservoirError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def noise(random: np.random.Generator) -> list[bytes]:
    """Up to four frames of random bytes, or of what looks like the protocol at first sight."""
    sizes = random.choice([0, 1, 12, 79, 80, 81, 300], size=random.integers(1, 5))
    message = [random.bytes(int(size)) for size in sizes]
    if random.random() < 0.5:
        message[0] = pick(random, [b"RHWD\x01", b"RHWC\x01\x00\x00\x00"]) + message[0]
    return message


def random_map(random: np.random.Generator) -> dict[str, Any]:
    """A control message with wrong or missing fields."""
    values: list[Any] = [None, True, 0, -1, 2**64 - 1, 1.5, float("nan"), "x", b"x" * 16, [1], [], {}, {"a": [b"b"]}]
    names = ["session", "request", "versions", "client", "nonce", "status", "?"]
    chosen = random.choice(names, size=random.integers(0, 5), replace=False)
    message = {str(name): pick(random, values) for name in chosen}
    ops = ["hello", "ping", "status", "cancel", "goodbye", "error", "welcome", "", "x" * 5000]
    return {"op": pick(random, ops), "id": int(random.integers(0, 2**63)), **message}


NAMED: dict[int, set[str]] = {
    Operation.RESET: {"batch"},
    Operation.RUN: {"flags", "step", "batch", "steps", "width", "dtype", "scale"},
    Operation.RESTORE: {"batch", "step"},
    Operation.TRANSITION: {"batch", "steps", "width", "dtype", "scale"},
}


def random_request(random: np.random.Generator, session: int, request: int) -> tuple[Header, bytes]:
    """A data message with right checksums, and anything else in it."""
    extremes = [0, 1, 2, 3, 7, 2**16, 2**31, 2**32 - 1]
    batch, steps, width = (
        int(random.choice(extremes, p=[0.1, 0.5, 0.2, 0.1, 0.025, 0.025, 0.025, 0.025])) for _ in "bsw"
    )
    operation = pick(random, [*Operation, 0, 0x09, 0x83, 0xFF])
    dtype = pick(random, [0, 1, 2, 2, 2, 3, 4, 5, 6, 255])
    payloads = [
        b"",
        random.bytes(int(random.integers(1, 200))),
        np.full(min(batch * steps * width, 1000), pick(random, [0.5, np.nan, np.inf, 1e300])).tobytes(),
        msgpack.packb(random_map(random)),
        frames.pack_arrays({name: np.zeros((batch % 8, 2)) for name in ("x", "t", "weights", "contract.steps")}),
        frames.pack_arrays({"weights": np.zeros((2, 2), np.float32), "scale": np.ones(2), "bias": np.full(2, np.nan)}),
        msgpack.packb({"x": ["f8", [0, 2**63], b""]}),
    ]
    payload = pick(random, payloads)
    header = Header(
        operation,
        session,
        request,
        flags=pick(random, [0, 0, 0, 1, 2, 3, 0xFFFF]),
        step=pick(random, [0, 0, 0, 1, 2**63 - 1, 2**64 - 1]),
        batch=batch,
        steps=steps,
        width=width,
        dtype=dtype,
        scale=pick(random, [1.0, 1.0, 0.5, 0.0, np.inf, np.nan]),
        time_ns=pick(random, [0, 0, 0, 2**64 - 1]),
        period_s=pick(random, [0.0, 0.0, 0.0, float("nan")]),
    )
    if random.random() < 0.7:
        # As the page wants it: what the operation does not name is 0.
        named = NAMED.get(operation, set())
        others = {name: 0 for name in header._fields[3:] if name not in named} | {"scale": header.scale}
        header = header._replace(**(others if "scale" in named else {**others, "scale": 1.0}))
        payload = b"" if operation in (Operation.ATTACH, Operation.RESET, Operation.SNAPSHOT) else payload
    return header, payload


@pytest.mark.slow
def test_noise_from_an_unknown_peer(server: tuple[Server, str], peer: list[zmq.Socket[bytes]]) -> None:
    served_by, address = server
    random = np.random.default_rng(0)
    for _ in range(2000):
        for socket in peer:
            socket.send_multipart(noise(random))
            drain(socket)
    for number in range(2000):
        header, payload = random_request(random, pick(random, [0, 1, 2**64 - 1]), number)
        peer[0].send_multipart([frames.pack_header(header, payload), payload])
        peer[1].send(frames.pack_control(random_map(random)))
        for message in drain(peer[1]):
            assert frames.unpack_control(message[0])["op"] in ("pong", "status", "error", "welcome")
    assert_normal(address)
    traffic = served_by.status()["traffic"]
    assert traffic["damaged"] > 1000
    assert traffic["foreign"] > 1000


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_nonsense_from_who_holds_the_device(server: tuple[Server, str], seed: int) -> None:
    """Everything is answered, and by the number it has; nothing ends the session but the client."""
    _, address = server
    random = np.random.default_rng(seed)
    connection = Connection(address)
    errors = set()
    try:
        connection.attach()
        session, request = connection.welcome["session"], 1
        data = socket_of(connection._data)
        for _ in range(1000):
            request += 1
            header, payload = random_request(random, session, request)
            data.send_multipart([frames.pack_header(header, payload), payload])
            assert data.poll(10_000), f"no answer to {header}"
            packed, answer = data.recv_multipart()
            reply, crc = frames.unpack_header(packed)
            frames.check_payload(memoryview(answer), crc)
            assert reply.request == request
            if reply.operation == frames.ERROR:
                content = frames.unpack_map(answer)
                errors.add(content["code"])
                assert isinstance(content["text"], str)
                assert len(content["text"]) < 5000
            elif reply.operation == (Operation.RUN | frames.REPLY):
                assert frames.array_of(reply, memoryview(answer)).shape == (header.batch, header.steps, 2)
            connection.ask("ping", session=session)
    finally:
        connection.close()
    assert {4, 6, 7, 10, 11, 17} <= errors
    assert_normal(address)


@pytest.mark.slow
def test_noise_from_who_holds_the_device() -> None:
    random = np.random.default_rng(1)
    # A long lease: the heartbeat waits behind the noise.
    with ipc_address() as address, served(StrictToy(), address, lease_s=60.0, max_frame_bytes=SMALL):
        connection = Connection(address, timeout_s=15.0)
        try:
            connection.attach()
            data, control = socket_of(connection._data), socket_of(connection._control.dealer)
            with connection._control._guard:
                for _ in range(1000):
                    data.send_multipart(noise(random))
                    control.send_multipart(noise(random))
            assert connection.ask("ping", session=connection.welcome["session"])["valid"]
            connection.send(Operation.RESET, batch=1)
            with pytest.raises(ProtocolError):
                connection.receive()
        finally:
            connection.close()
        assert_normal(address)


def test_a_step_that_no_number_can_follow(server: tuple[Server, str]) -> None:
    _, address = server
    connection = Connection(address)
    try:
        connection.attach()
        connection.send(Operation.SNAPSHOT)
        state = bytes(connection.receive()[1])
        connection.send(Operation.RESTORE, state, batch=1, step=2**64 - 1)
        with pytest.raises(ProtocolError, match="no number of a step"):
            connection.receive()
        connection.send(Operation.ATTACH)
        with pytest.raises(ProtocolError, match="ATTACH"):
            connection.receive()
    finally:
        connection.close()
    assert_normal(address)


@pytest.mark.slow
def test_a_peer_that_reads_no_answers_stops_nobody(server: tuple[Server, str], peer: list[zmq.Socket[bytes]]) -> None:
    """Far more questions than the sockets have room for answers."""
    _, address = server
    enough = threading.Event()
    status = frames.pack_control({"op": "status", "id": 1})
    sent = [0, 0]

    def flood() -> None:
        while not enough.is_set():
            for n, message in enumerate(([b"noise"], [status])):
                try:
                    peer[n].send_multipart(message, zmq.DONTWAIT)
                    sent[n] += 1
                except zmq.Again:
                    continue
            if sum(sent) % 500 == 0:
                enough.wait(0.001)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        until = time.monotonic() + 20
        while min(sent) < 6000:
            assert time.monotonic() < until, f"the server takes no more messages: {sent}"
            time.sleep(0.05)
        assert_normal(address)
    finally:
        enough.set()
        thread.join()


def test_a_message_that_is_too_large_is_not_taken(server: tuple[Server, str], peer: list[zmq.Socket[bytes]]) -> None:
    served_by, address = server
    before = served_by.status()["traffic"]
    for socket, size in zip(peer, (2 * SMALL, 2 << 20), strict=True):
        socket.send_multipart([bytes(80), bytes(size)])
    assert_normal(address)
    after = served_by.status()["traffic"]
    assert after["bytes_received"] - before["bytes_received"] < 2 * SMALL
    assert after["damaged"] == before["damaged"]
