"""How oscilloscopes of Tektronix answer and tell what went wrong. They are no instruments of SCPI.

Answers repeat the header of their query, unless `HEADer OFF` was sent, with words of full length, unless `VERBose OFF`
was. There is no `SYSTem:ERRor?`. Events have positive numbers, and wait until `*ESR?` is read: only then do `ALLEv?`
and `EVMsg?` tell them, and the next `*ESR?` forgets those that were not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.physics.signals import to_codes
from reservoir_hw.emulators.scpi.instrument import OPERATION_COMPLETE, MessageDevice
from reservoir_hw.emulators.scpi.messages import Argument, Boolean, Keyword, ScpiError, Token, forms, short_form
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


# ---- What an oscilloscope has acquired.


@dataclass
class Input:
    """The settings of an input. Scale and position are volts and divisions of the screen."""

    on: bool = False
    scale_v: float = 0.1
    offset_v: float = 0.0
    position: float = 0.0
    termination_ohm: float = 1e6
    level_v: float = 0.0

    @property
    def middle_v(self) -> float:
        """What stands in the middle of the screen."""
        return self.offset_v - self.position * self.scale_v

    @property
    def highest_scale_v(self) -> float:
        """Of a division."""
        return 10.0 if self.termination_ohm > 50 else 1.0

    @property
    def highest_offset_v(self) -> float:
        """The more, the coarser the scale is."""
        if self.termination_ohm > 50:
            return 1.0 if self.scale_v < 64e-3 else 10.0 if self.scale_v < 1 else 100.0
        return 1.0 if self.scale_v < 0.1 else 10.0

    @property
    def highest_level_v(self) -> float:
        """A trigger level lies on the screen."""
        return self.middle_v + 5 * self.scale_v

    @property
    def lowest_level_v(self) -> float:
        """See `highest_level_v`."""
        return self.middle_v - 5 * self.scale_v

    def settle(self) -> None:
        """Scale, offset and level become the nearest ones that there are."""
        self.scale_v = min(self.scale_v, self.highest_scale_v)
        self.offset_v = min(max(self.offset_v, -self.highest_offset_v), self.highest_offset_v)
        self.level_v = min(max(self.level_v, self.lowest_level_v), self.highest_level_v)


CONVERTER_DIVISIONS = 10.24
# Codes in a division, by the bytes of a code.
DIVISION_CODES = {1: 25, 2: 6400}
# Rates up to which the converter has so many bits, the last ones in all modes.
_HIGH_RESOLUTION_BITS = ((125e6, 16), (312.5e6, 15), (625e6, 14), (1.25e9, 13))
_BITS = ((3.125e9, 12), (math.inf, 8))


@dataclass(frozen=True)
class Record:
    """Codes of 16 bits, (points,) by channel, and how to read them."""

    rate_hz: float
    first_s: float
    codes: dict[int, NDArray[np.int16]]
    scales: dict[int, tuple[float, float]]
    """Volts of a division and of the middle, by channel."""
    clipped: dict[int, bool]

    @property
    def trigger_point(self) -> int:
        """The first point that is not before the trigger."""
        return math.ceil(-self.first_s * self.rate_hz - 1e-6)

    @property
    def trigger_point_s(self) -> float:
        """When it is taken, after the trigger."""
        return self.first_s + self.trigger_point / self.rate_hz


def converted(
    volts: Mapping[int, NDArray[np.float64]],
    inputs: Mapping[int, Input],
    rate_hz: float,
    first_s: float,
    high_resolution: bool,
) -> Record:
    """The record of volts (points,) by channel. Codes of fewer bits are filled up with zeros."""
    steps = (*_HIGH_RESOLUTION_BITS, *_BITS) if high_resolution else _BITS
    bits = next(bits for highest_hz, bits in steps if rate_hz <= highest_hz)
    codes, scales, clipped = {}, {}, {}
    for number, seen in volts.items():
        channel = inputs[number]
        taken = to_codes(seen, CONVERTER_DIVISIONS * channel.scale_v, channel.middle_v, bits)
        clipped[number] = bool(taken.min() == 0 or taken.max() == 2**bits - 1)
        codes[number] = ((taken - 2 ** (bits - 1)) << 16 - bits).astype(np.int16)
        scales[number] = channel.scale_v, channel.middle_v
    return Record(rate_hz, first_s, codes, scales, clipped)


# ---- Sample rate, length and place of a record.


HIGHEST_RATE_HZ, LOWEST_RATE_HZ = 6.25e9, 6.25
SHORTEST_RECORD, LONGEST_RECORD, AUTOMATIC_POINTS = 1000, 62_500_000, 1_000_000
TIME_DIVISIONS = 10

_RATES_HZ = [HIGHEST_RATE_HZ / (step * 10**power) for power in range(9) for step in (1, 2, 5)] + [LOWEST_RATE_HZ]


@dataclass
class TimeBase:
    """Settings as after `*RST`.

    In automatic mode the rate follows from the duration. In manual mode either the number of points or the duration
    stays when the rate changes.
    """

    manual: bool = False
    follower: str = "HORIZontalscale"
    rate_hz: float = HIGHEST_RATE_HZ
    points: int = 25_000
    position: float = 50.0
    delayed: bool = True
    delay_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Of the record. When it is set, the number of points follows, and in automatic mode the rate."""
        return self.points / self.rate_hz

    @duration_s.setter
    def duration_s(self, duration_s: float) -> None:
        if not self.manual:
            highest_hz = AUTOMATIC_POINTS / duration_s * (1 + 1e-9)
            self.rate_hz = next((rate for rate in _RATES_HZ if rate <= highest_hz), LOWEST_RATE_HZ)
        self._set_points(duration_s)

    @property
    def first_s(self) -> float:
        """When the first point is taken, after the trigger."""
        if self.delayed:
            return self.delay_s - self.duration_s / 2
        return -self.position / 100 * self.duration_s

    @property
    def shown_position(self) -> float:
        """Of the trigger in the record, in percent: with a delay it is the middle, whatever is set."""
        return 50.0 if self.delayed else self.position

    @shown_position.setter
    def shown_position(self, percent: float) -> None:
        self.position = percent

    def set_rate(self, rate_hz: float) -> None:
        """The nearest one, by the ratio."""
        duration_s = self.duration_s
        self.rate_hz = min(_RATES_HZ, key=lambda rate: abs(math.log(rate / rate_hz)))
        if self.follower == "RECORDLength":
            self._set_points(duration_s)

    def _set_points(self, duration_s: float) -> None:
        self.points = min(max(round(duration_s * self.rate_hz), SHORTEST_RECORD), LONGEST_RECORD)
