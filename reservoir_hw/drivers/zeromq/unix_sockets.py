"""Messages through Unix sockets, and payloads through shared memory: both sides on one host (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np

from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceTimeout, ProtocolError
from reservoir_hw.drivers.codes import Code, Refusal
from reservoir_hw.drivers.zeromq.addresses import check_free
from reservoir_hw.drivers.zeromq.frames import HEADER_BYTES, Header, Operation
from reservoir_hw.drivers.zeromq.links import Dealer, Gone, Listening, Message, Router, Terms
from reservoir_hw.drivers.zeromq.ring import Ring, filled_memfd, mapped, new_segment, read_memfd

LARGEST_PACKET = 1 << 16
SLOT_BYTES = 1 << 21
"""What a client asks for: the chunks that it makes by itself fit."""
PAGE_BYTES = 4096
LARGEST_SLOT = 1 << 30
# Up to here a copy through the socket is quicker than a look into shared memory.
INLINE_BYTES = 1 << 13
# Clients besides the one that has the device only ask something, and go.
MOST_CONNECTIONS = 64
LOOK_S = 0.1

_INLINE, _SLOT, _MEMFD = range(3)
_PLACE = struct.Struct("<QB3s")
_CHECKSUM = struct.Struct("<I")
_FRONT_BYTES = _PLACE.size + _CHECKSUM.size
_PAYLOAD_AT = _FRONT_BYTES + HEADER_BYTES
_LARGEST_INLINE = LARGEST_PACKET - _PAYLOAD_AT
_ONE_DESCRIPTOR = socket.CMSG_SPACE(4)
# As numbers: operators of enumerations take microseconds.
_NO_WAIT, _NO_SIGNAL = int(socket.MSG_DONTWAIT), int(socket.MSG_NOSIGNAL)
_CLOSE_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_DESCRIPTOR = struct.Struct("i")
_CREDENTIALS = struct.Struct("iII")
_TIME = struct.Struct("ll")


@lru_cache
def _front(length: int, place: int) -> bytes:
    """What stands before the header."""
    packed = _PLACE.pack(length, place, bytes(3))
    return packed + _CHECKSUM.pack(google_crc32c.value(packed))


@lru_cache
def _unpack_front(front: bytes) -> tuple[int, int]:
    """Length and place of the payload, or `ProtocolError`."""
    length, place, unused = _PLACE.unpack_from(front)
    if google_crc32c.value(front[: _PLACE.size]) != _CHECKSUM.unpack_from(front, _PLACE.size)[0]:
        raise ProtocolError("the packet was damaged on its way (the checksum of its first bytes is wrong)")
    if place > _MEMFD or any(unused):
        raise ProtocolError(f"the packet begins with {front[: _PLACE.size]!r}: there is no place {place}")
    return length, place


class Packet(Message):
    """A message in a packet: its frames lie there one behind the other, or the payload elsewhere."""

    def __init__(self, end: _End, peer: Hashable, packet: memoryview, *, whole: bool, waited: bool) -> None:
        super().__init__([packet], peer, waited=waited)
        self._end, self._packet, self._whole = end, packet, whole

    def control(self) -> bytes:
        """The frame of a control message, or `ProtocolError`."""
        self._check_whole()
        return super().control()

    def header(self) -> tuple[Header, int]:
        """The header of a data message and the checksum of its payload, or `ProtocolError`."""
        packet, descriptors = self._packet, len(self._end.descriptors)
        self._check_whole()
        if len(packet) < _PAYLOAD_AT:
            raise ProtocolError(f"a packet begins with {_PAYLOAD_AT} bytes, this has {len(packet)}")
        self._size, self._place = _unpack_front(packet[:_FRONT_BYTES].tobytes())
        self._frames = packet[_FRONT_BYTES:_PAYLOAD_AT], packet[_PAYLOAD_AT:]
        header, crc = super().header()
        if descriptors != (self._place == _MEMFD) and not (header.operation == Operation.ATTACH and descriptors == 1):
            raise ProtocolError(f"a packet with a payload at place {self._place} came with {descriptors} descriptors")
        return header, crc

    def _has_checksum(self) -> bool:
        return self._end.terms.checksums

    def _content(self, header: Header) -> memoryview:
        end, size, inline = self._end, self._size, self._frames[1]
        if size > end.max_frame_bytes:
            raise Refusal(Code.TOO_LARGE, f"a payload of {size} bytes; at most {end.max_frame_bytes} are taken")
        if self._place == _INLINE:
            if len(inline) != size:
                raise Refusal(Code.MALFORMED, f"a payload of {size} bytes was announced, {len(inline)} came")
            return inline
        if len(inline):
            raise Refusal(Code.MALFORMED, "a payload that lies elsewhere was announced, but the packet goes on")
        if self._place == _MEMFD:
            return read_memfd(end.descriptors[0], size)
        slot = end.incoming(header.request)
        if slot is None or size > len(slot):
            raise Refusal(Code.MALFORMED, f"there is no slot with a payload of {size} bytes")
        slot = slot[:size]
        # An array that is not checked is looked at only where it was copied to.
        return (slot.copy() if end.terms.checksums or not header.dtype else slot).data

    def _check_whole(self) -> None:
        if not self._whole:
            raise ProtocolError(f"a packet has at most {LARGEST_PACKET} bytes and one descriptor, this has more")


class _End:
    """What both ends of a connection do with packets."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.terms = Terms()
        self.max_frame_bytes = max_frame_bytes
        self.descriptors: list[int] = []
        """Those that came with the last packet. They are closed when the next one comes."""
        self._ring: Ring | None = None
        self._inline_bytes = INLINE_BYTES
        self._room = memoryview(bytearray(LARGEST_PACKET))

    def incoming(self, request: int) -> np.ndarray | None:
        """The slot that the other side fills for this request, or its reply."""
        raise NotImplementedError

    def _take(self, connection: socket.socket, peer: Hashable, flags: int = 0, *, waited: bool = False) -> Packet:
        """The next packet; raises `BlockingIOError` and `Gone`."""
        self._drop_descriptors()
        try:
            size, extra, found, _ = connection.recvmsg_into([self._room], _ONE_DESCRIPTOR, _CLOSE_ON_EXEC | flags)
        except BlockingIOError:
            raise
        except OSError:
            size, extra, found = 0, [], 0
        for _, _, content in extra:
            self.descriptors += struct.unpack(f"{len(content) // 4}i", content)
        if not size:
            raise Gone(peer)
        return Packet(self, peer, self._room[:size], whole=not found & _CUT, waited=waited)

    def _put(
        self,
        connection: socket.socket,
        header: bytes,
        payload: Any,
        slot: np.ndarray | None,
        flags: int = 0,
        descriptor: int | None = None,
    ) -> None:
        """Send a data message; raises `BlockingIOError` and `Gone`. `slot` is None if its slot cannot be used."""
        size = len(payload) if isinstance(payload, bytes) else payload.nbytes
        parts: list[Any] = [_front(size, _INLINE), header]
        own = None
        if slot is not None and self._inline_bytes < size <= len(slot):
            parts[0] = _front(size, _SLOT)
            content = np.frombuffer(payload, np.uint8)
            if not np.may_share_memory(content, slot):
                slot[:size] = content
        elif size <= _LARGEST_INLINE:
            parts.append(payload)
        else:
            parts[0] = _front(size, _MEMFD)
            descriptor = own = filled_memfd(payload)
        extra = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))]
        try:
            connection.sendmsg(parts, extra, _NO_SIGNAL | flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Gone(connection) from error
        finally:
            if own is not None:
                os.close(own)

    def _drop_descriptors(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


class UnixDealer(_End, Dealer):
    """A client's end for `address`, which waits for a connection and for room for `timeout_s`."""

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__(0)
        self._address, self._timeout_s = address, timeout_s
        self._segment: int | None = None
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise DeviceDisconnected(f"{address}: {_why_not(error)}") from error
        # In the kernel: a timeout of Python's costs a system call for every packet.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _kernel_time(LOOK_S))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _kernel_time(timeout_s))

    def reach(self, device: str) -> None:
        """Connect as soon as somebody listens, or raise `DeviceTimeout`, or `DeviceDisconnected` if it never can."""
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                self._socket.connect(_path_of(self._address))
                break
            except (FileNotFoundError, ConnectionRefusedError) as error:
                if time.monotonic() > until:
                    raise DeviceTimeout(
                        f"{device}: no connection within {self._timeout_s:g} s (nobody listens there; its control "
                        f"socket is {self._address}). Is the server running, and the address right?"
                    ) from error
            except OSError as error:
                raise DeviceDisconnected(f"{device}: {_why_not(error)}") from error
            time.sleep(min(LOOK_S, self._timeout_s))
        self._check_user(device)

    def connect(self) -> None:
        """Connect, or raise `DeviceDisconnected`."""
        try:
            self._socket.connect(_path_of(self._address))
        except OSError as error:
            raise DeviceDisconnected(f"{self._address}: {_why_not(error)}") from error
        self._check_user(self._address)

    def wishes(self, *, checksums: bool) -> dict[str, Any]:
        """What a hello says about payloads."""
        return {"checksums": checksums, "slot_bytes": SLOT_BYTES}

    def agree(self, welcome: Mapping[str, Any]) -> None:
        """Keep the terms of a welcome from now on, or raise `ProtocolError`."""
        checksums, slot_bytes = welcome.get("checksums", True), welcome.get("slot_bytes", 0)
        if type(checksums) is not bool or type(slot_bytes) is not int or not _is_slot(slot_bytes, SLOT_BYTES):
            raise ProtocolError(
                f"{self._address}: the welcome has checksums {checksums!r} and slot_bytes {slot_bytes!r}, which cannot "
                "be"
            )
        self.terms = Terms(checksums, welcome["credits"], slot_bytes)
        self.max_frame_bytes = welcome["max_frame_bytes"]
        if slot_bytes:
            try:
                self._segment = new_segment(self.terms.slots, slot_bytes)
                self._ring = Ring(self._segment, self.terms.slots, slot_bytes)
                # As many packets as there are credits have room in the kernel, which counts twice what they hold.
                room = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // (2 * self.terms.slots)
                self._inline_bytes = min(INLINE_BYTES, max(0, room - _PAYLOAD_AT))
            except OSError as error:
                raise DeviceDisconnected(
                    f"{self._address}: no shared memory for a ring of {2 * self.terms.slots * slot_bytes >> 20} MiB: "
                    f"{error.strerror}"
                ) from error

    def incoming(self, request: int) -> np.ndarray | None:
        """The slot with the reply to this request; an error that answers none, 0, has none."""
        return self._ring.reply(request) if self._ring is not None and request else None

    def send(self, header: bytes, payload: Any, request: int, came: int) -> None:
        """A data message; the first one carries the ring. Raises `TimeoutError` if nothing goes out."""
        ring = self._ring
        free = ring is not None and (request <= ring.slots or came >= request - ring.slots)
        slot = ring.request(request) if ring is not None and free else None
        try:
            self._put(self._socket, header, payload, slot, descriptor=self._segment if request == 1 else None)
        except BlockingIOError as error:
            raise TimeoutError from error

    def receive(self) -> Message:
        """The next data message, or `TimeoutError` after a moment."""
        try:
            return self._take(self._socket, None)
        except BlockingIOError as error:
            raise TimeoutError from error

    def send_control(self, frame: bytes) -> None:
        """A control message; it is lost if nobody takes it."""
        try:
            self._socket.send(frame, _NO_SIGNAL)
        except BlockingIOError:
            pass
        except OSError as error:
            raise Gone from error

    def receive_control(self, seconds: float) -> bytes:
        """The next control message, or `TimeoutError`."""
        if not _ready(self._socket, select.POLLIN, seconds):
            raise TimeoutError
        return self._take(self._socket, None).control()

    def close(self) -> None:
        """Cut the connection."""
        self._drop_descriptors()
        self._socket.close()
        if self._segment is not None:
            os.close(self._segment)
            self._segment = None

    def _check_user(self, device: str) -> None:
        if (user := _user_of(self._socket)) != os.geteuid():
            raise DeviceDisconnected(
                f"{device} belongs to user {user}, this is user {os.geteuid()}: only the same user may drive it"
            )


class UnixRouter(_End, Router):
    """A server's end that listens at `address`, or `ConfigurationError`."""

    def __init__(self, address: str, how: Listening) -> None:
        super().__init__(how.max_frame_bytes)
        self._idle_s, self._patience_s = how.idle_s, how.patience_s
        self._path = _path_of(address)
        self._listener = _listening(address)
        self._connections: dict[int, socket.socket] = {}
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)

    def agreed(self, hello: Mapping[str, Any], slots: int, *, checksums: bool) -> Terms:
        """What is made of the wishes of a client; `checksums`: whether this server insists on them."""
        wanted, slot_bytes = hello.get("checksums", True), hello.get("slot_bytes", 0)
        if type(wanted) is not bool or type(slot_bytes) is not int or not _is_slot(slot_bytes, LARGEST_SLOT):
            raise Refusal(
                Code.MALFORMED,
                f"checksums of hello is a truth value, and slot_bytes a multiple of {PAGE_BYTES} up to {LARGEST_SLOT}",
            )
        return Terms(wanted or checksums, slots, slot_bytes)

    def told(self, terms: Terms) -> dict[str, Any]:
        """What a welcome says of these terms."""
        return {"checksums": terms.checksums, "slot_bytes": terms.slot_bytes}

    def receive(self) -> Message:
        """The next message, or `TimeoutError`; `Gone` with the peer that has gone."""
        ready = self._epoll.poll(0, 1)
        waited = bool(ready)
        if not waited:
            ready = self._epoll.poll(self._idle_s, 1)
        connection = self._connections.get(ready[0][0]) if ready else None
        try:
            if connection is not None:
                return self._take(connection, connection, _NO_WAIT, waited=waited)
            if ready:
                self._accept()
        except Gone:
            self._forget(ready[0][0])
            raise
        except BlockingIOError:
            pass
        raise TimeoutError

    def attach(self, message: Message, terms: Terms) -> None:
        """The sender of this message is the client from now on. `Refusal` if it has not what was agreed."""
        self.detach()
        super().attach(message, terms)
        if len(self.descriptors) != bool(terms.slot_bytes):
            raise Refusal(
                Code.CONFIGURATION,
                "ATTACH comes with the segment for the ring" if terms.slot_bytes else "no ring was agreed on",
            )
        if terms.slot_bytes:
            self._ring = mapped(self.descriptors[0], terms.slots, terms.slot_bytes)

    def detach(self) -> None:
        """Nobody is the client."""
        super().detach()
        self._ring = None

    def incoming(self, request: int) -> np.ndarray | None:
        """The slot with the payload of this request."""
        return None if self._ring is None else self._ring.request(request)

    def memory(self, request: int, size: int) -> np.ndarray | None:
        """Bytes for the payload of a reply that is sent from there without a copy; None where a copy is cheaper."""
        if self._ring is None or not INLINE_BYTES < size <= self._ring.slot_bytes:
            return None
        return self._ring.reply(request)[:size]

    def send(self, peer: Hashable, header: bytes, payload: Any, request: int) -> None:
        """A message to the client that is attached, in answer to a request that counts, or to none: 0."""
        assert isinstance(peer, socket.socket)
        # What answers none comes while replies in the slots are still being read.
        slot = self._ring.reply(request) if self._ring is not None and request else None
        until = time.monotonic() + self._patience_s
        while True:
            try:
                self._put(peer, header, payload, slot, _NO_WAIT)
                return
            except BlockingIOError as error:
                if not _ready(peer, select.POLLOUT, until - time.monotonic()):
                    raise TimeoutError from error

    def send_at_once(self, peer: Hashable, *frames: bytes) -> None:
        """A control frame, or a header and a payload, to anybody; what is not taken now is lost."""
        assert isinstance(peer, socket.socket)
        with contextlib.suppress(Gone, OSError):
            if len(frames) == 1:
                peer.send(frames[0], _NO_SIGNAL | _NO_WAIT)
            else:
                header, payload = frames
                self._put(peer, header, payload, None, _NO_WAIT)

    def hurry(self) -> None:
        """From now on `send` waits for nobody."""
        self._patience_s = 0.0

    def close(self) -> None:
        """Listen no more, and cut the connections."""
        self.detach()
        self._drop_descriptors()
        # As long as somebody answers there, nobody takes the path.
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._listener.close()
        for connection in self._connections.values():
            connection.close()
        self._epoll.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Who came has gone, or this process has no descriptor left for a moment: whoever waits is asked for again.
            time.sleep(self._idle_s)
            return
        if len(self._connections) >= MOST_CONNECTIONS or _user_of(connection) != os.geteuid():
            connection.close()
            return
        self._connections[connection.fileno()] = connection
        self._epoll.register(connection, select.EPOLLIN)

    def _forget(self, number: int) -> None:
        self._epoll.unregister(number)
        self._connections.pop(number).close()


def _listening(address: str) -> socket.socket:
    """A socket at the path, which only this user can open. The file of a dead server is replaced."""
    path = _path_of(address)
    with contextlib.ExitStack() as undone:
        listener = undone.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            os.fchmod(listener.fileno(), 0o600)
            with _turn(os.path.dirname(path) or "."):
                check_free(address)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                listener.bind(path)
                listener.listen()
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {address}: {error.strerror}") from error
        undone.pop_all()
    return listener


@contextlib.contextmanager
def _turn(folder: str) -> Iterator[None]:
    """While no other server looks whether a path in this folder is free."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _ready(connection: socket.socket, event: int, seconds: float) -> bool:
    """Whether something can be received, or sent, within `seconds`."""
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(1000 * max(0.0, seconds)))


def _path_of(address: str) -> str:
    return address.removeprefix("unix://")


def _user_of(connection: socket.socket) -> int:
    """The effective user on the other side."""
    return _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]


def _is_slot(size: int, most: int) -> bool:
    return 0 <= size <= most and size % PAGE_BYTES == 0


def _why_not(error: OSError) -> str:
    match error:
        case PermissionError():
            return "its socket belongs to another user"
        case OSError(errno=errno.EPROTOTYPE):
            return "its socket is of another type: is it an ipc:// address?"
    return f"no connection: {error.strerror}"


def _kernel_time(seconds: float) -> bytes:
    return _TIME.pack(int(seconds), int(1e6 * (seconds % 1)) if seconds >= 1e-6 else 1)
