"""The ways to an instrument: a socket, a serial port, or pyvisa; and opening an address, so that one learns at once
whether somebody answers there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceDisconnected,
    DeviceTimeout,
    ProtocolError,
    extra,
    text_of,
)
from reservoir_hw.drivers.ports import is_this_host, port_of, resource_of_port

if TYPE_CHECKING:
    from reservoir_hw.drivers.serial.line import Line


Buffer = bytearray | memoryview | bytes


def header_of(size: int) -> bytes:
    """What stands before `size` bytes."""
    digits = str(size)
    return f"#{len(digits)}{digits}".encode()


def payload_of(answer: Buffer) -> memoryview:
    """The data in an answer that is a block, without a copy. Raises `ProtocolError` for anything else."""
    view = memoryview(answer)
    digits = length_of_length(bytes(view[:2]))
    try:
        size = int(bytes(view[2 : 2 + digits]))
    except ValueError:
        raise ProtocolError(f"the length of a block is no number: {bytes(view[:12])!r}") from None
    begin = 2 + digits
    if len(view) < begin + size:
        raise ProtocolError(f"a block of {size} bytes ended after {len(view) - begin}")
    return view[begin : begin + size]


def length_of_length(first: bytes) -> int:
    """How many digits follow these two bytes. Raises `ProtocolError` if no block begins with them."""
    if len(first) != 2 or first[:1] != b"#" or not first[1:].isdigit():
        raise ProtocolError(f"binary data was expected (#...), the answer begins with {first!r}")
    if first == b"#0":
        raise ProtocolError(
            "the instrument sent a block without a length (#0), which cannot be read on this connection"
        )
    return int(first[1:])


def numbers_in(payload: Buffer, dtype: Any) -> np.ndarray:
    """The numbers of a block. Raises `ProtocolError` for a length that is no multiple of their size."""
    dtype = np.dtype(dtype)
    if len(payload) % dtype.itemsize:
        raise ProtocolError(f"a block of {len(payload)} bytes holds no whole number of {dtype.itemsize}-byte values")
    return np.frombuffer(payload, dtype)


class Terminations(Config):
    """What ends a line."""

    write: str = Field(default="\n", min_length=1, description="that is sent")
    read: str = Field(default="\n", min_length=1, description="that is received; a CR before it is dropped")

    @property
    def encoded(self) -> tuple[bytes, bytes]:
        """Of what is sent, and of what is received."""
        return self.write.encode(), self.read.encode()


class ConnectionConfig(Config):
    """How an instrument is reached, whatever it is told."""

    library: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(
        default="@py", description='pyvisa-py, or "" for the VISA library of a vendor'
    )
    baud: Annotated[PositiveInt, NO_INFLUENCE_ON_STATES] = Field(
        default=115200, description="bits a second of a serial port, as the board has it"
    )
    timeout_s: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = Field(
        default=3.0, description="the longest wait without a byte"
    )
    terminations: Annotated[Terminations, NO_INFLUENCE_ON_STATES] = Terminations()
    boot_wait_s: Annotated[NonNegativeFloat, NO_INFLUENCE_ON_STATES] = Field(
        default=0.0, description="wait so long after the port was opened: some boards begin anew, and print a greeting"
    )
    echo: Annotated[bool, NO_INFLUENCE_ON_STATES] = Field(
        default=False, description="true: it sends each line back before it answers"
    )
    identify: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(
        default="", description="a line that it answers with who it is: *IDN?"
    )
    identity: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(
        default="", description="a regular expression for this answer: another instrument is refused"
    )
    errors: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(
        default="", description="the line that takes one entry from its error queue: SYST:ERR?"
    )
    one_client: Annotated[bool | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="whether it takes one connection at a time; by default true for serial ports"
    )
    resource: Annotated[str | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="what one process uses at a time; by default what the address says"
    )

    @field_validator("identity")
    @classmethod
    def _compiles(cls, identity: str) -> str:
        try:
            re.compile(identity)
        except re.error as error:
            raise ValueError(f"{identity!r} is no regular expression: {error}") from None
        return identity

    @field_validator("terminations", mode="before")
    @classmethod
    def _both(cls, given: Any) -> Any:
        return {"write": given, "read": given} if isinstance(given, str) else given


SCPI = ConnectionConfig(baud=9600, timeout_s=5.0, identify="*IDN?", one_client=False)
"""Instruments that speak SCPI, where nobody says otherwise."""


_LONGEST_LINE = 1 << 20
_RECEIVED_AT_ONCE = 1 << 16
# What of an answer is shown in a message.
_SHOWN = 60
# How often a line that is waited for may go on being noisy.
_LONGEST_NOISE = 10
# pyvisa-py is fastest with these over HiSLIP.
_CHUNK = 1 << 18


class _Stream(ABC):
    """Bytes without messages: a line ends as the terminations say, and what has come in advance is kept."""

    def __init__(self, name: str, config: ConnectionConfig) -> None:
        self.timeout_s = config.timeout_s
        self._name, self._end, self._read_end = name, *config.terminations.encoded
        self._received: bytearray = bytearray()

    def line(self) -> bytes:
        """An answer without its terminator.

        Raises `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` for one that does not end.
        """
        searched = 0
        while (at := self._received.find(self._read_end, searched)) < 0:
            searched = max(0, len(self._received) - len(self._read_end))
            if searched > _LONGEST_LINE:
                raise ProtocolError(f"{self._name}: an answer of more than {_LONGEST_LINE} bytes without an end")
            self._received += self._some(self._due())
        line = bytes(self._received[:at])
        del self._received[: at + len(self._read_end)]
        return line.rstrip(b"\r")

    def _due(self) -> str:
        """What is waited for."""
        if not self._received:
            return "an answer was due"
        return f"of an answer only {bytes(self._received[:_SHOWN])!r} came, without its end"

    def block(self) -> memoryview:
        """The data of an answer that is a block.

        Raises `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` for an answer that is none.
        """
        while len(self._received) < 2:
            self._received += self._some("a block was due")
        digits = length_of_length(bytes(self._received[:2]))
        while len(self._received) < 2 + digits:
            self._received += self._some("the length of a block was due")
        size = bytes(self._received[2 : 2 + digits])
        if not size.isdigit():
            raise ProtocolError(f"{self._name}: the length of a block is no number: {size!r}")
        del self._received[: 2 + digits]
        view = memoryview(bytearray(int(size)))
        filled = min(len(view), len(self._received))
        view[:filled] = self._received[:filled]
        del self._received[:filled]
        self._fill(view, filled)
        self.line()
        return view

    @abstractmethod
    def _some(self, due: str) -> bytes:
        """At least a byte. Raises `DeviceTimeout` that says what was `due`, `DeviceDisconnected`."""

    def _fill(self, view: memoryview, filled: int) -> None:
        """The rest of a block, of which `filled` bytes are there."""
        while filled < len(view):
            some = self._some(f"{len(view) - filled} bytes of a block were due")
            used = min(len(some), len(view) - filled)
            view[filled : filled + used] = some[:used]
            self._received += some[used:]
            filled += used


class SocketLink(_Stream):
    """Over a connected TCP socket."""

    def __init__(self, name: str, connected: socket.socket, config: ConnectionConfig) -> None:
        super().__init__(name, config)
        self._socket = connected
        # Otherwise a query after a write waits for the acknowledgement of the write: 44 ms.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: bytes, block: Buffer = b"") -> None:
        """A message without its terminator, and a block that ends it. Raises `DeviceTimeout`, `DeviceDisconnected`."""
        with self._told():
            self._socket.settimeout(self.timeout_s)
            for part in (message, block, self._end) if block else (message + self._end,):
                self._socket.sendall(part)

    def unasked(self) -> bytes:
        """What has come and nobody has read. It is dropped. Raises `DeviceDisconnected`."""
        received = self._received
        with self._told(""):
            self._socket.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while more := self._socket.recv(_RECEIVED_AT_ONCE):
                    received.extend(more)
                raise ConnectionError("it was closed")
        found = bytes(received)
        received.clear()
        return found

    def close(self) -> None:
        """The session closes the socket."""

    def _some(self, due: str) -> bytes:
        with self._told(due):
            self._socket.settimeout(self.timeout_s)
            received = self._socket.recv(_RECEIVED_AT_ONCE)
            if not received:
                raise ConnectionError("it was closed")
            return received

    def _fill(self, view: memoryview, filled: int) -> None:
        with self._told(f"{len(view)} bytes of a block were due"):
            self._socket.settimeout(self.timeout_s)
            while filled < len(view):
                count = self._socket.recv_into(view[filled:])
                if not count:
                    raise ConnectionError(f"it was closed {filled} bytes into a block of {len(view)}")
                filled += count

    @contextlib.contextmanager
    def _told(self, due: str = "an answer was due") -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise DeviceTimeout(f"{self._name}: nothing came within {self.timeout_s:g} s, and {due}") from None
        except OSError as error:
            raise DeviceDisconnected(f"{self._name}: the connection is gone: {text_of(error)}") from error


class SerialLink(_Stream):
    """Over a serial port of pyserial, which it closes."""

    def __init__(self, line: Line, config: ConnectionConfig) -> None:
        super().__init__(line.port, config)
        self._line = line

    def send(self, message: bytes, block: Buffer = b"") -> None:
        """A message without its terminator, and a block that ends it. Raises `DeviceTimeout`, `DeviceDisconnected`."""
        self._line.wait_at_most(self.timeout_s)
        self._line.send(b"".join((message, block, self._end)))

    def unasked(self) -> bytes:
        """What has come and nobody has read. It is dropped. Raises `DeviceDisconnected`."""
        found = bytes(self._received) + self._line.take(0.0)
        self._received.clear()
        return found

    def wait_for_silence(self, quiet_s: float) -> None:
        """Drop what comes until nothing has come for so long: the answer to a line of earlier may still be on its way.

        Raises `ProtocolError` if that does not end.
        """
        until = time.monotonic() + _LONGEST_NOISE * quiet_s
        self._received.clear()
        while self._line.take(quiet_s):
            if time.monotonic() > until:
                raise ProtocolError(
                    f"{self._name}: it sends text without being asked, and does not stop for {quiet_s:g} s: switch "
                    "that off"
                )

    def close(self) -> None:
        """Idempotent."""
        self._line.close()

    def _some(self, due: str) -> bytes:
        # A port that is shared with others may wake up for nothing.
        until = time.monotonic() + self.timeout_s
        while not (received := self._line.take(max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                raise DeviceTimeout(f"{self._name}: nothing came within {self.timeout_s:g} s, and {due}")
        return received


class PyvisaLink:
    """Over a pyvisa resource: HiSLIP, VXI-11, USB, GPIB; a raw socket or a serial port of another VISA library."""

    def __init__(self, name: str, resource: Any, config: ConnectionConfig) -> None:
        self.timeout_s = config.timeout_s
        self._name, self._resource = name, resource
        self._end, self._read_end = config.terminations.encoded
        # Messages have ends of their own, so that a newline may be data.
        self._messages = resource.resource_class == "INSTR" and not name.upper().startswith("ASRL")
        resource.chunk_size = _CHUNK
        resource.write_termination = ""
        resource.read_termination = None

    def send(self, message: bytes, block: Buffer = b"") -> None:
        """A message without its terminator, and a block that ends it. Raises `DeviceTimeout`, `DeviceDisconnected`."""
        with self._told():
            self._resource.write_raw(b"".join((message, block, self._end)))

    def line(self) -> bytes:
        """An answer without its terminator. Raises `DeviceTimeout`, `DeviceDisconnected`."""
        with self._told():
            if self._messages:
                return bytes(self._resource.read_raw()).rstrip(b"\r\n")
            with self._resource.read_termination_context(self._read_end.decode()):
                return bytes(self._resource.read_raw()).rstrip(b"\r\n")

    def unasked(self) -> bytes:
        """What has come and nobody has read. It is dropped. Where there are messages, there is no such thing."""
        if self._messages or not hasattr(self._resource, "bytes_in_buffer"):
            return b""
        with self._told():
            waiting = self._resource.bytes_in_buffer
            return self._resource.read_bytes(waiting) if waiting else b""

    def block(self) -> memoryview:
        """The data of an answer that is a block.

        Raises `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` for an answer that is none.
        """
        with self._told():
            if self._messages:
                return payload_of(self._message())
            first = self._resource.read_bytes(2)
            size = int(self._resource.read_bytes(length_of_length(first)))
            return memoryview(self._resource.read_bytes(size + len(self._end), chunk_size=_CHUNK))[:size]

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


Link = SocketLink | SerialLink | PyvisaLink
"""Sends messages and receives answers; every wait ends after `timeout_s` without a byte."""


# ---- VISA addresses, and which of them mean one instrument.


_TCPIP = re.compile(r"TCPIP(?P<board>\d*)::(?P<host>[^:\[\]]+|\[[^\]]+\])::(?P<rest>.+)", re.IGNORECASE)


def resource_of(address: str) -> str:
    """The name under which the instrument at `address` is locked.

    An instrument has one host, however many ports and protocols it listens on, so `TCPIP::h::5025::SOCKET` and
    `TCPIP0::H::hislip0::INSTR` are one resource. On this host, and behind a gateway to GPIB, there may be several: the
    address itself counts. A serial port is one resource under all its names. Raises `ConfigurationError` for what is no
    address.
    """
    address = address.strip()
    if (port := port_of(address)) is not None:
        return resource_of_port(port)
    if "::" not in address:
        raise ConfigurationError(
            f"{address!r} is no VISA address; examples are TCPIP::192.168.1.5::5025::SOCKET, "
            "TCPIP::192.168.1.5::hislip0::INSTR and USB0::0x2A8D::0x1602::MY1::INSTR"
        )
    if (match := _TCPIP.fullmatch(address)) is None:
        return f"visa {address.upper()}"
    host = match["host"].lower().strip("[]")
    if is_this_host(host) or match["rest"].lower().startswith("gpib"):
        return f"visa {host} {match['rest'].lower()}"
    return f"visa {host}"


def is_raw_socket(address: str) -> bool:
    """Whether it is a plain TCP connection, without messages."""
    return address.upper().endswith("::SOCKET")


# ---- Opening a VISA address, so that one learns at once whether somebody answers there.


_DESCRIPTORS = 1000


class Session:
    """One connection. Raises `ConfigurationError` for an address that is none, `DeviceDisconnected` if none answers."""

    def __init__(self, address: str, config: ConnectionConfig = SCPI) -> None:
        self.address = address
        self._resource: Any = None
        port = port_of(address)
        if port is not None and (config.library == "@py" or port == address):
            with extra("serial", "serial ports need pyserial"):
                from reservoir_hw.drivers.serial.line import Line
            self.link: Link = SerialLink(Line(port, config.baud, config.timeout_s), config)
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
    if (connected := _socket_of(resource)) is not None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


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
