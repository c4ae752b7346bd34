"""A serial port as a line of bytes between zeros, by pyserial."""

from __future__ import annotations

import errno
import io
import os
import select
import time
from pathlib import Path

import serial
from serial.tools import list_ports

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceTimeout,
    ProtocolError,
    ReservoirError,
)

BITS_A_BYTE = 10
"""On the line: a start bit, eight, and a stop bit."""
# How long a port that cannot be waited for together with a deadline waits at once.
_LOOK_S = 0.05
_AT_ONCE = 1 << 16
_ABSENT = {errno.ENOENT, errno.ENXIO, errno.ENODEV, errno.ENOTDIR}
_TAKEN = {errno.EBUSY, errno.EWOULDBLOCK, errno.EAGAIN}


class Line:
    """An open port. Nobody else of this host has it meanwhile, as far as they ask.

    Args:
        port: `/dev/ttyACM0`, `COM5`, or a URL of pyserial: `socket://host:port`, `loop://`.
        baud: Bits a second. USB boards and sockets do not care.
        patience_s: The longest wait until a byte can be sent.

    Raises (all methods): DeviceDisconnected, where the port goes. `__init__` also ConfigurationError and DeviceBusy.
    """

    def __init__(self, port: str, baud: int, patience_s: float) -> None:
        self.port, self.baud = port, baud
        self.received = 0
        """Bytes that came."""
        self._buffer = bytearray()
        try:
            self._serial = serial.serial_for_url(port, baud, timeout=_LOOK_S, write_timeout=patience_s, exclusive=True)
        except (ValueError, OverflowError, NotImplementedError) as error:
            raise ConfigurationError(f"{port} at {baud} baud cannot be opened: {error}") from error
        except OSError as error:
            raise _not_opened(port, error) from error
        try:
            self._file = self._serial.fileno() if os.name == "posix" else None
        except io.UnsupportedOperation:
            self._file = None

    def close(self) -> None:
        """Idempotent."""
        self._serial.close()

    def seconds(self, size: int) -> float:
        """How long so many bytes take."""
        return size * BITS_A_BYTE / self.baud

    def wait_at_most(self, patience_s: float) -> None:
        """The longest wait until a byte can be sent, from now on."""
        self._serial.write_timeout = patience_s

    def send(self, data: bytes) -> None:
        """Send all of it, or raise `DeviceTimeout`."""
        try:
            self._serial.write(data)
        except serial.SerialTimeoutException:
            raise DeviceTimeout(
                f"{self.port}: nothing could be sent for {self._serial.write_timeout:.2g} s: the board does not read"
            ) from None
        except OSError as error:
            raise self._gone(error) from error

    def drop(self) -> None:
        """Forget what has come."""
        self.take(0.0)

    def receive(self, until: float, longest: int) -> bytes | None:
        """What lies between the next two zeros, or None if that has not come by `until` of `time.monotonic`.

        Raises `ProtocolError` if more than `longest` bytes come without a zero. They are dropped.
        """
        while True:
            if (end := self._buffer.find(0)) > 0:
                data = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return data
            if end == 0:
                del self._buffer[0]
                continue
            if len(self._buffer) > longest:
                self._buffer.clear()
                raise ProtocolError(f"a frame of more than {longest} bytes")
            if (left := until - time.monotonic()) <= 0:
                return None
            self._read(left)

    def take(self, wait_s: float) -> bytes:
        """Everything that is there, or comes first within so many seconds; empty where nothing comes."""
        self._read(wait_s)
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _read(self, wait_s: float) -> None:
        """Take what is there, or comes first within so many seconds."""
        try:
            if self._file is None:
                waiting = self._serial.in_waiting
                data = self._serial.read(waiting or 1) if waiting or wait_s else b""
            elif select.select([self._file], [], [], wait_s)[0]:
                data = os.read(self._file, _AT_ONCE)
                if not data:
                    raise OSError(errno.EIO, "it was hung up, or another program reads from it")
            else:
                return
        except BlockingIOError:
            return
        except OSError as error:
            raise self._gone(error) from error
        self.received += len(data)
        self._buffer += data

    def _gone(self, error: OSError) -> DeviceDisconnected:
        return DeviceDisconnected(
            f"{self.port}: the port is gone ({error.strerror or error}): was a cable pulled, or the board switched off?"
        )


def ports_there_are() -> str:
    """The serial ports of this machine, for messages."""
    ports = [
        port.device if port.description in ("n/a", None) else f"{port.device} ({port.description})"
        for port in sorted(list_ports.comports())
    ]
    return f"there are {', '.join(ports)}" if ports else "this machine shows no serial port: is the board plugged in?"


def _not_opened(port: str, error: OSError) -> ReservoirError:
    """What to tell for a port that did not open."""
    said = str(error)
    if "://" in port:
        return DeviceDisconnected(f"{port} cannot be reached: {said.rpartition(': ')[2]}")
    # On Windows only the text says which error it was.
    if error.errno in _ABSENT or "FileNotFoundError" in said:
        return ConfigurationError(f"there is no port {port}; {ports_there_are()}")
    if error.errno in _TAKEN or "PermissionError" in said:
        return DeviceBusy(f"{port} is in use by another program: close it there")
    if error.errno == errno.EACCES:
        return ConfigurationError(f"{port} may not be opened by this user{_group_of(port)}")
    return ConfigurationError(f"{port} is no serial port that works: {said}; {ports_there_are()}")


def _group_of(port: str) -> str:
    try:
        group = Path(port).group()
    except (OSError, KeyError):
        return ""
    return f": add them to the group {group} (sudo usermod -a -G {group} NAME), and log in again"
