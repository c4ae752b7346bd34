"""A client of a unix address, written from docs/protocol.md alone."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Any, Self

import msgpack
import numpy as np

from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header

INLINE, SLOT, MEMFD = range(3)
LARGEST_INLINE = 65_440
PATIENCE_S = 5.0
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Refused(Exception):
    def __init__(self, error: dict[str, Any], header: Header | None = None) -> None:
        super().__init__(f"{error['code']}: {error['text']}")
        self.code, self.text, self.header = error["code"], error["text"], header


class Ended(Exception):
    """The other side has gone."""


def front(length: int, place: int) -> bytes:
    packed = struct.pack("<QB3x", length, place)
    return packed + struct.pack("<I", wire.crc32c(packed))


def connected(path: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(PATIENCE_S)
    one.connect(path)
    return one


def memfd(size: int, seals: int = SEALS, content: bytes = b"") -> int:
    descriptor = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, content, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class UnixPage:
    """One session; nothing happens that the caller did not ask for."""

    def __init__(self, address: str) -> None:
        path = address.removeprefix("unix://")
        self.data, self.control = connected(path), connected(path + ".control")
        self.session = self.request = self.step = self._asked = 0
        self.checksums, self.slots, self.slot_bytes = True, 0, 0
        self.memory = b""
        self.places: list[int] = []
        self.welcome: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.data.close()
        self.control.close()

    # ---- control ----------------------------------------------------------------------------

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self._asked += 1
        self.control.send(wire.pack_control({"op": op, "id": self._asked, **fields}))
        reply = wire.unpack_control(self.control.recv(1 << 16))
        assert reply["id"] == self._asked
        if reply["op"] == "error":
            raise Refused(reply)
        return reply

    def hello(self, **terms: Any) -> dict[str, Any]:
        welcome = self.ask("hello", versions=[1], client="page", nonce=secrets.token_bytes(16), **terms)
        self.welcome, self.session = welcome, welcome["session"]
        self.checksums, self.slot_bytes = welcome["checksums"], welcome["slot_bytes"]
        self.slots = welcome["credits"]
        return welcome

    # ---- data -------------------------------------------------------------------------------

    def packet(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a packet as it is, and close what it carries."""
        socket.send_fds(self.data, [packet], list(descriptors))
        for one in descriptors:
            os.close(one)

    def head(self, operation: int, **fields: Any) -> Header:
        self.request += 1
        return Header(operation, self.session, self.request, **fields)

    def sealed(self, header: Header, payload: bytes) -> bytes:
        """The 80 bytes of a header, with the checksum of its payload or without."""
        return wire.pack_data(header, payload if self.checksums else b"")[0]

    def put(self, header: Header, payload: bytes = b"", place: int = INLINE) -> None:
        packed, descriptors = front(len(payload), place) + self.sealed(header, payload), []
        if place == INLINE:
            packed += payload
        elif place == SLOT:
            at = (header.request - 1) % self.slots * self.slot_bytes
            memory: Any = self.memory
            memory[at : at + len(payload)] = payload
        else:
            descriptors = [memfd(len(payload), content=payload)]
        self.packet(packed, descriptors)

    def take(self) -> tuple[Header, bytes]:
        packet, descriptors, flags, _ = socket.recv_fds(self.data, 1 << 17, 2)
        if not packet:
            raise Ended
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        assert len(packet) <= 1 << 16
        length, place = struct.unpack("<QB3x", packet[:12])
        assert packet[:16] == front(length, place)
        header, crc = wire.unpack_header(packet[16:96])
        self.places.append(place)
        assert len(descriptors) == (place == MEMFD)
        if place == INLINE:
            payload = packet[96:]
            assert len(payload) == length <= LARGEST_INLINE
        elif place == SLOT:
            assert len(packet) == 96
            at = (self.slots + (header.request - 1) % self.slots) * self.slot_bytes
            payload = bytes(self.memory[at : at + length])
        else:
            assert len(packet) == 96
            payload = os.pread(descriptors[0], length + 1, 0)
            assert len(payload) == length
            os.close(descriptors[0])
        assert crc == (wire.crc32c(payload) if self.checksums else 0)
        return header, payload

    def reply(self) -> tuple[Header, bytes]:
        header, payload = self.take()
        if header.operation == wire.ERROR:
            raise Refused(msgpack.unpackb(payload), header)
        return header, payload

    def attach(self, segment: int | None = None) -> dict[str, Any]:
        """Take the device, with a segment for the ring if there is to be one; by default a right one."""
        if segment is None and self.slot_bytes:
            segment = memfd(2 * self.slots * self.slot_bytes)
        if segment is not None and os.fstat(segment).st_size:
            self.memory = mmap.mmap(segment, 0)
        self.packet(front(0, INLINE) + self.sealed(self.head(wire.ATTACH), b""), [] if segment is None else [segment])
        self.declaration = msgpack.unpackb(self.reply()[1])
        self.step = 0
        return self.declaration

    def reset(self, batch: int = 1) -> None:
        self.put(self.head(wire.RESET, batch=batch))
        self.reply()
        self.step = 0

    def run_header(self, u: np.ndarray) -> Header:
        batch, steps, width = u.shape
        return self.head(
            wire.RUN, step=self.step, batch=batch, steps=steps, width=width, dtype=self.declaration["inputs"][0]
        )

    def send_run(self, u: np.ndarray, place: int = INLINE) -> None:
        self.put(self.run_header(u), u.tobytes(), place)
        self.step += u.shape[1]

    def states(self) -> np.ndarray:
        header, payload = self.reply()
        return wire.numbers(header, payload)

    def run(self, u: np.ndarray, place: int = INLINE) -> np.ndarray:
        self.send_run(u, place)
        return self.states()
