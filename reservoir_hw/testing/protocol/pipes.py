"""One connection to a device: a ZeroMQ socket, or a Unix socket with packets."""

from __future__ import annotations

import math
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import zmq
import zmq.utils.monitor

from reservoir_hw.core.errors import DeviceDisconnected, DeviceTimeout
from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.ledger import NotThePage

CONNECT_S = 5.0
LARGEST_PACKET = 65536
INLINE, SLOT, MEMFD = range(3)
HEADER_BYTES = 80
LARGEST_INLINE = LARGEST_PACKET - 16 - HEADER_BYTES
SEALS = 0x2 | 0x4
"""F_SEAL_SHRINK and F_SEAL_GROW."""
ADD_SEALS = 1033
CREDENTIALS = struct.Struct("iII")
NOBODY = "nobody listens there. Is the server running, and the address right?"


class Dealer:
    """A ZeroMQ socket: messages of several frames, whole and in order."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = _dealer(context, address)
        self._socket.setsockopt(zmq.SNDTIMEO, round(1000 * CONNECT_S))
        self._socket.connect(address)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message; `TimeoutError` or `OSError` if it does not go out."""
        try:
            self._socket.send_multipart(frames, copy=False)
        except zmq.Again:
            raise TimeoutError from None

    def receive(self) -> list[bytes]:
        """The next message."""
        return self._socket.recv_multipart()

    def waits(self, seconds: float) -> bool:
        """Whether there is one."""
        return bool(self._socket.poll(math.ceil(1000 * seconds)))

    def close(self) -> None:
        """Go."""
        self._socket.close()


class Packets:
    """A Unix socket. Payloads travel inline or in a segment of their own, and in slots if there is a ring."""

    def __init__(self, address: str, *, data: bool) -> None:
        self._data = data
        self._gone = False
        self.ring: mmap.mmap | None = None
        self.slot_bytes = self.credits = 0
        self.place = INLINE
        """Of the payload that came last."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(CONNECT_S)
        try:
            self._socket.connect(address.removeprefix("unix://"))
        except OSError:
            self._socket.close()
            raise

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message: what is not a header and a payload goes as it is."""
        if not self._data or len(frames) != 2 or len(frames[0]) != HEADER_BYTES:
            self._socket.sendmsg(frames)
            return
        header, payload = frames
        if len(payload) <= LARGEST_INLINE:
            self.send_packet(prefix(len(payload), INLINE), header, payload)
            return
        segment = memfd(len(payload), payload)
        try:
            self.send_packet(prefix(len(payload), MEMFD), header, descriptors=[segment])
        finally:
            os.close(segment)

    def send_packet(self, *parts: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a packet as it is."""
        socket.send_fds(self._socket, list(parts), list(descriptors))

    def receive(self) -> list[bytes]:
        """The frames of the next message; `NotThePage` if it has none."""
        packet, descriptors, flags, _ = socket.recv_fds(self._socket, LARGEST_PACKET + 1, 4)
        try:
            if not packet:
                self._gone = True
                raise NotThePage("the device has closed the connection")
            if flags & socket.MSG_TRUNC:
                raise NotThePage(f"a packet of more than {LARGEST_PACKET} bytes", [packet])
            if not self._data:
                return [packet]
            return [packet[16 : 16 + HEADER_BYTES], self._payload(packet, descriptors)]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _payload(self, packet: bytes, descriptors: list[int]) -> bytes:
        if len(packet) < 16 + HEADER_BYTES:
            raise NotThePage(f"a packet of {len(packet)} bytes", [packet])
        length, place, zeros, crc = struct.unpack("<QB3sI", packet[:16])
        if codec.crc32c(packet[:12]) != crc or zeros != bytes(3):
            raise NotThePage(f"the packet begins with {packet[:16].hex()}", [packet])
        self.place = place
        rest = packet[16 + HEADER_BYTES :]
        if len(descriptors) != (place == MEMFD) or (rest and place != INLINE):
            what = f"place {place}, {len(descriptors)} descriptors and {len(rest)} bytes inline"
            raise NotThePage(what, [packet])
        if place == INLINE:
            payload = rest
        elif place == MEMFD:
            payload = os.pread(descriptors[0], min(length, os.fstat(descriptors[0]).st_size), 0)
        elif place == SLOT and self.ring is not None and length <= self.slot_bytes:
            (request,) = struct.unpack("<Q", packet[32:40])
            at = (self.credits + (request - 1) % self.credits) * self.slot_bytes
            payload = self.ring[at : at + length]
        else:
            raise NotThePage(f"place {place} with {length} bytes", [packet])
        if len(payload) != length:
            raise NotThePage(f"{len(payload)} bytes, and {length} were said", [packet])
        return payload

    @property
    def user(self) -> int:
        """The effective user of the device."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        return CREDENTIALS.unpack(found)[1]

    def waits(self, seconds: float) -> bool:
        """Whether there is one. Of a device that has gone none comes."""
        if self._gone:
            time.sleep(seconds)
            return False
        return bool(select.select([self._socket], [], [], seconds)[0])

    def close(self) -> None:
        """Go."""
        self._socket.close()
        if self.ring is not None:
            self.ring.close()


Pipe: TypeAlias = Dealer | Packets


def prefix(length: int, place: int) -> bytes:
    """What stands before the header in a packet."""
    return codec.sealed(struct.pack("<QB3s", length, place, bytes(3)))


def memfd(size: int, content: bytes = b"", *, seals: int = SEALS) -> int:
    """A new segment of shared memory without a name."""
    import fcntl

    descriptor = os.memfd_create("check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if content:
        os.pwrite(descriptor, content, 0)
    fcntl.fcntl(descriptor, ADD_SEALS, seals)
    return descriptor


def shake_hands(context: zmq.Context[Any], address: str) -> None:
    """Raise `DeviceTimeout` or `DeviceDisconnected` unless somebody listens there who speaks so."""
    if address.startswith("unix://"):
        try:
            packets = Packets(address, data=False)
        except OSError as error:
            raise DeviceTimeout(f"no connection to {address} ({error.strerror}): {NOBODY}") from error
        user = packets.user
        packets.close()
        if user != os.geteuid():
            raise DeviceDisconnected(
                f"{address} belongs to user {user}, this is user {os.geteuid()}: only the same user may drive it"
            )
        return
    refused = NOBODY
    dealer = _dealer(context, address)
    monitor = dealer.get_monitor_socket()
    try:
        dealer.connect(address)
        until = time.monotonic() + CONNECT_S
        while (left := until - time.monotonic()) > 0 and monitor.poll(math.ceil(1000 * left)):
            event = zmq.utils.monitor.recv_monitor_message(monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if event in (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                raise DeviceDisconnected(
                    f"{address}: the handshake failed: it asks for keys, which the check does not have, or is no ZeroMQ"
                )
            if event == zmq.EVENT_CONNECTED:
                refused = "it accepts connections, but does not speak ZeroMQ"
        raise DeviceTimeout(f"no connection to {address} within {CONNECT_S:g} s: {refused}")
    finally:
        dealer.disable_monitor()
        monitor.close()
        dealer.close()


def _dealer(context: zmq.Context[Any], address: str) -> zmq.Socket[bytes]:
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.setsockopt(zmq.IPV6, "[" in address)
    return dealer
