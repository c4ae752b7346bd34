"""A raw socket: `TCPIP::host::port::SOCKET`.

A newline ends a message, but not within a block. Some instruments want CR LF, and wait on without the CR. Nothing says
when the client reads: a second query sends a second answer, and -410 and -420 do not occur here.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.faults import Served
from reservoir_hw.emulators.scpi.messages import find_message_end

# A length that a client makes up must not take the memory before its bytes have come.
LARGEST_PIECE = 1 << 24


class Listener:
    """A port of an emulated instrument, served in threads while a `with` block runs, which gets its VISA address.

    Subclasses write `converse`.

    Args:
        host: Where to listen.
        port: 0 takes a free one; `port` then says which.
    """

    address: ClassVar[str]
    """As VISA writes it, with places for host and port."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self._listening: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        # Open connections with their threads.
        self._conversations: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()

    @property
    def resource(self) -> str:
        """The address as VISA writes it."""
        return self.address.format(host=self.host, port=self.port)

    def start(self) -> None:
        """Listen, and return when clients may come. Raises `ConfigurationError` if the port is taken."""
        try:
            listening = socket.create_server((self.host, self.port))
        except OSError as error:
            raise ConfigurationError(
                f"an emulated instrument cannot listen at {self.host}:{self.port}: {error.strerror}; "
                "choose another port"
            ) from error
        self._listening = listening
        self.port = listening.getsockname()[1]
        self._accepting = self._start_thread(self._accept, listening)

    def stop(self) -> None:
        """Close the port and all connections, and wait for their threads."""
        if self._listening is None or self._accepting is None:
            return
        # close() alone does not wake up accept().
        hang_up(self._listening)
        self._accepting.join()
        self._listening.close()
        self._listening = None
        with self._lock:
            conversations = dict(self._conversations)
            for connection in conversations:
                hang_up(connection)
        for thread in conversations.values():
            thread.join()

    def __enter__(self) -> str:
        self.start()
        return self.resource

    def __exit__(self, *details: object) -> None:
        self.stop()

    def converse(self, connection: socket.socket) -> None:
        """Serve one connection until the client has gone. A `ConnectionError` ends it, too."""
        raise NotImplementedError

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
        super().__init__(host, port)
        self._device = device
        self._terminator = terminator

    def converse(self, connection: socket.socket) -> None:
        """Carry out messages and send their answers until the client has gone."""
        gone = select.poll()
        # Seen also where messages wait that nobody has read yet.
        gone.register(connection, select.POLLRDHUP)
        for message in _messages(connection, self._terminator):
            answer = self._device.execute(message, lambda: bool(gone.poll(0)))
            if answer:
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
