"""What is read of an answer: the numbers that become states, and those with names.

An answer is a line of numbers, a line that a pattern knows, or a block of binary numbers (IEEE 488.2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from reservoir_hw.core.arrays import NO_NUMBER
from reservoir_hw.core.errors import DeviceFault, ProtocolError
from reservoir_hw.drivers.commands.templates import Template, Values

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


class Answer(Protocol):
    """A way to read an answer."""

    def read(self, answer: str, values: Values, asked: str) -> Reading:
        """Raises `ProtocolError` or `DeviceFault`, which name what was `asked`."""
        ...


@dataclass(frozen=True)
class Floats:
    """Numbers with commas, semicolons or white space between them; `names` says which is which, over and over.

    Without names all of them are states.
    """

    names: tuple[str, ...] = ()

    def read(self, answer: str, values: Values, asked: str) -> Reading:
        """As `Answer.read`."""
        del values
        texts = [text for text in _BETWEEN.split(answer) if text]
        numbers = [_number(text, answer, asked) if _is_read(self.names, at) else 0.0 for at, text in enumerate(texts)]
        return named(numbers, self.names, asked, shown(answer))


class Pattern:
    """A regular expression with places for numbers as in a line, for the whole answer.

    The group `state` holds numbers that become states; other groups hold one number each.
    """

    def __init__(self, template: Template) -> None:
        self._template = template

    def read(self, answer: str, values: Values, asked: str) -> Reading:
        """As `Answer.read`."""
        expected = self._template.filled(values, lambda place, text: re.escape(text))
        found = re.fullmatch(expected, answer.strip())
        if found is None:
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


def named(numbers: Sequence[float], names: Sequence[str], asked: str, answer: str) -> Reading:
    """The numbers of an answer by their names. Raises `ProtocolError` for a count that does not fit."""
    if not names:
        names = (STATE,)
    if not len(numbers) or len(numbers) % len(names):
        raise ProtocolError(
            f"{asked} was answered by {answer}, {len(numbers)} numbers where {len(names)} are read ({', '.join(names)})"
        )
    reading = Reading()
    for at, number in enumerate(numbers):
        name = names[at % len(names)]
        if name == STATE:
            reading.states.append(number)
        elif name != NOTHING:
            reading.named.setdefault(name, []).append(number)
    refuse_no_number(reading.states, asked, answer)
    return reading


def refuse_no_number(states: Sequence[float], asked: str, answer: str) -> None:
    """Raise `DeviceFault` for a state by which an instrument says that there is none."""
    bad = [state for state in states if not abs(state) < NO_NUMBER]
    if bad:
        raise DeviceFault(
            f"{asked} was answered by {answer}: {bad[0]:g} is no number but a word of instruments, for over-range "
            "(9.9e37) or for what was not measured (9.91e37): set a wider range, or have it measured"
        )


def numbers_of(block: np.ndarray) -> list[float]:
    """A block of binary numbers as floats."""
    return block.astype(np.float64).tolist()


def shown(answer: str) -> str:
    """An answer in a message."""
    return repr(answer if len(answer) <= _SHOWN else f"{answer[:_SHOWN]}...")


def _is_read(names: Sequence[str], at: int) -> bool:
    return not names or names[at % len(names)] != NOTHING


def _number(text: str, answer: str, asked: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise ProtocolError(f"{asked} was answered by {shown(answer)}: {text!r} is no number")
    return float(text)
