"""The C server at a unix address: the ring in shared memory, packets that are none, and who has gone."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from board_server import built, running

from reservoir_hw.core.errors import DeviceDisconnected
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.drivers.zeromq import status_of
from reservoir_hw.emulators.virtual_nodes import SCALE, VirtualNodes
from reservoir_hw.testing.protocol import codec as wire

NODES, INPUTS = 50, 2
DEFINES = f"-DVN_NODES={NODES} -DVN_INPUTS={INPUTS}"
SLOT_BYTES, CREDITS = 4096, 8
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if sys.platform == "linux" else 0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory without a name is Linux")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a server, and its process."""
    path = tmp_path_factory.mktemp("u") / "d"
    with running(built(DEFINES=DEFINES), "-c", str(CREDITS), address=f"unix://{path}") as (address, process):
        yield address, process.pid
    assert not path.exists()
    assert not Path(f"{path}.control").exists()


@pytest.fixture
def address(server: tuple[str, int]) -> str:
    return server[0]


def golden(u: np.ndarray) -> np.ndarray:
    counts = np.rint(np.asarray(u, np.float64) / SCALE).astype(np.int16)
    return np.stack([VirtualNodes(NODES, INPUTS).run(one) for one in counts]) * np.float32(SCALE)


def inputs(steps: int = 400) -> np.ndarray:
    return np.random.default_rng(3).uniform(-2, 1.9, (1, steps, INPUTS)).astype(np.float32)


def check_states(address: str) -> None:
    with open_reservoir({"kind": "zmq", "address": address}) as device:
        assert np.array_equal(device.run(inputs(50)), golden(inputs(50)))


def wait_until_free(address: str, within_s: float) -> None:
    until = time.monotonic() + within_s
    while status_of(address)["holder"] is not None:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("chunk_steps", [1, 60, 400], ids=["inline", "in slots", "in one"])
def test_states_are_those_of_the_golden_model(address: str, checksums: bool, chunk_steps: int) -> None:
    file = {"kind": "zmq", "address": address, "checksums": checksums, "chunk_steps": chunk_steps}
    u = inputs()
    with open_reservoir(file) as device:
        assert np.array_equal(device.run(u), golden(u))
        device.reset(1)
        state = [device.run(u[:, :100]), device.snapshot()]
        device.restore(state.pop())
        assert np.array_equal(np.concatenate([*state, device.run(u[:, 100:])], axis=1), golden(u))


def test_payloads_that_are_larger_than_a_slot(address: str) -> None:
    u = np.tile(inputs(500), (1, 100, 1))
    with open_reservoir({"kind": "zmq", "address": address, "chunk_steps": u.shape[1]}) as device:
        whole = device.run(u)
        device.reset(1)
        assert np.array_equal(device.run(u[:, :1000]), whole[:, :1000])
        assert np.array_equal(whole[:, :500], golden(u[:, :500]))
    assert whole.nbytes // 2 > 1 << 21


def test_a_killed_client_loses_the_device_at_once(server: tuple[str, int]) -> None:
    address, pid = server
    idle = str(Path(__file__).parents[1] / "serving" / "idle_client.py")
    with subprocess.Popen([sys.executable, idle, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"driven\n"
        assert "memfd" in Path(f"/proc/{pid}/maps").read_text()
        process.kill()
    wait_until_free(address, 2)
    check_states(address)
    wait_until_free(address, 2)
    time.sleep(0.2)
    assert "memfd" not in Path(f"/proc/{pid}/maps").read_text()
    assert not any("memfd" in os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir())


class Packets:
    """A client that says what it is told to."""

    def __init__(self, address: str) -> None:
        path = address.removeprefix("unix://")
        self.data, self.control = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
        for one, at in ((self.data, path), (self.control, f"{path}.control")):
            one.connect(at)
            one.settimeout(5)

    def close(self) -> None:
        self.data.close()
        self.control.close()

    def hello(self, **wishes: Any) -> dict[str, Any]:
        nonce = os.urandom(16)
        self.control.send(
            wire.pack_control({"op": "hello", "id": 1, "versions": [1], "client": "raw", "nonce": nonce, **wishes})
        )
        answer = wire.unpack_control(self.control.recv(1 << 16))
        self.session = answer.get("session", 0)
        return answer

    def ask(
        self,
        operation: int,
        payload: bytes = b"",
        *,
        place: int = 0,
        length: int | None = None,
        fds: list[int] | None = None,
        **fields: Any,
    ) -> tuple[int, dict[str, Any]]:
        """The request number of the reply, and its error if it is one."""
        header, _ = wire.pack_data(wire.Header(operation, self.session, **fields), payload)
        front = struct.pack("<QB3x", len(payload) if length is None else length, place)
        packet = front + struct.pack("<I", wire.crc32c(front)) + header + (b"" if place else payload)
        socket.send_fds(self.data, [packet], fds or [])
        return self.answer()

    def answer(self) -> tuple[int, dict[str, Any]]:
        came = self.data.recv(1 << 16)
        header, crc = wire.unpack_header(came[16:96])
        payload = came[96:]
        assert crc == wire.crc32c(payload)
        return header.request, msgpack.unpackb(payload) if header.operation == wire.ERROR else {}


@pytest.fixture
def client(address: str) -> Iterator[Packets]:
    client = Packets(address)
    yield client
    client.close()
    wait_until_free(address, 2)


def segment(size: int = 2 * CREDITS * SLOT_BYTES, seals: int = SEALS) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("wishes", "fds", "code"),
    [
        ({}, [], 0),
        ({"slot_bytes": 0}, [segment], wire.E_CONFIGURATION),
        ({"slot_bytes": SLOT_BYTES}, [segment], 0),
        ({"slot_bytes": SLOT_BYTES}, [], wire.E_CONFIGURATION),
        ({"slot_bytes": SLOT_BYTES}, [lambda: segment(SLOT_BYTES)], wire.E_CONFIGURATION),
        ({"slot_bytes": SLOT_BYTES}, [lambda: segment(seals=fcntl.F_SEAL_SHRINK)], wire.E_CONFIGURATION),
        ({"slot_bytes": SLOT_BYTES}, [lambda: os.open(__file__, os.O_RDONLY)], wire.E_CONFIGURATION),
        ({"slot_bytes": SLOT_BYTES}, [segment, segment], wire.E_MALFORMED),
    ],
)
def test_the_segment_of_attach(client: Packets, wishes: dict[str, Any], fds: list[Any], code: int) -> None:
    client.hello(**wishes)
    descriptors = [make() for make in fds]
    _, error = client.ask(wire.ATTACH, request=1, fds=descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    assert error.get("code", 0) == code


@pytest.mark.parametrize(
    "wishes", [{"slot_bytes": 100}, {"slot_bytes": -4096}, {"slot_bytes": 1 << 31}, {"checksums": 1}]
)
def test_wishes_that_make_no_sense(client: Packets, wishes: dict[str, Any]) -> None:
    assert client.hello(**wishes)["code"] == wire.E_MALFORMED


def test_payloads_that_cannot_be_had(client: Packets) -> None:
    assert client.hello(slot_bytes=SLOT_BYTES)["slot_bytes"] == SLOT_BYTES
    ring = segment()
    assert client.ask(wire.ATTACH, request=1, fds=[ring]) == (1, {})
    fits = {"batch": 1, "steps": 2, "width": INPUTS, "dtype": wire.I2, "scale": SCALE}
    payload = bytes(8)
    os.pwrite(ring, payload, SLOT_BYTES)
    assert client.ask(wire.RUN, payload, place=1, request=2, **fits) == (2, {})
    short = segment(4)
    wrong: list[tuple[int, dict[str, Any]]] = [
        (wire.E_MALFORMED, {"place": 1, "length": SLOT_BYTES + 1}),
        (wire.E_MALFORMED, {"length": 7}),
        (wire.E_TOO_LARGE, {"length": 1 << 40}),
        (wire.E_MALFORMED, {"place": 2, "fds": [short]}),
    ]
    for number, (code, how) in enumerate(wrong, start=3):
        request, error = client.ask(wire.RUN, payload, request=number, step=2, **fits, **how)
        assert (request, error["code"]) == (number, code)
    untrusted: list[dict[str, Any]] = [{"place": 3}, {"place": 2}, {"fds": [short]}]
    for how in untrusted:
        request, error = client.ask(wire.RUN, payload, request=7, **fits, **how)
        assert (request, error["code"]) == (0, wire.E_MALFORMED)
    os.close(ring)
    os.close(short)


def test_a_server_goes_on_after_any_packet(address: str) -> None:
    rng = random.Random(1)
    client = Packets(address)
    for number in range(300):
        front = struct.pack("<QB3x", rng.choice([0, 8, 70000, 1 << 63]), rng.randrange(4))
        packet = bytearray(front + struct.pack("<I", wire.crc32c(front)))
        packet += wire.pack_data(wire.Header(rng.randrange(10), rng.randrange(3), number), b"")[0]
        packet += rng.randbytes(rng.randrange(20))
        if rng.random() < 0.5:
            packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
        client.data.send(packet[: rng.choice([1, 16, 95, 96, 200])])
        assert client.answer()[1]["code"] in (wire.E_MALFORMED, wire.E_NO_SESSION)
        client.control.send(rng.randbytes(rng.randrange(1, 40)))
    client.data.send(bytes(100_000))
    assert client.answer()[1]["code"] == wire.E_MALFORMED
    client.close()
    check_states(address)


def test_the_file_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "d"))
    with running(built(DEFINES=DEFINES), address=f"unix://{tmp_path}/d") as (address, _):
        check_states(address)
        done = subprocess.run([built(DEFINES=DEFINES), address], capture_output=True, text=True, timeout=5, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "another server listens there" in done.stderr
        check_states(address)


@pytest.mark.parametrize(
    ("place", "message"), [("/file", "something that is no socket is there"), ("/no/folder", "No such file")]
)
def test_a_path_where_no_socket_can_be(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file").write_text("mine")
    command = [built(DEFINES=DEFINES), f"unix://{tmp_path}{place}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_control_path_where_no_socket_can_be(tmp_path: Path) -> None:
    (tmp_path / "d.control").write_text("mine")
    command = [built(DEFINES=DEFINES), f"unix://{tmp_path}/d"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    assert done.returncode == 1
    assert f"its control socket {tmp_path}/d.control: something that is no socket is there" in done.stderr
    assert os.listdir(tmp_path) == ["d.control"]


@pytest.mark.slow
def test_clients_and_servers_that_are_killed_at_any_moment(server: tuple[str, int], tmp_path: Path) -> None:
    address, pid = server
    moments = np.random.default_rng(7).uniform(0.2, 0.8, 40)
    streaming = str(Path(__file__).parents[1] / "serving" / "streaming_client.py")
    for after_s in moments:
        with subprocess.Popen([sys.executable, streaming, address]) as process:
            time.sleep(after_s)
            process.kill()
        wait_until_free(address, 2)
        check_states(address)
    wait_until_free(address, 2)
    time.sleep(0.2)
    assert "memfd" not in Path(f"/proc/{pid}/maps").read_text()

    mortal = f"unix://{tmp_path}/d"
    program = built(DEFINES=DEFINES)
    for after_s in moments[:20]:
        with subprocess.Popen([program, mortal], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"kind: zmq\n"
            with pytest.raises(DeviceDisconnected):
                drive_and_kill(mortal, process, after_s / 4)


def drive_and_kill(address: str, process: subprocess.Popen[bytes], after_s: float) -> None:
    """Drive a server that is killed after a while, for ever."""
    with open_reservoir({"kind": "zmq", "address": address}) as device:
        until = time.monotonic() + after_s
        while True:
            device.run(inputs(300))
            if time.monotonic() > until:
                process.kill()
