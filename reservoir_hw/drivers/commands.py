"""Instruments, or boards, that are told lines of text, and what is read of their answers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Self

import numpy as np

from reservoir_hw.core.arrays import NO_NUMBER
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceFault,
    DeviceTimeout,
    ProtocolError,
    ReservoirError,
)
from reservoir_hw.drivers.ports import port_of
from reservoir_hw.drivers.visa.links import ConnectionConfig, Link, SerialLink, Session, numbers_in, resource_of

# ---- What is read of an answer: the numbers that become states, and those with names.
#
# An answer is a line of numbers, a line that a pattern knows, or a block of binary numbers (IEEE 488.2).


_LITERAL = r"\{\{(?P<literal>[A-Za-z_][^{}]*)\}\}"
_PLACE = re.compile(_LITERAL + r"|\{(?P<place>[A-Za-z_][^{}]*)(?P<end>\}|$|(?=\{))")
_PARTS = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\[(?P<index>\w+)\])?(?::(?P<format>[^:]*))?")
_FORMAT = re.compile(r"[+ -]?0?\d{0,2}(?:\.\d{1,2})?(?P<type>[deEfFgGxX]?)")
_WHOLE = "dxX"

Values = Mapping[str, Any]
"""What stands for a name: a number, a text, or a sequence of them."""


@dataclass(frozen=True)
class Place:
    """Where a number goes. `index` is a number, or the name of another value."""

    name: str
    index: int | str | None
    format: str

    def __str__(self) -> str:
        index = "" if self.index is None else f"[{self.index}]"
        return f"{{{self.name}{index}{self.format and ':'}{self.format}}}"

    def text(self, value: Any) -> str:
        """A value as it is written. A number in the format of a whole one is rounded; several are joined by commas."""
        if isinstance(value, str):
            return value
        if isinstance(value, Sequence):
            return ",".join(self.text(one) for one in value)
        if not self.format:
            return repr(value)
        return format(round(value) if self.format[-1] in _WHOLE else float(value), self.format)


class Template:
    """A line with its places. Raises `ValueError` that says what is wrong with it.

    Args:
        text: The line.
        widths: The names that may stand in it; for those with an index, how many there are, else None.
    """

    def __init__(self, text: str, widths: Mapping[str, int | None]) -> None:
        if not text.isprintable():
            raise ValueError(f"{text!r} must be one line of printable text: the end of a line is added to it")
        self.text = text
        self._widths = widths
        self.parts: list[str | Place] = []
        done = 0
        for found in _PLACE.finditer(text):
            literal = found["literal"]
            self.parts.append(text[done : found.start()])
            self.parts.append(self._place(found["place"], found["end"]) if literal is None else f"{{{literal}}}")
            done = found.end()
        self.parts.append(text[done:])

    @property
    def places(self) -> list[Place]:
        """All of them, from left to right."""
        return [part for part in self.parts if isinstance(part, Place)]

    def filled(self, values: Values, passed: Callable[[Place, str], str] = lambda place, text: text) -> str:
        """The line with these values. `passed` gets what is written at each place, and returns what stands there."""
        written = []
        for part in self.parts:
            if isinstance(part, Place):
                value = values[part.name]
                if part.index is not None:
                    value = value[part.index if isinstance(part.index, int) else int(values[part.index])]
                part = passed(part, part.text(value))
            written.append(part)
        return "".join(written)

    def bound(self, values: Values) -> Template:
        """The same line where these values are filled in for good, also as indices. Raises `ValueError`."""
        bound = Template("", self._widths)
        bound.text = self.text
        for part in self.parts:
            if isinstance(part, Place) and part.index in values:
                index = values[str(part.index)]
                part = self._place(f"{part.name}[{index}]{part.format and ':'}{part.format}", "}")
            bound.parts.append(
                part.text(values[part.name]) if isinstance(part, Place) and part.name in values else part
            )
        return bound

    def _place(self, inside: str, end: str) -> Place:
        widths = self._widths
        known = ", ".join(name if width is None else f"{name}[0]" for name, width in widths.items()) or "nothing"
        if not end:
            raise ValueError(f"{self.text!r}: the brace before {inside!r} is not closed")
        if (parts := _PARTS.fullmatch(inside)) is None:
            raise ValueError(
                f"{self.text!r}: {{{inside}}} is no place for a number, such as {{u[0]:.4f}}; for braces as they are "
                f"write {{{{{inside}}}}}"
            )
        name, index, form = parts["name"], parts["index"], parts["format"] or ""
        if name not in widths:
            raise ValueError(
                f"{self.text!r}: there is no {name} (but {known}); for braces as they are write {{{{{inside}}}}}"
            )
        if _FORMAT.fullmatch(form) is None:
            raise ValueError(f"{self.text!r}: {form!r} is no format of a number, such as .4f, d, or .3e")
        width = widths[name]
        if (width is None) != (index is None):
            said = f"{name} has no index" if width is None else f"{name} needs an index: {name}[0]"
            raise ValueError(f"{self.text!r}: {said}")
        if index is None or width is None:
            return Place(name, None, form)
        if index.isdigit():
            if int(index) >= width:
                raise ValueError(
                    f"{self.text!r}: there is no {name}[{index}], they are {name}[0] to {name}[{width - 1}]"
                )
            return Place(name, int(index), form)
        if widths.get(index, 0) is not None:
            raise ValueError(f"{self.text!r}: {name}[{index}] needs a number, or the name of a loop (but {known})")
        return Place(name, index, form)


STATE = "state"
"""The name of numbers that become states."""
NOTHING = "_"
"""The name of numbers that are not read."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_BETWEEN = re.compile(r"[\s,;]+")
_SHOWN = 80


@dataclass
class Reading:
    """What one answer said."""

    states: list[float] = field(default_factory=list)
    named: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Floats:
    """Numbers with commas, semicolons or white space between them; `names` says which is which, over and over.

    Without names all of them are states.
    """

    names: tuple[str, ...] = ()

    def read(self, answer: str, _values: Values, asked: str) -> Reading:
        """What an answer says. Raises `ProtocolError` or `DeviceFault`, which name what was `asked`."""
        texts = filter(None, _BETWEEN.split(answer))
        names = cycle(self.names or (STATE,))
        numbers = [
            0.0 if name == NOTHING else _number(text, answer, asked) for text, name in zip(texts, names, strict=False)
        ]
        return named(numbers, self.names, asked, shown(answer))


class Pattern:
    """A regular expression with places for numbers as in a line, for the whole answer.

    The group `state` holds numbers that become states; other groups hold one number each.
    """

    def __init__(self, template: Template) -> None:
        self._template = template

    def read(self, answer: str, values: Values, asked: str) -> Reading:
        """As `Floats.read`."""
        expected = self._template.filled(values, lambda place, text: re.escape(text))
        if (found := re.fullmatch(expected, answer.strip())) is None:
            raise ProtocolError(f"{asked} was answered by {shown(answer)}, which is not {expected!r}")
        reading = Reading()
        for name, text in found.groupdict().items():
            if text is None:
                continue
            if name == STATE:
                reading = Floats().read(text, values, asked)
            else:
                reading.named[name] = [_number(text, answer, asked)]
        return reading


Answer = Floats | Pattern
"""A way to read an answer."""


def named(numbers: Sequence[float], names: Sequence[str], asked: str, answer: str) -> Reading:
    """The numbers of an answer by their names.

    Raises `ProtocolError` for a count that does not fit, and `DeviceFault` for a state by which an instrument says that
    there is none.
    """
    names = names or (STATE,)
    if not len(numbers) or len(numbers) % len(names):
        raise ProtocolError(
            f"{asked} was answered by {answer}, {len(numbers)} numbers where {len(names)} are read ({', '.join(names)})"
        )
    reading = Reading()
    for number, name in zip(numbers, cycle(names), strict=False):
        if name == STATE:
            reading.states.append(number)
        elif name != NOTHING:
            reading.named.setdefault(name, []).append(number)
    if bad := [state for state in reading.states if not abs(state) < NO_NUMBER]:
        raise DeviceFault(
            f"{asked} was answered by {answer}: {bad[0]:g} is no number but a word of instruments, for over-range "
            "(9.9e37) or for what was not measured (9.91e37): set a wider range, or have it measured"
        )
    return reading


def shown(answer: str) -> str:
    """An answer in a message."""
    return repr(answer if len(answer) <= _SHOWN else f"{answer[:_SHOWN]}...")


def _number(text: str, answer: str, asked: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise ProtocolError(f"{asked} was answered by {shown(answer)}: {text!r} is no number")
    return float(text)


# ---- An instrument, or a board, that is told lines of text.


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

    def ask_block(self, line: str, dtype: Any) -> list[float]:
        """The numbers (of `dtype`) in the block that answers a line."""
        with self._exchange(line) as link:
            self._know(link)
            self._expect_nothing(link, line)
            self._send(link, line)
            return numbers_in(link.block(), dtype).astype(np.float64).tolist()

    def check_errors(self) -> None:
        """Raise `DeviceFault` with everything in the error queue, which is empty afterwards."""
        if found := self._take_errors():
            raise DeviceFault(f"{self.address}: the instrument reports {'; '.join(found)}")

    def forget_errors(self) -> None:
        """Empty the error queue."""
        if found := self._take_errors():
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
        if self._session is None:
            self._session, self._is_known = Session(self.address, self._config), False
            time.sleep(self._config.boot_wait_s)
        session = self._session
        log.debug("%s <- %s", self.address, line)
        try:
            yield session.link
        except BaseException as error:
            try:
                if isinstance(error, DeviceTimeout):
                    self._explain(error, session.link, line)
            finally:
                # A late answer would be read as that of the next line.
                self.close()
            raise

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
        if came := link.unasked():
            raise Unasked(
                f"{self.address}: {shown(came.decode('latin-1'))} came unasked before {line!r}: the answer to a line "
                "before it (then write `ask:` for its `write:`), one that came twice or late, or a text of its own"
            )

    def _send(self, link: Link, line: str) -> None:
        link.send(line.encode("latin-1"))
        if self._config.echo and (echo := link.line().decode("latin-1")) != line:
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
        query = self._config.errors
        if not query:
            return found
        while len(found) < _MOST_ERRORS:
            entry = self.ask(query)
            if (number := _ENTRY.match(entry)) is None:
                self.close()
                raise ProtocolError(
                    f"{self.address}: {query} was answered by {shown(entry)}, which does not begin with a number as "
                    "entries of an error queue do"
                )
            if int(number[1]) == 0:
                return found
            found.append(entry)
        raise ProtocolError(f"{self.address}: {query} never says that there is no error: {found[-1]!r}")

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
