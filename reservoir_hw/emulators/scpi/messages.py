"""Where program messages, their units and their arguments end (IEEE 488.2, 7).

A newline ends a message, `;` a unit and `,` an argument, but not within a string, and not within a block of bytes
`#<n><length><bytes>`. Blocks are stepped over and never looked at, so a large one costs as much as a small one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

# SCPI-99, volume 2, 21.8.
STANDARD_ERRORS = {
    -100: "Command error",
    -101: "Invalid character",
    -102: "Syntax error",
    -103: "Invalid separator",
    -104: "Data type error",
    -108: "Parameter not allowed",
    -109: "Missing parameter",
    -111: "Header separator error",
    -113: "Undefined header",
    -114: "Header suffix out of range",
    -121: "Invalid character in number",
    -131: "Invalid suffix",
    -138: "Suffix not allowed",
    -151: "Invalid string data",
    -161: "Invalid block data",
    -200: "Execution error",
    -211: "Trigger ignored",
    -213: "Init ignored",
    -220: "Parameter error",
    -221: "Settings conflict",
    -222: "Data out of range",
    -223: "Too much data",
    -224: "Illegal parameter value",
    -230: "Data corrupt or stale",
    -240: "Hardware error",
    -310: "System error",
    -350: "Queue overflow",
    -400: "Query error",
    -410: "Query INTERRUPTED",
    -420: "Query UNTERMINATED",
    -430: "Query DEADLOCKED",
    -440: "Query UNTERMINATED after indefinite response",
}
QUEUE_LENGTH = 20


class ScpiError(Exception):
    """What an instrument puts into its error queue.

    Args:
        code: The number. Standard errors are negative; an instrument's own are positive.
        text: Needed for numbers that are not in `STANDARD_ERRORS`.
    """

    def __init__(self, code: int, text: str | None = None) -> None:
        self.code = code
        self.text = STANDARD_ERRORS[code] if text is None else text
        super().__init__(f'{code},"{self.text}"')

    @property
    def is_command_error(self) -> bool:
        """Whether the message could not be understood. What follows in it is then discarded."""
        return -200 < self.code <= -100

    @property
    def event_bit(self) -> int:
        """The bit that it sets in the standard event status register (IEEE 488.2, 11.5.1)."""
        if self.is_command_error:
            return 0x20
        if -300 < self.code <= -200:
            return 0x10
        if -500 < self.code <= -400:
            return 0x04
        return 0x08


class ErrorQueue:
    """First in, first out. When it is full, its last entry says so, and later errors are lost."""

    def __init__(self) -> None:
        self._errors: deque[ScpiError] = deque()

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, error: ScpiError) -> None:
        """Keep an error."""
        if len(self._errors) < QUEUE_LENGTH:
            self._errors.append(error)
        else:
            self._errors[-1] = ScpiError(-350)

    def take(self) -> ScpiError:
        """Remove the oldest one and return it; `0,"No error"` if there is none."""
        return self._errors.popleft() if self._errors else ScpiError(0, "No error")

    def clear(self) -> None:
        """Forget them all."""
        self._errors.clear()


Token = bytes | memoryview
"""An argument as it was sent: the contents of a block as a view of the message, everything else as bytes."""

_STRING_OR_BLOCK = re.compile(rb"[\"'#]")
_STOPS = {stop: re.compile(b"[\"'#" + stop + b"]") for stop in (b"\n", b";", b",")}
_STRING_ENDS = {quote: re.compile(b"[\n" + quote + b"]") for quote in (b'"', b"'")}
_BLOCK_HEADER = re.compile(rb"#([1-9])")


class Found(NamedTuple):
    """Where a stop is. Without one, `at` is None, and more bytes have to come."""

    at: int | None
    resume: int
    """Where to look on when more bytes have come."""
    missing: int
    """How many bytes must come at least."""


def find_message_end(data: bytes | bytearray, start: int = 0) -> Found:
    """The next newline of a stream that ends a message."""
    return _find(data, b"\n", start, len(data), ended=False)


def split_messages(data: bytearray) -> list[bytearray]:
    """The messages in `data`, of which the last one ends with the data (END of IEEE 488.2)."""
    pieces = list(_pieces(data, b"\n", 0, len(data)))
    if pieces[0][1] >= len(data) - 1:
        # One message, which may be large: it is not copied.
        del data[pieces[0][1] :]
        return [data]
    return [data[start:end] for start, end in pieces]


def split_units(message: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Start and end of each unit of a message."""
    return _pieces(message, b";", 0, len(message))


def split_arguments(message: bytes | bytearray, start: int, end: int) -> list[Token]:
    """The arguments between `start` and `end`. Raises `ScpiError` where a block is not whole."""
    if not _STRING_OR_BLOCK.search(message, start, end):
        text = bytes(message[start:end])
        return [part.strip() for part in text.split(b",")] if text.strip() else []
    return [_token(message, *piece) for piece in _pieces(message, b",", start, end)]


def _token(message: bytes | bytearray, start: int, end: int) -> Token:
    while start < end and message[start] <= 0x20:
        start += 1
    if message[start : start + 2] == b"#0":
        # The newline at its end belongs to the message.
        return memoryview(message)[start + 2 : end - message.endswith(b"\n")]
    if not _BLOCK_HEADER.match(message, start, end):
        return bytes(message[start:end]).strip()
    first, after = _block(message, start, end) or (end, end + 1)
    if after > end or bytes(message[after:end]).strip():
        raise ScpiError(-161)
    return memoryview(message)[first:after]


def _block(data: bytes | bytearray, start: int, end: int) -> tuple[int, int] | None:
    """Where the contents of a block begin and end, or None if its header is not whole."""
    first = start + 2 + data[start + 1] - ord("0")
    digits = bytes(data[start + 2 : min(first, end)])
    if first > end or not digits.isdigit():
        return None
    return first, first + int(digits)


def _pieces(data: bytes | bytearray, stop: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    while (at := _find(data, stop, start, end, ended=True).at) is not None:
        yield start, at
        start = at + 1
    yield start, end


def _find(data: bytes | bytearray, stop: bytes, start: int, end: int, *, ended: bool) -> Found:
    position = start
    while found := _STOPS[stop].search(data, position, end):
        at, character = found.start(), found.group()
        if character == stop:
            return Found(at, at, 0)
        if character == b"#":
            block_end = _after_hash(data, at, end, ended=ended)
            if block_end is None:
                return Found(None, at, 1)
            if block_end >= end:
                # Behind the block comes at least the byte that ends its message.
                return Found(None, at, block_end - end + 1)
            position = block_end
        else:
            close = _STRING_ENDS[character].search(data, at + 1, end)
            if close is None:
                return Found(None, at, 1)
            # A newline ends the message also where somebody forgot the second quote.
            position = close.start() if close.group() == b"\n" else close.end()
    return Found(None, end, 1)


def _after_hash(data: bytes | bytearray, at: int, end: int, *, ended: bool) -> int | None:
    """Where to look on behind a `#`, or None if that is not known yet."""
    if at + 1 == end:
        return None
    kind = data[at + 1 : at + 2]
    if kind == b"0":
        # Such a block ends with its message; on a stream that is the next newline.
        newline = -1 if ended else data.find(b"\n", at, end)
        return end if newline < 0 else newline
    if not kind.isdigit():
        return at + 1
    digits = bytes(data[at + 2 : min(at + 2 + int(kind), end)])
    if digits and not digits.isdigit():
        return at + 1
    block = _block(data, at, end)
    return None if block is None else block[1]
