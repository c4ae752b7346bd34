"""An instrument of a few lines on a real socket, which misbehaves on request."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Answer = Callable[[bytes, socket.socket], None]


@contextlib.contextmanager
def instrument(answer: Answer, idn: bytes = b"maker,model,serial,1.0") -> Iterator[str]:
    """Its VISA address. Every line but *IDN? goes to `answer`, with the connection that it came by."""
    connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:
            for line in lines:
                if line.strip() == b"*IDN?":
                    connection.sendall(idn + b"\n")
                else:
                    answer(line.strip(), connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=accept, daemon=True)]
        threads[0].start()
        try:
            yield f"TCPIP::127.0.0.1::{listener.getsockname()[1]}::SOCKET"
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
