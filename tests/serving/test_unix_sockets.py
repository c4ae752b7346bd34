"""Unix addresses: what the page says of them, what is refused, and who is let in."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import re
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import connect, served, until
from toys import SnapshotToy, Toy

from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceTimeout, ProtocolError
from reservoir_hw.drivers.zeromq import Connection, links, unix_sockets
from reservoir_hw.serving import Server
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.client import Client, Reply
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.pipes import INLINE, MEMFD, SLOT, Packets, memfd, prefix

from .test_lost_connections import process
from .test_protocol_from_the_page import examples

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="unix addresses need Linux")

ESN = {"kind": "esn", "nodes": 200, "inputs": 2, "seed": 3}
SLOT_BYTES = 4096
SCHEME = "unix"


def drive(batch: int, steps: int) -> np.ndarray:
    return np.random.default_rng(steps).uniform(-1, 1, (batch, steps, 2))


def connected(path: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(5)
    one.connect(path)
    return one


# ---- the page -------------------------------------------------------------------------------------


def test_the_examples_of_the_page() -> None:
    *_, run, reply = examples()
    mine = 0x0102030405060708
    assert run[:16] == prefix(8, INLINE)
    assert wire.unpack_header(run[16:96])[1] == 0
    assert np.frombuffer(run[96:], "<f4").tolist() == [0.5, -1.0]
    assert reply[:16] == prefix(12, SLOT)
    header, crc = wire.unpack_header(reply[16:])
    assert (header.session, header.request, header.operation, crc) == (mine, 3, wire.RUN | wire.REPLY, 0)


def test_a_device_fills_the_slot_itself(address: str) -> None:
    """The server copies nothing: what the device gets as `out` lies in the ring."""
    filled = []

    class Filler(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            filled.append(out)
            return super()._run(u, out)

    with served(Filler(), address), connect(address) as far, Toy() as near:
        u = drive(1, 1000)
        assert np.array_equal(far.run(u), near.run(u))
        connection: Any = far._connection
        ours = connection._data._ring.reply(connection._sent)[: filled[0].nbytes]
        assert np.array_equal(ours, filled[0].view(np.uint8).reshape(-1))
        filled[0][...] = 7.0
        assert (ours.view(np.float64) == 7.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("inline_bytes", [0, 1 << 12])
def test_large_payloads_without_a_ring(address: str, monkeypatch: pytest.MonkeyPatch, inline_bytes: int) -> None:
    monkeypatch.setattr(unix_sockets, "SLOT_BYTES", 0)
    monkeypatch.setattr(unix_sockets, "INLINE_BYTES", inline_bytes)
    with served(SnapshotToy(), address), connect(address) as far, Toy() as near:
        for u in (drive(1, 1), drive(1, 20_000)):
            assert np.array_equal(far.run(u), near.run(u))
        far.reset(40_000)
        far.restore(far.snapshot())


def test_after_a_cancel_slots_wait_for_the_replies(address: str) -> None:
    """Requests that nobody waits for any more may still be read: the next one keeps out of their slots."""
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(SnapshotToy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            begun.set()
            assert go_on.wait(10)
            return super()._run(u, out)

    with served(Waiting(), address, credits=2), connect(address) as far:
        far.reset(5000)
        connection: Any = far._connection
        snapshot = far.snapshot()
        slots = connection._data._ring._requests
        for number in range(2):
            far._send_run(np.full((5000, 1, 2), number + 1.0), more=False, outputs=False)
        assert begun.wait(5)
        waiting = [slot.copy() for slot in slots]
        threading.Timer(0.2, go_on.set).start()
        far.restore(snapshot)
        assert all(np.array_equal(slot, one) for slot, one in zip(slots, waiting, strict=True))
        assert all(np.array_equal(array, snapshot[name]) for name, array in far.snapshot().items())


@contextlib.contextmanager
def ring_session(address: str, **terms: Any) -> Iterator[tuple[Client, Packets, int]]:
    """The checker's client with the device and a ring: its data socket, and the ring's segment."""
    with Device(address) as line, line.client() as client:
        client.terms = {"slot_bytes": SLOT_BYTES, **terms}
        ring = memfd(2 * client.hello()["credits"] * SLOT_BYTES)
        data: Any = client.data
        data.ring, data.slot_bytes, data.credits = mmap.mmap(ring, 0), SLOT_BYTES, client.welcome["credits"]
        data.send_packet(prefix(0, INLINE), wire.pack_data(client.head(wire.ATTACH))[0], descriptors=[ring])
        client.sent = 1
        client.declared(Reply(wire.Header(wire.ATTACH | wire.REPLY), data.receive()[1], None, []))
        yield client, data, ring
        os.close(ring)


def test_a_payload_is_copied_before_it_is_looked_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client writes into the slot after the checksum was found right does not reach the device."""
    right = links.check_payload
    u = drive(1, 200)
    with served(Toy(), address, checksums=True), ring_session(address) as (client, data, ring), Toy() as near:
        request = client.head_of_run(u)
        os.pwrite(ring, u.tobytes(), SLOT_BYTES)

        def check_then_write(payload: memoryview, crc: int) -> None:
            right(payload, crc)
            os.pwrite(ring, bytes(u.nbytes), SLOT_BYTES)

        monkeypatch.setattr(links, "check_payload", check_then_write)
        packed = wire.pack_data(request, u.tobytes())[0]
        data.send_packet(prefix(u.nbytes, SLOT), packed)
        client.sent = request.request
        assert np.array_equal(client.states(request), near.run(u))


def test_the_error_of_a_wrong_number_spares_a_reply(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose number is too high by the credits has the slot of a reply that nobody has read yet."""
    monkeypatch.setattr(unix_sockets, "INLINE_BYTES", 0)
    u = drive(1, 3)
    with served(Toy(), address), ring_session(address) as (client, data, ring), Toy() as near:
        credits = client.welcome["credits"]
        right = client.head_of_run(u)
        for request in (right, replace(right, request=right.request + credits)):
            data.send_packet(prefix(u.nbytes, INLINE), *wire.pack_data(request, u.tobytes()))
        until(lambda: client.told("status")["status"]["traffic"]["errors"] == 1)
        states = np.asarray(near.run(u))
        slot = os.pread(ring, states.nbytes, (credits + right.request - 1) * SLOT_BYTES)
        assert slot == states.tobytes()


def test_a_server_that_insists_on_checksums(address: str) -> None:
    with served(Toy(), address, checksums=True), ring_session(address, checksums=False) as (client, data, _):
        assert client.welcome["checksums"] is True
        header, payload = wire.pack_data(client.head_of_run(drive(1, 20)), drive(1, 20).tobytes())
        data.send_packet(prefix(len(payload), INLINE), header, b"x" + payload[1:])
        client.sent += 1
        client.failed(wire.Header(wire.RUN, client.session, client.sent), wire.E_CHECKSUM)


@pytest.mark.parametrize("kind", ["empty", "a file"])
def test_what_is_no_segment_for_a_ring(address: str, tmp_path: Path, kind: str) -> None:
    """The checker sends others that are none."""
    (tmp_path / "file").write_bytes(bytes(16 * SLOT_BYTES))
    segment = memfd(0) if kind == "empty" else os.open(tmp_path / "file", os.O_RDWR)
    with served(Toy(), address), Device(address) as line, line.client() as client:
        client.terms = {"slot_bytes": SLOT_BYTES}
        client.hello()
        data: Any = client.data
        attach = client.head(wire.ATTACH)
        data.send_packet(prefix(0, INLINE), wire.pack_data(attach)[0], descriptors=[segment])
        client.sent = 1
        text = client.failed(attach, wire.E_CONFIGURATION)["text"]
        assert re.search("has 0 bytes" if kind == "empty" else "is no memfd|lacks a seal", text)
    os.close(segment)


# ---- what a client does not take ------------------------------------------------------------------


def meet(address: str, lie: Callable[[bytes], tuple[bytes, list[int]]], **welcome: Any) -> None:
    """A client of this project and a server whose answer to ATTACH is a lie."""
    path = address.removeprefix("unix://")
    listeners = []
    for place in (path, path + ".control"):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(place)
        listener.listen()
        listeners.append(listener)

    def serve() -> None:
        control, _ = listeners[1].accept()
        with control:
            question = wire.unpack_control(control.recv(1 << 16))
            answer = {"version": 1, "session": 5, "lease_s": 10, "credits": 2, "max_frame_bytes": 1 << 20}
            control.send(wire.pack_control({"op": "welcome", "id": question["id"], **answer, **welcome}))
            listeners[0].settimeout(0.1)
            try:
                data, _ = listeners[0].accept()
            except TimeoutError:
                return
            with data:
                packet, given, _, _ = socket.recv_fds(data, 1 << 16, 1)
                for one in given:
                    os.close(one)
                answer, descriptors = lie(packet)
                socket.send_fds(data, [answer], descriptors) if answer else None
                for one in descriptors:
                    os.close(one)
                time.sleep(0.3 if answer else 0.0)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        connection = Connection(address, timeout_s=1.0)
        try:
            connection.attach()
        finally:
            connection.close()
    finally:
        thread.join()
        for listener in listeners:
            listener.close()


def reply_to(packet: bytes) -> wire.Header:
    header = wire.unpack_header(packet[16:96])[0]
    return wire.Header(header.operation | wire.REPLY, header.session, header.request)


LIES: dict[str, tuple[Callable[[bytes], tuple[bytes, list[int]]], type[Exception], str]] = {
    "half a packet": (lambda packet: (packet[:50], []), ProtocolError, "a packet begins with 96 bytes, this has 50"),
    "noise": (lambda _: (bytes(range(200)), []), ProtocolError, "damaged on its way"),
    "too long": (lambda _: (bytes(80_000), []), ProtocolError, "at most 65536 bytes"),
    "a slot too short": (
        lambda packet: (prefix(SLOT_BYTES + 1, SLOT) + wire.pack_data(reply_to(packet))[0], []),
        ProtocolError, "there is no slot with a payload of 4097 bytes",
    ),
    "a segment too short": (
        lambda packet: (prefix(9, MEMFD) + wire.pack_data(reply_to(packet))[0], [memfd(8)]),
        ProtocolError, "a payload of 9 bytes ends after 8",
    ),
    "larger than it said": (
        lambda packet: (prefix(1 << 30, MEMFD) + wire.pack_data(reply_to(packet))[0], [memfd(8)]),
        ProtocolError, "a payload of 1073741824 bytes; at most 1048576 are taken",
    ),
    "gone": (lambda _: (b"", []), DeviceDisconnected, "the device has gone"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_servers_that_lie(address: str, name: str) -> None:
    lie, error, message = LIES[name]
    with pytest.raises(error, match=message):
        meet(address, lie, checksums=False, slot_bytes=SLOT_BYTES)


@pytest.mark.parametrize(
    "terms", [{"slot_bytes": 1 << 22}, {"slot_bytes": 5}, {"slot_bytes": None}, {"checksums": 1}, {"slot_bytes": True}]
)
def test_welcomes_that_cannot_be(address: str, terms: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="which cannot be"):
        meet(address, lambda packet: (packet, []), **terms)


# ---- who may, and where ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user(address: str) -> None:
    path = Path(address.removeprefix("unix://"))
    path.parent.chmod(0o755)
    with process("mortal_server.py", address, "1000000"):
        os.seteuid(65534)
        try:
            with pytest.raises(DeviceDisconnected, match="its socket belongs to another user"):
                connect(address)
            os.seteuid(0)
            for name in ("device", "device.control"):
                path.with_name(name).chmod(0o666)
            os.seteuid(65534)
            with pytest.raises(DeviceDisconnected, match="belongs to user 0, this is user 65534"):
                connect(address)
            with connected(str(path)) as stranger:
                assert stranger.recv(1) == b""
        finally:
            os.seteuid(0)
        with connect(address) as far:
            assert far.run(drive(1, 3)).shape == (1, 3, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_data_socket_of_another_user(address: str) -> None:
    """The control socket was right: the data socket is looked at for itself."""
    path = address.removeprefix("unix://")
    with served(Toy(), address), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
        os.unlink(path)
        theirs.bind(path)
        os.seteuid(65534)
        try:
            theirs.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(DeviceDisconnected, match="device belongs to user 65534, this is user 0"):
            connect(address)


@pytest.mark.slow
def test_no_room_for_a_ring(address: str) -> None:
    with process("mortal_server.py", address, "1000000"), no_gaps_between_descriptors():
        said = []
        for resource_, spare in ((resource.RLIMIT_NOFILE, range(6)), (resource.RLIMIT_AS, [24 << 20])):
            before = resource.getrlimit(resource_)
            for more in spare:
                used = lowest_descriptor() if resource_ == resource.RLIMIT_NOFILE else address_space()
                resource.setrlimit(resource_, (used + more, before[1]))
                try:
                    Connection(address, timeout_s=2.0).close()
                except DeviceDisconnected as error:
                    said.append(str(error))
                finally:
                    resource.setrlimit(resource_, before)
    assert any("no connection: Too many open files" in one for one in said)
    assert any("no shared memory for a ring of 32 MiB: Too many open files" in one for one in said)
    assert "no shared memory for a ring of 32 MiB: Cannot allocate memory" in said[-1]


@contextlib.contextmanager
def no_gaps_between_descriptors() -> Iterator[None]:
    """A limit then leaves just as many as it lies above the lowest free one."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as held:
        while (filler := os.dup(0)) < highest:
            held.callback(os.close, filler)
        os.close(filler)
        yield


def lowest_descriptor() -> int:
    free = os.dup(0)
    os.close(free)
    return free


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def test_a_path_that_is_in_use(address: str) -> None:
    path = address.removeprefix("unix://")
    for there, said in (
        (f"unix://{path}.control", "this is the control socket of"),
        (f"unix://{path}", "another server listens there"),
        (f"ipc://{path}", "another server listens there"),
    ):
        with served(Toy(), there), pytest.raises(ConfigurationError, match=said), served(Toy(), address):
            pass
        assert there.startswith("ipc") or not os.path.exists(path)
    Path(path).unlink(missing_ok=True)
    Path(path).write_text("no socket")
    with pytest.raises(ConfigurationError, match="something that is no socket"), served(Toy(), address):
        pass
    assert Path(path).read_text() == "no socket"
    with pytest.raises(ConfigurationError, match="No such file or directory"), served(Toy(), "unix:///no/such/x"):
        pass


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_the_file_of_a_dead_server_is_taken_over(address: str, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as dead:
        dead.bind(address.removeprefix("unix://"))
        dead.listen()
    with served(Toy(), address), connect(address) as far:
        assert far.run(drive(1, 3)).shape == (1, 3, 2)
    assert not os.path.exists(address.removeprefix("unix://"))


@pytest.mark.slow
def test_of_two_servers_that_start_at_once_one_does(address: str) -> None:
    for _ in range(5):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(address.removeprefix("unix://"))
        servers, refused = [Server(Toy(), address) for _ in range(3)], []

        def run(server: Server, refused: list[str] = refused) -> None:
            try:
                server.run()
            except ConfigurationError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=run, args=(server,)) for server in servers]
        for thread in threads:
            thread.start()
        until(lambda refused=refused: len(refused) == 2)
        with connect(address) as far:
            assert far.run(drive(1, 3)).shape == (1, 3, 2)
        for server in servers:
            server.stop()
        for thread in threads:
            thread.join()
        assert all("another server listens there" in one for one in refused)


def test_sentences_for_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="both unix addresses, or none is"):
        connect("unix:///tmp/x", control="tcp://127.0.0.1:5555")
    with pytest.raises(ConfigurationError, match="both unix addresses, or none is"):
        Server(Toy(), "ipc:///tmp/x", control="unix:///tmp/x.control")
    with pytest.raises(ConfigurationError, match="shorter than 100 bytes"):
        connect(f"unix:///{'x' * 110}")
    with pytest.raises(ConfigurationError, match="keys are for tcp and ipc"):
        Connection("unix:///tmp/x", server_key=b"k" * 40)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigurationError, match=re.escape("unix:///tmp/x: unix addresses need Linux")):
        connect("unix:///tmp/x")


def test_nobody_is_there(address: str) -> None:
    with pytest.raises(DeviceTimeout, match=r"no connection within 0\.3 s .*Is the server running"):
        connect(address, timeout_s=0.3)
    with served(Toy(), address.replace("unix", "ipc")), pytest.raises(DeviceDisconnected, match="an ipc:// address"):
        connect(address)


# ---- who has gone ---------------------------------------------------------------------------------


def test_a_server_that_has_gone_is_noticed_at_once(address: str) -> None:
    with served(Toy(), address, lease_s=60.0):
        far = connect(address, timeout_s=30)
    started = time.monotonic()
    with pytest.raises(DeviceDisconnected):
        far.run(drive(1, 3))
    far.close()
    assert time.monotonic() - started < 1


def test_a_client_that_reads_nothing_stops_the_device_for_a_lease(address: str) -> None:
    u = np.zeros((1, 1, 2))
    with served(Toy(), address, lease_s=0.3) as server, Device(address) as line, line.client() as client:
        client.hello()
        client.attach()
        while server.status()["holder"] is not None:
            assert client.sent < 100_000
            client.send_run(u, step=client.sent - 1)


@pytest.mark.slow
def test_nothing_is_left_of_a_session(address: str) -> None:
    with served(Toy(), address):

        def left() -> tuple[int, int]:
            gc.collect()
            maps = Path("/proc/self/maps").read_text()
            return len(os.listdir("/proc/self/fd")), maps.count("memfd")

        before = left()
        for _ in range(2):
            with connect(address) as far:
                far.run(drive(1, 3000))
                assert left()[1] > before[1]
            until(lambda: left() == before)


def test_many_strangers(address: str) -> None:
    with served(Toy(), address), connect(address) as far:
        strangers = [connected(address.removeprefix("unix://")) for _ in range(100)]
        assert far.run(drive(1, 3)).shape == (1, 3, 2)
        for stranger in strangers:
            with contextlib.suppress(BrokenPipeError):
                stranger.send(struct.pack("<Q", 3))
            stranger.close()
        assert far.run(drive(1, 3)).shape == (1, 3, 2)
