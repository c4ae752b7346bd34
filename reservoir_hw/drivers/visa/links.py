"""The two ways to an instrument: the socket of a pyvisa session itself, or pyvisa.

pyvisa-py reads a raw socket in pieces of 4 KiB, waits for a peer that has gone as for a slow one, and cannot watch file
descriptors from 1024 on. So bytes take the socket of its session where there is one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any, Protocol

from reservoir_hw.core.errors import DeviceDisconnected, DeviceTimeout, ProtocolError, text_of
from reservoir_hw.drivers.visa.blocks import Buffer, length_of_length, payload_of

_LONGEST_LINE = 1 << 20
_RECEIVED_AT_ONCE = 1 << 16
# pyvisa-py is fastest with these over HiSLIP.
_CHUNK = 1 << 18


class Link(Protocol):
    """Sends messages and receives answers; every wait ends after `timeout_s` without a byte."""

    timeout_s: float

    def send(self, message: bytes, block: Buffer = b"") -> None:
        """A message without its terminator, and a block that ends it."""
        ...

    def line(self) -> bytes:
        """An answer without its terminator."""
        ...

    def block(self) -> memoryview:
        """The data of an answer that is a block."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class SocketLink:
    """Over a connected TCP socket. Messages and answers end with `end`."""

    def __init__(self, name: str, connected: socket.socket, timeout_s: float, end: bytes = b"\n") -> None:
        self.timeout_s = timeout_s
        self._name, self._socket, self._end = name, connected, end
        self._received = bytearray()
        # Otherwise a query after a write waits for the acknowledgement of the write: 44 ms.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: bytes, block: Buffer = b"") -> None:
        """Raises `DeviceTimeout`, `DeviceDisconnected`."""
        with self._told():
            self._socket.settimeout(self.timeout_s)
            if not block:
                self._socket.sendall(message + self._end)
                return
            self._socket.sendall(message)
            self._socket.sendall(block)
            self._socket.sendall(self._end)

    def line(self) -> bytes:
        """Raises `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` for one that does not end."""
        searched = 0
        while (at := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > _LONGEST_LINE:
                raise ProtocolError(f"{self._name}: an answer of more than {_LONGEST_LINE} bytes without an end")
            self._received += self._some()
        line = bytes(self._received[:at])
        del self._received[: at + 1]
        return line.rstrip(b"\r")

    def block(self) -> memoryview:
        """Raises `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` for an answer that is none."""
        while len(self._received) < 2:
            self._received += self._some()
        digits = length_of_length(bytes(self._received[:2]))
        while len(self._received) < 2 + digits:
            self._received += self._some()
        size = bytes(self._received[2 : 2 + digits])
        if not size.isdigit():
            raise ProtocolError(f"{self._name}: the length of a block is no number: {size!r}")
        del self._received[: 2 + digits]
        data = bytearray(int(size))
        view = memoryview(data)
        filled = min(len(data), len(self._received))
        view[:filled] = self._received[:filled]
        del self._received[:filled]
        with self._told(f"{len(data)} bytes of a block were due"):
            while filled < len(data):
                count = self._socket.recv_into(view[filled:])
                if not count:
                    raise ConnectionError(f"it was closed {filled} bytes into a block of {len(data)}")
                filled += count
        self.line()
        return view

    def close(self) -> None:
        """The session closes the socket."""

    def _some(self) -> bytes:
        with self._told():
            self._socket.settimeout(self.timeout_s)
            received = self._socket.recv(_RECEIVED_AT_ONCE)
            if not received:
                raise ConnectionError("it was closed")
            return received

    @contextlib.contextmanager
    def _told(self, due: str = "an answer was due") -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise DeviceTimeout(f"{self._name}: nothing came within {self.timeout_s:g} s, and {due}") from None
        except OSError as error:
            raise DeviceDisconnected(f"{self._name}: the connection is gone: {text_of(error)}") from error


class PyvisaLink:
    """Over a pyvisa resource: HiSLIP, VXI-11, USB, GPIB; a raw socket of another VISA library."""

    def __init__(self, name: str, resource: Any, timeout_s: float, end: bytes = b"\n") -> None:
        self.timeout_s = timeout_s
        self._name, self._resource, self._end = name, resource, end
        # Messages have ends of their own, so that a newline may be data.
        self._messages = resource.resource_class == "INSTR"
        resource.chunk_size = _CHUNK
        resource.write_termination = ""
        resource.read_termination = None

    def send(self, message: bytes, block: Buffer = b"") -> None:
        """Raises `DeviceTimeout`, `DeviceDisconnected`."""
        with self._told():
            self._resource.write_raw(b"".join((message, block, self._end)))

    def line(self) -> bytes:
        """Raises `DeviceTimeout`, `DeviceDisconnected`."""
        with self._told():
            if self._messages:
                return bytes(self._resource.read_raw()).rstrip(b"\r\n")
            with self._resource.read_termination_context("\n"):
                return bytes(self._resource.read_raw()).rstrip(b"\r\n")

    def block(self) -> memoryview:
        """Raises `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` for an answer that is none."""
        with self._told():
            if self._messages:
                return payload_of(self._message())
            first = self._resource.read_bytes(2)
            size = int(self._resource.read_bytes(length_of_length(first)))
            data = self._resource.read_bytes(size + len(self._end), chunk_size=_CHUNK)
            return memoryview(data)[:size]

    def close(self) -> None:
        """The session closes the resource."""

    def _message(self) -> bytearray:
        """A whole message. `read_raw` of pyvisa copies it once more."""
        from pyvisa.constants import StatusCode

        more = StatusCode.success_max_count_read
        message, status = bytearray(), more
        with self._resource.ignore_warning(more, StatusCode.success_device_not_present):
            while status == more:
                part, status = self._resource.visalib.read(self._resource.session, _CHUNK)
                message += part
        return message

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        import pyvisa
        from pyvisa.constants import StatusCode

        self._resource.timeout = self.timeout_s * 1000
        try:
            yield
        except pyvisa.VisaIOError as error:
            if error.error_code == StatusCode.error_timeout:
                raise DeviceTimeout(
                    f"{self._name}: nothing came within {self.timeout_s:g} s, and an answer was due"
                ) from None
            raise DeviceDisconnected(f"{self._name}: {error.description}") from error
        except TimeoutError:
            raise DeviceTimeout(f"{self._name}: nothing came within {self.timeout_s:g} s") from None
        # pyvisa-py lets errors of its protocols through as they are.
        except (OSError, RuntimeError, struct.error, pyvisa.Error) as error:
            raise DeviceDisconnected(f"{self._name}: the connection is gone: {text_of(error)}") from error
