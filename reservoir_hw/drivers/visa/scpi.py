"""An instrument that speaks SCPI: messages, blocks of numbers, its error queue."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from reservoir_hw.core.arrays import NO_NUMBER
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ProtocolError
from reservoir_hw.drivers.visa.links import SCPI, ConnectionConfig, Link, Session, Terminations, header_of, numbers_in

log = logging.getLogger(__name__)

_NO_ERROR = re.compile(r"[+-]?0+\b")
# An error queue holds 20 to 30 entries; an instrument that never says "no error" has no queue.
_MOST_ERRORS = 100


class _Connection:
    """What drivers of one instrument share. `idn` is its answer to `*IDN?`, empty before it was asked."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.idn = ""


class ScpiInstrument:
    """The instrument at a VISA address.

    Parameters
    ----------
    address
        Such as TCPIP::192.168.1.5::5025::SOCKET.
    library
        What `pyvisa.ResourceManager` takes: "@py" for pyvisa-py, "" for the VISA library of a vendor.
    timeout_s
        The longest wait without a byte. Arming and triggering have their own.
    end
        What ends a message.
    errors
        The query that takes one entry from the error queue.
    identity
        A regular expression for the answer to `*IDN?`: another instrument is refused.

    Threads may share it: one exchange ends before the next begins. A connection on which an exchange went wrong is not
    used again, since its answer may still come: the next exchange opens another, and asks who answers there.

    All methods raise `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` and `DeviceFault`.
    """

    end = "\n"
    errors = "SYST:ERR?"
    identity = ""

    def __init__(self, address: str, *, library: str = "@py", timeout_s: float = 5.0) -> None:
        self.address, self.timeout_s = address, timeout_s
        self._library = library
        self._connection = _Connection()

    @property
    def idn(self) -> str:
        """Its answer to `*IDN?`; empty before `open`."""
        return self._connection.idn

    @property
    def connection(self) -> ConnectionConfig:
        """How it is reached."""
        told = {"library": self._library, "timeout_s": self.timeout_s, "terminations": Terminations(write=self.end)}
        return SCPI.model_copy(update=told)

    def share(self, other: ScpiInstrument) -> None:
        """Use the connection of another driver of the same instrument from now on: one exchange at a time for both."""
        self._connection = other._connection

    def open(self) -> Self:
        """Connect, and ask who is there. Raises `ConfigurationError` where it is another instrument. Idempotent."""
        with self._exchange("open"):
            # The other driver of a shared connection may take more instruments than this one.
            self._recognise(self.idn)
            return self

    def close(self) -> None:
        """Idempotent. The instrument keeps its settings. A shared connection is closed for both."""
        connection = self._connection
        with connection.lock:
            if connection.session is not None:
                connection.session.close()
                connection.session = None

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *details: object) -> None:
        self.close()

    # ---- exchanges ------------------------------------------------------------------------------

    def write(self, *commands: str) -> None:
        """Send commands, each as a message of its own."""
        for command in commands:
            with self._exchange(command) as link:
                link.send(command.encode())

    def write_block(self, command: str, numbers: np.ndarray) -> None:
        """Send `command`, ending in a comma or a space, and then these numbers as a block of their dtype."""
        payload = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data
        with self._exchange(f"{command}<{payload.nbytes} bytes>") as link:
            link.send(command.encode() + header_of(payload.nbytes), payload)

    def query(self, command: str, *, timeout_s: float | None = None) -> str:
        """The answer to a query, without its end."""
        with self._exchange(command, timeout_s) as link:
            link.send(command.encode())
            answer = link.line().decode("latin-1").strip()
            log.debug("%s -> %s", self.address, answer)
            return answer

    def query_number(self, command: str) -> float:
        """The answer to a query, as a number.

        Raises `ProtocolError` for what is none, such as the 9.9E37 of SCPI.
        """
        answer = self.query(command)
        try:
            number = float(answer)
        except ValueError:
            number = math.nan
        if not abs(number) < NO_NUMBER:
            raise ProtocolError(f"{self.address}: {command} was answered by {answer!r}, which is no number")
        return number

    def query_block(self, command: str, dtype: Any) -> np.ndarray:
        """The numbers (of `dtype`) in the block that answers a query.

        What stands in the error queue is raised before: an instrument that has refused its settings may never answer.
        """
        self.check_errors()
        with self._exchange(command) as link:
            link.send(command.encode())
            payload = link.block()
            log.debug("%s -> <%d bytes>", self.address, payload.nbytes)
            return numbers_in(payload, dtype)

    def finish(self, what: str, timeout_s: float) -> None:
        """Until all that was asked for is done (`*OPC?`). `what` is what an error calls it."""
        if (answer := self.query("*OPC?", timeout_s=timeout_s)) != "1":
            raise ProtocolError(f"{self.address}: {what}: *OPC? was answered by {answer!r}")

    def check_errors(self) -> None:
        """Raise `DeviceFault` with everything in the error queue, which is empty afterwards."""
        found: list[str] = []
        while not _NO_ERROR.match(entry := self.query(self.errors)):
            found.append(entry)
            if len(found) == _MOST_ERRORS:
                raise ProtocolError(f"{self.address}: {self.errors} never says that there is no error: {entry!r}")
        if found:
            raise DeviceFault(f"{self.address}: the instrument reports {'; '.join(found)}")

    # ---- the connection -------------------------------------------------------------------------

    @contextmanager
    def _exchange(self, command: str, timeout_s: float | None = None) -> Iterator[Link]:
        """The connection, for one exchange that nobody interrupts."""
        connection = self._connection
        with connection.lock:
            if connection.session is None:
                connection.session = self._connected()
            link = connection.session.link
            link.timeout_s = self.timeout_s if timeout_s is None else timeout_s
            log.debug("%s <- %s", self.address, command)
            try:
                yield link
            except BaseException:
                self.close()
                raise

    def _connected(self) -> Session:
        session = Session(self.address, self.connection)
        try:
            session.link.send(b"*IDN?")
            idn = session.link.line().decode("latin-1").strip()
            self._recognise(idn)
            if self.idn not in ("", idn):
                raise DeviceFault(f"{self.address} was {self.idn!r}, and is {idn!r} now")
        except BaseException:
            session.close()
            raise
        self._connection.idn = idn
        return session

    def _recognise(self, idn: str) -> None:
        if not re.search(self.identity, idn):
            raise ConfigurationError(f"{self.address} is {idn!r}, which is no {type(self).__name__}")
