"""What the servers share: a port on which they listen, and one thread for each connection."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

from typing_extensions import Self

from reservoir_hw.core.errors import ConfigurationError

# A length that a client makes up must not take the memory before its bytes have come.
LARGEST_PIECE = 1 << 24


class Listener:
    """A port of an emulated instrument. Subclasses write `converse`.

    Args:
        host: Where to listen.
        port: 0 takes a free one; `port` then says which.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self._listening: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

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
        self._start_thread(self._accept, listening)

    def stop(self) -> None:
        """Close the port and all connections, and wait for their threads."""
        if self._listening is None:
            return
        # close() alone does not wake up accept().
        self._listening.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._listening.close()
            self._listening = None
            for connection in self._connections:
                hang_up(connection)
        for thread in list(self._threads):
            thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def converse(self, connection: socket.socket) -> None:
        """Serve one connection until the client has gone. A `ConnectionError` ends it, too."""
        raise NotImplementedError

    def _start_thread(self, *target_and_connection: object) -> None:
        target, *arguments = target_and_connection
        thread = threading.Thread(target=target, args=arguments, name=f"emulator at port {self.port}", daemon=True)  # type: ignore[arg-type]
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._listening is None:
                    connection.close()
                    return
                self._connections.add(connection)
            self._start_thread(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            self.converse(connection)
        except ConnectionError:
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def hang_up(connection: socket.socket) -> None:
    """End a connection, also for a thread that waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The client was faster.
        pass


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
