"""How oscilloscopes of Tektronix answer and tell what went wrong. They are no instruments of SCPI.

Answers repeat the header of their query, unless `HEADer OFF` was sent, with words of full length, unless `VERBose OFF`
was. There is no `SYSTem:ERRor?`. Events have positive numbers, and wait until `*ESR?` is read: only then do `ALLEv?`
and `EVMsg?` tell them, and the next `*ESR?` forgets those that were not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from reservoir_hw.emulators.scpi.arguments import Argument, Boolean, Keyword, forms, short_form
from reservoir_hw.emulators.scpi.instrument import OPERATION_COMPLETE, MessageDevice
from reservoir_hw.emulators.scpi.messages import ScpiError, Token
from reservoir_hw.emulators.scpi.tree import Call, command, query, setting

POWER_ON_EVENT, OPERATION_COMPLETE_EVENT = ScpiError(401, "Power on"), ScpiError(402, "Operation complete")
NOTHING_READ = '1,"No events to report - new events pending *ESR?"'
NOTHING = '0,"No events to report - queue empty"'

_SUFFIX = re.compile(r"\{\w+:[\d-]+\}")


class Word(str):
    """An answer: a keyword with the capitals of its short form, which is sent in short or in full."""


class Choice(Keyword):
    """As `Keyword`, but the method gets the word as it was declared."""

    def __init__(self, *words: str) -> None:
        super().__init__(*words)
        self._words = {short_form(word): word for word in words}

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> str:
        """The word."""
        return self._words[super().read(token, device, suffixes)]

    def told(self, value: str) -> Word:
        """The word, to be sent in short or in full."""
        return Word(value)


class Either(Argument):
    """As `Choice` of two words. The method gets whether it is the second."""

    def __init__(self, first: str, second: str) -> None:
        self._words, self._choice = (first, second), Choice(first, second)

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> bool:
        """True for the second."""
        return self._choice.read(token, device, suffixes) == self._words[1]

    def told(self, value: bool) -> Word:
        """See `Choice.told`."""
        return Word(self._words[value])


class RunOrStop(Boolean):
    """As `Boolean`, or `RUN` or `STOP`."""

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> bool:
        """True for run."""
        word = bytes(token).upper()
        return word == b"RUN" if word in (b"RUN", b"STOP") else super().read(token, device, suffixes)


class ExecutionError(ScpiError):
    """An error of the instrument's own that counts as an execution error."""

    @property
    def event_bit(self) -> int:
        """See `ScpiError.event_bit`."""
        return 0x10


class Oscilloscope(MessageDevice):
    """The language of the oscilloscopes, without anything to measure."""

    def __init__(self) -> None:
        super().__init__()
        self._headers = self._verbose = True
        self._read_events: list[ScpiError] = []
        self._errors.add(POWER_ON_EVENT)

    # ---- answers --------------------------------------------------------------------------------

    def response(self, call: Call, value: Any) -> bytes:
        """With its header, if it is not that of a common query."""
        answer, header = self.answer(value), call.declared.header
        if header.startswith("*") or not self._headers:
            return answer
        numbers = iter(call.suffixes)
        header = _SUFFIX.sub(lambda _: str(next(numbers)), header)
        return f":{self._written(header)} ".encode() + answer

    def answer(self, value: Any) -> bytes:
        """Floats as `1.5000E+3`, words in the length that is set."""
        if isinstance(value, Word):
            return self._written(value).encode()
        if isinstance(value, float):
            return _engineering(value).encode()
        return super().answer(value)

    def _written(self, words: str) -> str:
        return words.upper() if self._verbose else ":".join(forms(word)[0] for word in words.split(":"))

    headers = setting("HEADer", Boolean(), "_headers")
    verbose = setting("VERBose", Boolean(), "_verbose")

    # ---- events ---------------------------------------------------------------------------------

    @command("*CLS")
    def common_clear_status(self) -> None:
        """`*CLS`."""
        super().common_clear_status()
        self._read_events.clear()

    @query("*ESR")
    def common_events(self) -> int:
        """`*ESR?`: what has happened until now can be read from now on."""
        events = super().common_events()
        self._read_events.clear()
        while len(self._errors):
            self._read_events.append(self._errors.take())
        return events

    @query("ALLEv")
    def all_events(self) -> str:
        """`ALLEv?`."""
        told = [_told(event) for event in self._read_events]
        self._read_events.clear()
        return ",".join(told) or self._nothing()

    @query("EVMsg")
    def event_message(self) -> str:
        """`EVMsg?`: the oldest event."""
        return _told(self._read_events.pop(0)) if self._read_events else self._nothing()

    event = query("EVENT")(lambda self: int(self.event_message().split(",")[0]))
    """Its number."""

    event_count = query("EVQty")(lambda self: len(self._read_events))

    def _nothing(self) -> str:
        return NOTHING_READ if len(self._errors) else NOTHING

    def _standard_events(self) -> int:
        before = self._events
        events = super()._standard_events()
        if events & ~before & OPERATION_COMPLETE:
            self._errors.add(OPERATION_COMPLETE_EVENT)
        return events


def _told(event: ScpiError) -> str:
    return f'{abs(event.code)},"{event.text}"'


def _engineering(value: float) -> str:
    """`62.5000E+6`: four decimals, and an exponent that is a multiple of three."""
    if not value:
        return "0.0E+0"
    exponent = math.floor(math.log10(abs(value)) / 3) * 3
    mantissa = f"{value / 10.0**exponent:.4f}"
    if abs(float(mantissa)) >= 1000:
        exponent += 3
        mantissa = f"{value / 10.0**exponent:.4f}"
    return f"{mantissa}E{exponent:+d}"
