"""Opening a VISA address, so that one learns at once whether somebody answers there."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, extra, text_of
from reservoir_hw.drivers.ports import port_of
from reservoir_hw.drivers.visa.links import (
    SCPI,
    ConnectionConfig,
    Link,
    PyvisaLink,
    SerialLink,
    SocketLink,
    is_raw_socket,
)

_DESCRIPTORS = 1000


class Session:
    """One connection. Raises `ConfigurationError` for an address that is none, `DeviceDisconnected` if none answers."""

    def __init__(self, address: str, config: ConnectionConfig = SCPI) -> None:
        self.address = address
        self._resource: Any = None
        port = port_of(address)
        if port is not None and (config.library == "@py" or port == address):
            self.link: Link = _serial_link(port, config)
            return
        self._resource = _opened(address, config.library, config.timeout_s)
        try:
            if port is not None:
                self._resource.baud_rate = config.baud
            connected = _socket_of(self._resource) if is_raw_socket(address) else None
            if connected is None:
                self.link = PyvisaLink(address, self._resource, config)
            else:
                _expect_connected(address, connected)
                self.link = SocketLink(address, connected, config)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Idempotent. The resource manager stays: others use it."""
        if self._resource is None:
            self.link.close()
            return
        import pyvisa

        try:
            self._resource.close()
        except (pyvisa.Error, OSError, RuntimeError) as error:
            logging.getLogger(__name__).debug("%s: closing: %s", self.address, text_of(error))


def without_delay(resource: Any) -> None:
    """Where a pyvisa resource is a socket of pyvisa-py, a query after a write is sent at once, and not after 44 ms."""
    connected = _socket_of(resource)
    if connected is not None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _serial_link(port: str, config: ConnectionConfig) -> SerialLink:
    with extra("serial", "serial ports need pyserial"):
        from reservoir_hw.drivers.serial.line import Line
    return SerialLink(Line(port, config.baud, config.timeout_s), config)


def _opened(address: str, library: str, timeout_s: float) -> Any:
    with extra("visa", "instruments need pyvisa"):
        import pyvisa
        from pyvisa.rname import InvalidResourceName, ResourceName
    try:
        ResourceName.from_string(address)
        manager = pyvisa.ResourceManager(library)
    except InvalidResourceName as error:
        raise ConfigurationError(f"{address!r} is no VISA address: {text_of(error)}") from None
    except (pyvisa.LibraryError, ValueError) as error:
        raise ConfigurationError(f"the VISA library {library!r} cannot be loaded: {text_of(error)}") from error
    if library == "@py":
        _expect_low_descriptor(address)
    try:
        return manager.open_resource(address, open_timeout=round(timeout_s * 1000))
    # pyvisa-py raises what comes, and plain Exception.
    except Exception as error:
        raise DeviceDisconnected(
            f"{address} cannot be opened: {text_of(error) or type(error).__name__}; is the instrument on, and the "
            "address right?"
        ) from error


def _expect_low_descriptor(address: str) -> None:
    """pyvisa-py opens with `select`, which takes file descriptors below 1024."""
    number = os.dup(0)
    os.close(number)
    if number >= _DESCRIPTORS:
        raise DeviceDisconnected(
            f"{address} cannot be opened: this process has {number} files open, and pyvisa-py can handle "
            f"{_DESCRIPTORS}; close some"
        )


def _socket_of(resource: Any) -> socket.socket | None:
    """The socket of a session of pyvisa-py; other libraries keep theirs to themselves."""
    sessions = getattr(resource.visalib, "sessions", None)
    interface = getattr(sessions[resource.session], "interface", None) if sessions else None
    return interface if isinstance(interface, socket.socket) else None


def _expect_connected(address: str, connected: socket.socket) -> None:
    """Opening a port on which nobody listens succeeds in pyvisa-py."""
    error = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    try:
        connected.getpeername()
    except OSError as gone:
        error = error or gone.errno or 0
    if error:
        raise DeviceDisconnected(
            f"{address}: nobody answers ({os.strerror(error)}); is the instrument on, and the port right?"
        )
