"""Lines of text with places for numbers: `SOUR:VOLT {u[0]:.4f}`.

A place is a name, perhaps an index, perhaps the format of a number. There is nothing else: `str.format` would reach
attributes. Braces that hold anything but a word are literal, so a line may be JSON: `{"set": {u[0]:.3f}}`. Where a word
in braces is meant literally, they are doubled: `{{word}}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
                self.parts.append(self._place(found["place"], found["end"], widths))
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
                part = self._place(f"{part.name}[{index}]{part.format and ':'}{part.format}", "}", self._widths)
            bound.parts.append(
                part.text(values[part.name]) if isinstance(part, Place) and part.name in values else part
            )
        return bound

    def _place(self, inside: str, end: str, widths: Mapping[str, int | None]) -> Place:
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
