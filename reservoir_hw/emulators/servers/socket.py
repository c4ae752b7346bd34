"""A raw socket: `TCPIP::host::port::SOCKET`.

A newline ends a message, but not within a block. Some instruments want CR LF, and wait on without the CR. Nothing says
when the client reads: a second query sends a second answer, and -410 and -420 do not occur here.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

from reservoir_hw.emulators.scpi.messages import find_message_end
from reservoir_hw.emulators.servers.listener import Listener, Served, receive_exactly

RECEIVE_BYTES = 1 << 16


class SocketServer(Listener):
    """Serves an instrument on a raw socket, to any number of clients.

    Args:
        device: The instrument.
        host, port: Where to listen; port 0 takes a free one.
        terminator: What ends an answer, and a message: `b"\\n"` or `b"\\r\\n"`.
    """

    def __init__(self, device: Served, host: str = "127.0.0.1", port: int = 0, *, terminator: bytes = b"\n") -> None:
        super().__init__(host, port)
        self._device = device
        self._terminator = terminator

    @property
    def resource(self) -> str:
        """The address as VISA writes it."""
        return f"TCPIP::{self.host}::{self.port}::SOCKET"

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


@contextlib.contextmanager
def serving_socket(
    device: Served, host: str = "127.0.0.1", port: int = 0, *, terminator: bytes = b"\n"
) -> Iterator[str]:
    """Serve an instrument in threads while the block runs; gives the VISA address. See `SocketServer`."""
    with SocketServer(device, host, port, terminator=terminator) as server:
        yield server.resource


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
