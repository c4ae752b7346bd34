"""Messages to a device and back, and the last of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

import zmq

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.testing.protocol import codec, pipes
from reservoir_hw.testing.protocol.ledger import Broken, Ledger, NotThePage
from reservoir_hw.testing.protocol.pipes import Dealer, Packets, Pipe


class Line:
    """Connections to one device, and what holds for every message through them (`ledger`).

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

    @property
    def is_unix(self) -> bool:
        """Whether packets of Unix sockets travel, and not messages of ZeroMQ."""
        return self.address.startswith("unix://")

    def shake_hands(self) -> None:
        """Raise `DeviceTimeout` or `DeviceDisconnected` unless somebody listens at both addresses."""
        for address in (self.address, self.control_address):
            pipes.shake_hands(self._context, address)

    def connected(self, *, data: bool) -> Pipe:
        """A new connection to the data socket, or to the control socket."""
        address = self.address if data else self.control_address
        if not self.is_unix:
            return Dealer(self._context, address)
        try:
            return Packets(address, data=data)
        except OSError as error:
            raise Broken(f"no connection to {address}: {error.strerror}") from error

    def send(self, pipe: Pipe, frames: Sequence[bytes]) -> None:
        """Send a message."""
        self.last = list(frames)
        try:
            pipe.send(frames)
        except TimeoutError:
            raise Broken(f"no message could be sent for {pipes.CONNECT_S:g} s") from None
        except OSError as error:
            raise Broken(f"no message could be sent: {error.strerror}") from error

    def receive(self, pipe: Pipe, seconds: float) -> list[bytes] | None:
        """The frames of the next message, None if none comes in time."""
        if not pipe.waits(seconds):
            return None
        try:
            self.last = pipe.receive()
        except NotThePage as error:
            self.ledger.must("packet", False, str(error), error.frames or self.last)
            raise
        except OSError as error:
            raise Broken(f"the device has cut the connection: {error.strerror}") from error
        if self.is_unix:
            self.ledger.look("packet", True, "", self.last)
        return self.last


def checked(address: str) -> str:
    """The address, or `ConfigurationError`."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme in ("ipc", "unix") and rest.isprintable() and rest:
        return address
    if scheme == "tcp" and host and host != "*" and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65535:
        return address
    raise ConfigurationError(
        f"{address!r} is no address of a device: tcp://host:port (1 to 65534), ipc://path or unix://path"
    )
