"""An instrument, or a board, that is told lines of text."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import numpy as np

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceFault,
    DeviceTimeout,
    ProtocolError,
    ReservoirError,
)
from reservoir_hw.drivers.commands.answers import shown
from reservoir_hw.drivers.ports import port_of
from reservoir_hw.drivers.visa.links import ConnectionConfig, Link, SerialLink, numbers_in, resource_of
from reservoir_hw.drivers.visa.session import Session

log = logging.getLogger(__name__)

# An entry of the error queue of SCPI: 0,"No error"; +0; -113,"Undefined header".
_ENTRY = re.compile(r"\s*([+-]?\d+)\b")
# An error queue holds 20 to 30 entries; an instrument that never says "no error" has no queue.
_MOST_ERRORS = 100


class Unasked(ProtocolError):
    """Something came that nobody had asked for: an answer that was taken earlier may have been another's."""


class TextInstrument:
    """The instrument at an address, told one line at a time.

    After an exchange that went wrong the connection is closed, since its answer may still come. The next line opens it
    again, and before the next question it waits until the line is silent, and asks who is there.

    All methods raise `DeviceTimeout`, `DeviceDisconnected`, `ProtocolError` and `DeviceFault`.
    """

    def __init__(self, address: str, config: ConnectionConfig) -> None:
        self.address = address
        self.who = ""
        """What it answered to `identify`; empty before `open`, and where it is not asked."""
        self._config = config
        self._session: Session | None = None
        self._was_open = self._is_known = False

    @property
    def takes_one_client(self) -> bool:
        """Whether nobody else can be connected meanwhile."""
        told = self._config.one_client
        return port_of(self.address) is not None if told is None else told

    @property
    def locked(self) -> str:
        """The name under which it is locked."""
        return self._config.resource or resource_of(self.address)

    def open(self) -> Self:
        """Connect, and ask who is there. Idempotent. Raises `ConfigurationError` where it is another instrument."""
        with self._exchange("open") as link:
            self._know(link)
        return self

    def close(self) -> None:
        """Idempotent. The instrument keeps its settings."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def write(self, line: str) -> None:
        """Send a line that nothing answers. After a fault it is sent at once."""
        with self._exchange(line) as link:
            self._send(link, line)

    def ask(self, line: str) -> str:
        """The answer to a line, without its end. Nothing may have come that nobody asked for."""
        with self._exchange(line) as link:
            self._know(link)
            answer = self._answer(link, line)
            log.debug("%s -> %s", self.address, answer)
            return answer

    def ask_block(self, line: str, dtype: Any) -> np.ndarray:
        """The numbers (of `dtype`) in the block that answers a line."""
        with self._exchange(line) as link:
            self._know(link)
            self._expect_nothing(link, line)
            self._send(link, line)
            return numbers_in(link.block(), dtype)

    def check_errors(self) -> None:
        """Raise `DeviceFault` with everything in the error queue, which is empty afterwards."""
        found = self._take_errors()
        if found:
            raise DeviceFault(f"{self.address}: the instrument reports {'; '.join(found)}")

    def forget_errors(self) -> None:
        """Empty the error queue."""
        found = self._take_errors()
        if found:
            log.info("%s: left in its error queue by others: %s", self.address, "; ".join(found))

    def expect_silence(self, within_s: float = 0.0) -> None:
        """Raise `Unasked` for what has come, or comes within so many seconds, and nobody has asked for.

        Where each answer is that to the question before, only the end shows it: one is left over.
        """
        if self._session is not None:
            with self._exchange("the end") as link:
                self._expect_nothing(link, "the end")
                time.sleep(within_s)
                self._expect_nothing(link, "the end")

    # ---- how ------------------------------------------------------------------------------------

    @contextmanager
    def _exchange(self, line: str) -> Iterator[Link]:
        session = self._session or self._connected()
        log.debug("%s <- %s", self.address, line)
        try:
            yield session.link
        except DeviceTimeout as error:
            self._explain(error, session.link, line)
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def _connected(self) -> Session:
        self._session = session = Session(self.address, self._config)
        self._is_known = False
        time.sleep(self._config.boot_wait_s)
        return session

    def _know(self, link: Link) -> None:
        """Before the first question on a connection: the line is silent, and the right one is there."""
        if self._is_known:
            return
        config = self._config
        if self._was_open and isinstance(link, SerialLink):
            link.wait_for_silence(config.timeout_s)
        link.unasked()
        if config.identify:
            who = self._answer(link, config.identify)
            if not re.search(config.identity, who):
                raise ConfigurationError(f"{self.address} is {who!r}, and not {config.identity!r} (identity)")
            if self.who not in ("", who):
                raise DeviceFault(f"{self.address} was {self.who!r}, and is {who!r} now")
            self.who = who
        self._was_open = self._is_known = True

    def _expect_nothing(self, link: Link, line: str) -> None:
        came = link.unasked()
        if came:
            raise Unasked(
                f"{self.address}: {shown(came.decode('latin-1'))} came unasked before {line!r}: the answer to a line "
                "before it (then write `ask:` for its `write:`), one that came twice or late, or a text of its own"
            )

    def _send(self, link: Link, line: str) -> None:
        link.send(line.encode("latin-1"))
        if self._config.echo:
            echo = link.line().decode("latin-1")
            if echo != line:
                raise ProtocolError(f"{self.address}: {line!r} was sent, and {shown(echo)} came back as its echo")

    def _answer(self, link: Link, line: str) -> str:
        self._expect_nothing(link, line)
        self._send(link, line)
        answer = link.line().decode("latin-1")
        if answer == line:
            raise ProtocolError(
                f"{self.address} sends back what is sent to it ({line!r}): switch its echo off, or say `echo: true`"
            )
        return answer

    def _take_errors(self) -> list[str]:
        """All entries of the error queue; none where there is no queue."""
        found: list[str] = []
        while self._config.errors and (entry := self._next_error()) is not None:
            found.append(entry)
            if len(found) == _MOST_ERRORS:
                raise ProtocolError(
                    f"{self.address}: {self._config.errors} never says that there is no error: {entry!r}"
                )
        return found

    def _next_error(self) -> str | None:
        entry = self.ask(self._config.errors)
        found = _ENTRY.match(entry)
        if found is None:
            self.close()
            raise ProtocolError(
                f"{self.address}: {self._config.errors} was answered by {shown(entry)}, which does not begin with a "
                "number as entries of an error queue do"
            )
        return None if int(found[1]) == 0 else entry

    def _explain(self, error: DeviceTimeout, link: Link, line: str) -> None:
        """Ask the instrument why it did not answer."""
        said = f"{error.args[0]} (asked: {line!r})"
        with suppress(ReservoirError):
            if self._config.errors:
                link.send(self._config.errors.encode("latin-1"))
                entry = link.line().decode("latin-1").strip()
                number = _ENTRY.match(entry)
                # A number alone may be the answer to the line itself, which comes late.
                if number is not None and int(number[1]) and "," in entry:
                    said += f"; the instrument reports {entry}"
        error.args = (said, *error.args[1:])
