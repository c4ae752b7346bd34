"""HiSLIP (IVI-6.1, version 1.0, synchronous mode): `TCPIP::host::hislip0,port::INSTR`.

Each client has two connections: messages and answers on one, device clear, status byte and locks on the other. A client
says with each message whether it has read the last answer; a message that comes before that is -410. When a client
reads without a query, HiSLIP does not say so, and -420 does not occur. Locks are granted to everyone. Overlapped mode,
service requests and encryption are missing.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from enum import IntEnum
from typing import NamedTuple

from reservoir_hw.emulators.faults import Served
from reservoir_hw.emulators.scpi.messages import ScpiError, split_messages
from reservoir_hw.emulators.servers.socket import Listener, hang_up, receive_exactly

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
                self._check_interrupted()
                receive_exactly(channel.connection, data, message.length)
                if message.kind == Kind.DATA:
                    continue
                complete, data = data, bytearray()
                messages = [b"*TRG"] if message.kind == Kind.TRIGGER else split_messages(complete)
                for one in messages:
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

    def _check_interrupted(self) -> None:
        if self._unread and self._asynchronous is not None:
            self._unread = False
            self._device.report(ScpiError(-410))
            self._synchronous.send(Kind.INTERRUPTED)
            self._asynchronous.send(Kind.ASYNC_INTERRUPTED)

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
        super().__init__(host, port)
        self._device = device
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
