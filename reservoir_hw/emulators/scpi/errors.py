"""Errors as instruments report them: numbers with fixed texts, kept in a short queue."""

from __future__ import annotations

from collections import deque

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

    def __init__(self, length: int = QUEUE_LENGTH) -> None:
        self._length = length
        self._errors: deque[ScpiError] = deque()

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, error: ScpiError) -> None:
        """Keep an error."""
        if len(self._errors) < self._length:
            self._errors.append(error)
        else:
            self._errors[-1] = ScpiError(-350)

    def take(self) -> ScpiError:
        """Remove the oldest one and return it; `0,"No error"` if there is none."""
        return self._errors.popleft() if self._errors else ScpiError(0, "No error")

    def clear(self) -> None:
        """Forget them all."""
        self._errors.clear()
