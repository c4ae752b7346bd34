"""Servers of emulated instruments: a raw socket, and HiSLIP."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import ClassVar, NamedTuple

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.faults import Served
from reservoir_hw.emulators.scpi.messages import ScpiError, find_message_end, split_messages

# ---- A raw socket: `TCPIP::host::port::SOCKET`.
#
# A newline ends a message, but not within a block. Some instruments want CR LF, and wait on without the CR. Nothing
# says when the client reads: a second query sends a second answer, and -410 and -420 do not occur here.


# A length that a client makes up must not take the memory before its bytes have come.
LARGEST_PIECE = 1 << 24


class Listener(ABC):
    """A port of an emulated instrument, served in threads while a `with` block runs, which gets its VISA address.

    Subclasses write `converse`.

    Args:
        device: The instrument.
        host: Where to listen.
        port: 0 takes a free one; `port` then says which.

    Entering the block raises `ConfigurationError` if the port is taken.
    """

    address: ClassVar[str]
    """As VISA writes it, with places for host and port."""

    def __init__(self, device: Served, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self._device = device
        # Open connections with their threads.
        self._conversations: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> str:
        try:
            self._listening = socket.create_server((self.host, self.port))
        except OSError as error:
            raise ConfigurationError(
                f"an emulated instrument cannot listen at {self.host}:{self.port}: {error.strerror}; "
                "choose another port"
            ) from error
        self.port = self._listening.getsockname()[1]
        self._accepting = self._start_thread(self._accept, self._listening)
        return self.address.format(host=self.host, port=self.port)

    def __exit__(self, *details: object) -> None:
        # close() alone does not wake up accept().
        hang_up(self._listening)
        self._accepting.join()
        self._listening.close()
        with self._lock:
            conversations = dict(self._conversations)
            for connection in conversations:
                hang_up(connection)
        for thread in conversations.values():
            thread.join()

    @abstractmethod
    def converse(self, connection: socket.socket) -> None:
        """Serve one connection until the client has gone. A `ConnectionError` ends it, too."""

    def _start_thread(self, target: Callable[[socket.socket], None], connection: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=target, args=(connection,), name=f"emulator at {self.port}", daemon=True)
        thread.start()
        return thread

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._conversations[connection] = self._start_thread(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                self.converse(connection)
        finally:
            with self._lock:
                del self._conversations[connection]
                connection.close()


def hang_up(connection: socket.socket) -> None:
    """End a connection, also for a thread that waits for it."""
    # The client may have been faster.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def receive_exactly(connection: socket.socket, data: bytearray, count: int) -> None:
    """Append `count` bytes to `data`. Raises `ConnectionError` if the client goes before they have come."""
    while count:
        piece = min(count, LARGEST_PIECE)
        filled = len(data)
        data.extend(bytes(piece))
        with memoryview(data) as view, view[filled:] as room:
            received = connection.recv_into(room, piece, socket.MSG_WAITALL)
        if received < piece:
            raise ConnectionResetError("the client has gone in the middle of a message")
        count -= piece


RECEIVE_BYTES = 1 << 16


class SocketServer(Listener):
    """Serves an instrument on a raw socket, to any number of clients.

    Args:
        device: The instrument.
        host, port: Where to listen; port 0 takes a free one.
        terminator: What ends an answer, and a message: `b"\\n"` or `b"\\r\\n"`.
    """

    address = "TCPIP::{host}::{port}::SOCKET"

    def __init__(self, device: Served, host: str = "127.0.0.1", port: int = 0, *, terminator: bytes = b"\n") -> None:
        super().__init__(device, host, port)
        self._terminator = terminator

    def converse(self, connection: socket.socket) -> None:
        """Carry out messages and send their answers until the client has gone."""
        gone = select.poll()
        # Seen also where messages wait that nobody has read yet.
        gone.register(connection, select.POLLRDHUP)
        for message in _messages(connection, self._terminator):
            if answer := self._device.execute(message, lambda: bool(gone.poll(0))):
                # Both leave together, and a large answer is not copied for its terminator.
                connection.sendall(answer, socket.MSG_MORE)
                connection.sendall(self._terminator)


def _messages(connection: socket.socket, terminator: bytes) -> Iterator[bytes | bytearray]:
    data = bytearray()
    resume = 0
    while True:
        found = find_message_end(data, resume)
        if found.at is None:
            resume = found.resume
            if found.missing > 1:
                receive_exactly(connection, data, found.missing)
            elif received := connection.recv(RECEIVE_BYTES):
                data += received
            else:
                return
            continue
        end = found.at + 1
        if data[max(0, end - len(terminator)) : end] != terminator:
            resume = end
            continue
        resume = 0
        if found.at == len(data) - 1:
            # The usual case. The message may be large, and is handed over without a copy.
            message, data = data, bytearray()
            del message[-1:]
        else:
            message = data[: found.at]
            del data[: found.at + 1]
        yield message


# ---- HiSLIP (IVI-6.1, version 1.0, synchronous mode): `TCPIP::host::hislip0,port::INSTR`.
#
# Each client has two connections: messages and answers on one, device clear, status byte and locks on the other. A
# client says with each message whether it has read the last answer; a message that comes before that is -410. When a
# client reads without a query, HiSLIP does not say so, and -420 does not occur. Locks are granted to everyone.
# Overlapped mode, service requests and encryption are missing.


VERSION = 0x0100
LARGEST_PAYLOAD = 1 << 24
MESSAGE_AVAILABLE = 0x10
_NAME = "hislip0"
_HEADER = struct.Struct("!2sBBIQ")


class Kind(IntEnum):
    """Types of messages (IVI-6.1, table 4)."""

    INITIALIZE = 0
    INITIALIZE_RESPONSE = 1
    FATAL_ERROR = 2
    ERROR = 3
    ASYNC_LOCK = 4
    ASYNC_LOCK_RESPONSE = 5
    DATA = 6
    DATA_END = 7
    DEVICE_CLEAR_COMPLETE = 8
    DEVICE_CLEAR_ACKNOWLEDGE = 9
    ASYNC_REMOTE_LOCAL_CONTROL = 10
    ASYNC_REMOTE_LOCAL_RESPONSE = 11
    TRIGGER = 12
    INTERRUPTED = 13
    ASYNC_INTERRUPTED = 14
    ASYNC_MAX_MSG_SIZE = 15
    ASYNC_MAX_MSG_SIZE_RESPONSE = 16
    ASYNC_INITIALIZE = 17
    ASYNC_INITIALIZE_RESPONSE = 18
    ASYNC_DEVICE_CLEAR = 19
    ASYNC_STATUS_QUERY = 21
    ASYNC_STATUS_RESPONSE = 22
    ASYNC_DEVICE_CLEAR_ACKNOWLEDGE = 23
    ASYNC_LOCK_INFO = 24
    ASYNC_LOCK_INFO_RESPONSE = 25


class _Refused(ConnectionError):
    """The client breaks the protocol; it was told so, and the connection ends."""


class _Message(NamedTuple):
    kind: int
    control: int
    parameter: int
    length: int


class _Channel:
    """One of the two connections of a client."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        # The synchronous thread says on the asynchronous channel that an answer was interrupted.
        self._sending = threading.Lock()

    def receive(self) -> _Message:
        """The next header. The payload comes behind it."""
        data = bytearray()
        receive_exactly(self.connection, data, _HEADER.size)
        prologue, *fields = _HEADER.unpack(data)
        message = _Message(*fields)
        if prologue != b"HS":
            raise self.refuse(1, "the header does not begin with HS")
        if message.length > LARGEST_PAYLOAD:
            raise self.refuse(0, f"a message of {message.length} bytes is too large: {LARGEST_PAYLOAD} are taken")
        return message

    def payload(self, message: _Message) -> bytearray:
        """What comes behind a header."""
        data = bytearray()
        receive_exactly(self.connection, data, message.length)
        return data

    def send(self, kind: Kind, control: int = 0, parameter: int = 0, *payload: bytes | memoryview) -> None:
        """Send a message whose payload is in several parts."""
        parts = [_HEADER.pack(b"HS", kind, control, parameter, sum(map(len, payload))), *payload]
        with self._sending:
            for part in parts[:-1]:
                self.connection.sendall(part, socket.MSG_MORE)
            self.connection.sendall(parts[-1])

    def refuse(self, code: int, text: str) -> _Refused:
        """Tell the client why the connection ends."""
        self.send(Kind.FATAL_ERROR, code, 0, text.encode())
        return _Refused(text)


class _Session:
    """A client with its two connections."""

    def __init__(self, device: Served, synchronous: _Channel) -> None:
        self._device = device
        self._synchronous = synchronous
        self._asynchronous: _Channel | None = None
        self._clearing = threading.Event()
        self._largest_answer = LARGEST_PAYLOAD
        # An answer was sent, and the client has not said that it has read it.
        self._unread = False

    # ---- synchronous channel --------------------------------------------------------------------

    def converse(self) -> None:
        """Messages of the instrument, and their answers."""
        channel, data = self._synchronous, bytearray()
        while True:
            message = channel.receive()
            if message.kind == Kind.DEVICE_CLEAR_COMPLETE:
                data = bytearray()
                self._unread = False
                self._clearing.clear()
                channel.send(Kind.DEVICE_CLEAR_ACKNOWLEDGE)
            elif message.kind not in (Kind.DATA, Kind.DATA_END, Kind.TRIGGER):
                channel.payload(message)
                channel.send(Kind.ERROR, 1, 0, b"unrecognized message type")
            elif self._asynchronous is None:
                raise channel.refuse(2, "the asynchronous channel is missing")
            elif self._clearing.is_set():
                channel.payload(message)
            else:
                self._notice_reading(message.control)
                if self._unread:
                    self._unread = False
                    self._device.report(ScpiError(-410))
                    channel.send(Kind.INTERRUPTED)
                    self._asynchronous.send(Kind.ASYNC_INTERRUPTED)
                receive_exactly(channel.connection, data, message.length)
                if message.kind == Kind.DATA:
                    continue
                complete, data = data, bytearray()
                for one in [b"*TRG"] if message.kind == Kind.TRIGGER else split_messages(complete):
                    self._answer(self._device.execute(one, self._clearing.is_set), message.parameter)

    def _answer(self, answer: bytes, message_id: int) -> None:
        if not answer:
            return
        view = memoryview(answer)
        # The newline must find room in the last piece.
        size = self._largest_answer - _HEADER.size - 1
        self._unread = True
        while len(view) > size and not self._clearing.is_set():
            self._synchronous.send(Kind.DATA, 0, message_id, view[:size])
            view = view[size:]
        if not self._clearing.is_set():
            self._synchronous.send(Kind.DATA_END, 0, message_id, view, b"\n")

    def _notice_reading(self, control: int) -> None:
        if control & 1:
            self._unread = False

    def end(self) -> None:
        """Close the other connection of a client whose synchronous one has ended."""
        if self._asynchronous is not None:
            hang_up(self._asynchronous.connection)

    # ---- asynchronous channel -------------------------------------------------------------------

    def converse_asynchronously(self, channel: _Channel) -> None:
        """Whatever must not wait for the instrument."""
        self._asynchronous = channel
        channel.send(Kind.ASYNC_INITIALIZE_RESPONSE)
        try:
            while True:
                self._reply(channel, channel.receive())
        finally:
            # What waits for the instrument need not wait for a client that has gone.
            self._clearing.set()
            hang_up(self._synchronous.connection)

    def _reply(self, channel: _Channel, message: _Message) -> None:
        payload = channel.payload(message)
        if message.kind == Kind.ASYNC_MAX_MSG_SIZE:
            (self._largest_answer,) = struct.unpack("!Q", payload)
            channel.send(Kind.ASYNC_MAX_MSG_SIZE_RESPONSE, 0, 0, struct.pack("!Q", LARGEST_PAYLOAD))
        elif message.kind == Kind.ASYNC_DEVICE_CLEAR:
            self._clearing.set()
            channel.send(Kind.ASYNC_DEVICE_CLEAR_ACKNOWLEDGE)
        elif message.kind == Kind.ASYNC_STATUS_QUERY:
            self._notice_reading(message.control)
            status = self._device.status_byte() | (MESSAGE_AVAILABLE if self._unread else 0)
            channel.send(Kind.ASYNC_STATUS_RESPONSE, status)
        elif message.kind == Kind.ASYNC_LOCK:
            channel.send(Kind.ASYNC_LOCK_RESPONSE, 1)
        elif message.kind == Kind.ASYNC_LOCK_INFO:
            channel.send(Kind.ASYNC_LOCK_INFO_RESPONSE)
        elif message.kind == Kind.ASYNC_REMOTE_LOCAL_CONTROL:
            channel.send(Kind.ASYNC_REMOTE_LOCAL_RESPONSE)
        else:
            channel.send(Kind.ERROR, 1, 0, b"unrecognized message type")


class HislipServer(Listener):
    """Serves an instrument by HiSLIP, to any number of clients.

    Args:
        device: The instrument.
        host, port: Where to listen; port 0 takes a free one, 4880 is the usual one.
    """

    address = f"TCPIP::{{host}}::{_NAME},{{port}}::INSTR"

    def __init__(self, device: Served, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(device, host, port)
        self._sessions: dict[int, _Session] = {}
        self._numbers = itertools.count(1)

    def converse(self, connection: socket.socket) -> None:
        """Serve one of the two connections of a client until it has gone."""
        channel = _Channel(connection)
        first = channel.receive()
        payload = channel.payload(first)
        if first.kind == Kind.INITIALIZE:
            if payload and payload.decode("latin-1").lower() != _NAME:
                raise channel.refuse(3, f"there is no {payload.decode('latin-1')} here, only {_NAME}")
            number = next(self._numbers) & 0xFFFF
            session = self._sessions[number] = _Session(self._device, channel)
            try:
                channel.send(Kind.INITIALIZE_RESPONSE, 0, VERSION << 16 | number)
                session.converse()
            finally:
                del self._sessions[number]
                session.end()
        elif first.kind == Kind.ASYNC_INITIALIZE and first.parameter in self._sessions:
            self._sessions[first.parameter].converse_asynchronously(channel)
        else:
            raise channel.refuse(3, "a connection begins with Initialize, or with AsyncInitialize of a known session")
