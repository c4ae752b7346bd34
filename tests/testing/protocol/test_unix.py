"""The checker on served devices behind Unix sockets, and on such with a planted fault."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served import ipc_address, served

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import DeviceDisconnected
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir
from reservoir_hw.drivers.zeromq import ring, unix_sockets
from reservoir_hw.drivers.zeromq.links import Gone, Terms
from reservoir_hw.testing.protocol.check import check
from reservoir_hw.testing.protocol.unix import RULES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Unix sockets with packets need Linux")


@pytest.fixture
def address() -> Iterator[str]:
    with ipc_address() as address:
        yield address.replace("ipc:", "unix:")


def esn() -> Reservoir:
    return build_reservoir(parse_reservoir(Document.from_mapping({"kind": "esn", "nodes": 30, "inputs": 2}, "test")))


@contextlib.contextmanager
def listeners(address: str) -> Iterator[list[socket.socket]]:
    """Sockets at both addresses, of nobody who knows the page."""
    path = address.removeprefix("unix://")
    with contextlib.ExitStack() as held:
        both = [held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(2)]
        for listener, place in zip(both, (path, f"{path}.control"), strict=True):
            listener.bind(place)
            listener.listen()
        yield both


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            bytes(range(200)),
            r"control header 0001\w* \(000102030405060708090a0b0c0d0e0f\): it is no device of this protocol",
        ),
        (bytes(70_000), "a packet of more than 65536 bytes: it is no device of this protocol"),
        (b"", "the device has closed the connection: it is no device of this protocol"),
    ],
    ids=["noise", "too long", "closed"],
)
def test_what_is_no_device(address: str, answer: bytes, message: str) -> None:
    with listeners(address) as (data, control):
        del data

        def serve() -> None:
            control.accept()[0].close()  # The look whether somebody is there.
            connection, _ = control.accept()
            with connection:
                connection.recv(1 << 16)
                if answer:
                    connection.send(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(DeviceDisconnected, match=message):
            check(address)
        thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_device_of_another_user(address: str) -> None:
    with listeners(address) as both:
        os.seteuid(65534)
        try:
            for listener in both:
                listener.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(DeviceDisconnected, match="device belongs to user 65534, this is user 0"):
            check(address)


def _no_front_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "_unpack_front", lambda front: struct.unpack_from("<QB", front))


def _no_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "mapped", ring.Ring)


def _padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "read_memfd", lambda _, size: memoryview(bytes(size)))


def _next_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ring.Ring.request
    monkeypatch.setattr(ring.Ring, "request", lambda self, number: right(self, number + 1))


def _next_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ring.Ring.reply
    monkeypatch.setattr(ring.Ring, "reply", lambda self, number: right(self, number + 1))


def _open_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets.os, "fchmod", lambda *_: None)


def _deaf_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    right = unix_sockets.UnixRouter.receive

    def receive(self: Any) -> Any:
        try:
            return right(self)
        except Gone:
            raise TimeoutError from None

    monkeypatch.setattr(unix_sockets.UnixRouter, "receive", receive)


def _ring_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        unix_sockets.UnixRouter, "agreed", lambda self, hello, slots, checksums: Terms(True, slots, 4096)
    )


def _rest_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    right = unix_sockets.Packet.header

    def header(self: Any) -> Any:
        found = right(self)
        if self._place != 0:
            self._frames = self._frames[0], b""
        return found

    monkeypatch.setattr(unix_sockets.Packet, "header", header)


def _errors_in_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_sockets, "INLINE_BYTES", 0)

    right = unix_sockets.UnixRouter.send
    monkeypatch.setattr(
        unix_sockets.UnixRouter,
        "send",
        lambda self, peer, header, payload, _: right(
            self, peer, header, payload, int.from_bytes(header[16:24], "little")
        ),
    )


ROUND = "payloads in the slots of a ring are payloads, round and round"
PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "the first bytes are not looked at": (
        _no_front_check,
        "byte 9 not 0: error 4 with request 0, not counted",
        "an ERROR with 0 and 0 is due",
    ),
    "the seals are not looked at": (_no_seals, "ATTACH with a segment that may shrink: error 17", "ATTACH was done"),
    "a short memfd is filled with 0": (_padded, "a memfd that ends too early: error 4", "error 4 is due"),
    "what stands behind a header is not looked at": (
        _rest_is_ignored,
        "bytes behind the header of a payload that lies elsewhere: error 4",
        "RUN was done",
    ),
    "errors lie in slots": (
        _errors_in_slots,
        "an error never lies in a slot",
        "the ERROR lies in a slot",
    ),
    "payloads are taken from the next slot": (_next_slot, ROUND, "RUN was answered with error 5"),
    "replies are put into the next slot": (_next_reply, ROUND, "the checksum of the payload is wrong"),
    "anybody may connect": (_open_to_all, "the sockets have mode 0600", "has mode 755"),
    "who has gone is not noticed": (
        _deaf_to_the_end,
        "the end of the data connection ends the session",
        "hello got error 2",
    ),
    "a ring that nobody asked for": (
        _ring_for_all,
        "who asks for no terms gets no ring, and checksums",
        "ATTACH was answered with error 17",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_fault_is_found(name: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, breaks, detail = PLANTED[name]
    plant(monkeypatch)
    before = os.umask(0o022)
    try:
        with served(esn(), address, lease_s=2.0):
            report = check(address, rules=[rule for rule in RULES if rule.title == breaks])
    finally:
        os.umask(before)
    (row,) = report.rows
    assert row.outcome == "broken", row
    assert detail in row.detail
