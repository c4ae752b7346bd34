"""Messages to a device and back, and the last of them."""

from __future__ import annotations

import math
import re
import time
from typing import Self

import zmq
import zmq.utils.monitor

from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceTimeout
from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.ledger import Ledger
from reservoir_hw.testing.protocol.outcomes import Broken

CONNECT_S = 5.0


class Line:
    """Sockets to one device, and what holds for every message through them (`ledger`).

    Raises `ConfigurationError` if the address is none.
    """

    def __init__(self, address: str, control: str | None = None) -> None:
        self.address = checked(address)
        self.control_address = checked(control) if control else codec.control_address(self.address)
        self.ledger = Ledger()
        self.last: list[bytes] = []
        """Frames of the message that came or went last."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def dealer(self, address: str) -> zmq.Socket[bytes]:
        """A new connection."""
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.setsockopt(zmq.SNDTIMEO, round(1000 * CONNECT_S))
        socket.setsockopt(zmq.IPV6, "[" in address)
        socket.connect(address)
        return socket

    def send(self, socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
        """Send a message."""
        self.last = frames
        try:
            socket.send_multipart(frames, copy=False)
        except zmq.Again:
            raise Broken(f"no message could be sent for {CONNECT_S:g} s") from None

    def receive(self, socket: zmq.Socket[bytes], seconds: float) -> list[bytes] | None:
        """The frames of the next message, None if none comes in time."""
        if not socket.poll(math.ceil(1000 * seconds)):
            return None
        self.last = socket.recv_multipart()
        return self.last

    def shake_hands(self, address: str) -> None:
        """Raise `DeviceTimeout` or `DeviceDisconnected` unless somebody listens there who speaks ZeroMQ."""
        what = f"no connection to {address} within {CONNECT_S:g} s"
        refused = "nobody listens there. Is the server running, and the address right?"
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.setsockopt(zmq.IPV6, "[" in address)
        monitor = socket.get_monitor_socket()
        try:
            socket.connect(address)
            until = time.monotonic() + CONNECT_S
            while (left := until - time.monotonic()) > 0 and monitor.poll(math.ceil(1000 * left)):
                event = zmq.utils.monitor.recv_monitor_message(monitor)["event"]
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    return
                if event in (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                    raise DeviceDisconnected(f"{address} does not speak ZeroMQ without keys")
                if event == zmq.EVENT_CONNECTED:
                    refused = "it accepts connections, but does not speak ZeroMQ"
            raise DeviceTimeout(f"{what}: {refused}")
        finally:
            socket.disable_monitor()
            monitor.close()
            socket.close()


def checked(address: str) -> str:
    """The address, or `ConfigurationError`."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "ipc" and rest.isprintable() and rest:
        return address
    if scheme == "tcp" and host and host != "*" and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65535:
        return address
    raise ConfigurationError(f"{address!r} is no address of a device: tcp://host:port (1 to 65534) or ipc://path")
