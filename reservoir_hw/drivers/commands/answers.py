"""What is read of an answer: the numbers that become states, and those with names.

An answer is a line of numbers, a line that a pattern knows, or a block of binary numbers (IEEE 488.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import NO_NUMBER
from reservoir_hw.core.errors import DeviceFault, ProtocolError

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
            self.parts.append(text[done : found.start()])
            done = found.end()
            if found["literal"] is not None:
                self.parts.append(f"{{{found['literal']}}}")
            else:
                self.parts.append(self._place(found["place"], found["end"]))
        self.parts.append(text[done:])

    @property
    def places(self) -> list[Place]:
        """All of them, from left to right."""
        return [part for part in self.parts if isinstance(part, Place)]

    def filled(self, values: Values, passed: Callable[[Place, str], str] | None = None) -> str:
        """The line with these values. `passed` gets what is written at each place, and returns what stands there."""
        written = []
        for part in self.parts:
            if isinstance(part, Place):
                value = values[part.name]
                if part.index is not None:
                    value = value[part.index if isinstance(part.index, int) else int(values[part.index])]
                text = part.text(value)
                part = text if passed is None else passed(part, text)
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
        parts = _PARTS.fullmatch(inside)
        if parts is None:
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

    def read(self, answer: str, values: Values, asked: str) -> Reading:
        """What an answer says. Raises `ProtocolError` or `DeviceFault`, which name what was `asked`."""
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
        """As `Floats.read`."""
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


Answer = Floats | Pattern
"""A way to read an answer."""


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
