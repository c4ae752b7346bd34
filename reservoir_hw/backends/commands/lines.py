"""The lines of a step as a file has them, and as they are sent: without loops, with their answers."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, create_model, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.knobs import KnobConfig, MonitorConfig
from reservoir_hw.drivers.commands import NOTHING, STATE, Answer, Floats, Pattern, Place, Reading, Template

_FLOATS = "floats"
_GROUP = re.compile(r"\(\?P<(\w+)>")
_CONDITION = re.compile(r"\s*(?P<name>\w+)\s*(?P<sign>&|<=|>=|==|!=|<|>)\s*(?P<number>[+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "&": lambda value, bits: bool(int(value) & int(bits)),
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
# A key of this name cannot be declared in a class.
_FOR = "for"


class BinaryAnswer(Config):
    """A block of binary numbers (IEEE 488.2), as `query_binary_values` of pyvisa names them."""

    binary: str = Field(
        pattern="^[bBhHiIqQfd]$", description="their type as of Python's struct: f, d, h (int16), i (int32), ..."
    )
    big_endian: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one number."""
        return np.dtype((">" if self.big_endian else "<") + self.binary)


def _as_line(key: str, given: Any) -> Any:
    """A text alone as the line of this key."""
    return {key: given} if isinstance(given, str) else given


def _as_lines(given: Any) -> Any:
    return [given] if isinstance(given, str | dict) else given


_LOOPS: Any = {
    _FOR: (
        dict[str, list[int | float | str]],
        Field(default={}, description="name -> values: the line is sent for each, and may name it: {k}"),
    )
}
_Loops = create_model("_Loops", __base__=Config, **_LOOPS)


class LineConfig(_Loops):
    """A line of text to an instrument. A text alone is `write:`."""

    to: str | None = Field(default=None, description="one of `instruments`; where there is one, it is meant")
    write: str | None = Field(default=None, description="the line, where nothing answers it")
    ask: str | None = Field(default=None, description="the line, where something answers it")
    answer: str | BinaryAnswer | None = Field(
        default=None,
        description="floats: a line of numbers; {binary: f}: a block of them; any other text: a regular expression for "
        "the whole line, whose group `state` holds numbers. In a step floats by default, elsewhere not read",
    )
    reads: list[str] = Field(
        default=[],
        description="what the numbers of an answer are, in their order, over and over: state (becomes a state), _ "
        "(not read), or a name for saturated_if; by default all are states",
    )
    saturated_if: str | None = Field(
        default=None, description="counts the answer as saturated: status & 8, state > 0.9"
    )
    at_s: NonNegativeFloat | None = Field(default=None, description="not before so long after the step began")
    then: Annotated[list[LineConfig], BeforeValidator(_as_lines)] = Field(
        default=[], description="lines after this one, in each round of its `for`"
    )

    @property
    def text(self) -> str:
        """The line, whether it is answered or not."""
        return self.write or self.ask or ""

    @property
    def rounds(self) -> Iterator[dict[str, Any]]:
        """The values of its loops in each round; one round without any where there is no loop."""
        loops: Mapping[str, list[Any]] = getattr(self, _FOR)
        for values in itertools.product(*loops.values()):
            yield dict(zip(loops, values, strict=True))

    @property
    def loops(self) -> dict[str, None]:
        """The names of its loops, as `Template` takes them."""
        return dict.fromkeys(getattr(self, _FOR))

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if (self.write is None) == (self.ask is None):
            raise ValueError("a line is either `write:` (nothing answers it) or `ask:` (something does)")
        if self.then and not self.loops:
            raise ValueError("`then:` belongs to the rounds of a `for:`; without one, write another line")
        if self.write is not None and (self.answer is not None or self.reads or self.saturated_if):
            raise ValueError("nothing is read of a `write:`: write `ask:` where something answers")
        for name, values in getattr(self, _FOR).items():
            if not values or not name.isidentifier() or name in ("u", "n", "steps", "value"):
                raise ValueError(f"for: {name} must be a name of its own, with a list of values: {{k: [101, 102]}}")
        if self.saturated_if is not None:
            named = self.condition.name
            groups = _GROUP.findall(self.answer) if isinstance(self.answer, str) else []
            known = [STATE, *self.reads, *groups]
            if named not in known or named == NOTHING:
                raise ValueError(
                    f"saturated_if names {named}, and the answer has {', '.join(known)}: say by `reads:` which number "
                    f"it is, such as reads: [state, {named}]"
                )
        if self.reads and isinstance(self.answer, str) and self.answer != _FLOATS:
            raise ValueError(
                "`reads:` is for numbers in their order; in a pattern a group has a name: (?P<status>\\d+)"
            )
        return self

    @property
    def condition(self) -> Condition:
        """What `saturated_if` says. Raises `ValueError`."""
        return Condition.of(self.saturated_if or "")


AnyLine = Annotated[LineConfig, BeforeValidator(partial(_as_line, "write"))]
Lines = Annotated[list[AnyLine], BeforeValidator(_as_lines)]
"""A line or a list of lines, as a section of a file."""


@dataclass(frozen=True)
class Condition:
    """A comparison of a number that an answer names."""

    name: str
    holds: Callable[[float], bool]

    @classmethod
    def of(cls, text: str) -> Self:
        """From its text. Raises `ValueError`."""
        if (found := _CONDITION.fullmatch(text)) is None:
            raise ValueError(f"saturated_if {text!r} is no comparison such as `status & 8` or `state > 0.9`")
        compare, number = _SIGNS[found["sign"]], float(found["number"])
        return cls(found["name"], lambda value: compare(value, number))

    def count(self, reading: Reading) -> int:
        """How often it holds in an answer."""
        numbers = reading.states if self.name == STATE else reading.named.get(self.name, [])
        return sum(map(self.holds, numbers))


@dataclass(frozen=True)
class Line:
    """A line as it is sent: to one instrument, without loops."""

    to: str
    template: Template
    asks: bool
    answer: Answer | None = None
    block: np.dtype[Any] | None = None
    names: tuple[str, ...] = ()
    saturated: Condition | None = None
    at_s: float | None = None
    is_left: bool = False
    """Whether nothing answers it, and the next line goes to another instrument, which must find it done."""


def unrolled(
    lines: Sequence[LineConfig],
    instruments: Sequence[str],
    widths: Mapping[str, int | None],
    *,
    step: bool = False,
) -> list[Line]:
    """All lines, round after round. `widths` are the names in them, as `Template` takes them.

    Raises `ValueError` for a template or a pattern that is none, and for an instrument that is not there.
    """
    found = _rounds(lines, instruments, widths, step, {})
    return [
        line if line.asks or (then is not None and then.to == line.to) else replace(line, is_left=True)
        for line, then in zip(found, [*found[1:], None], strict=False)
    ]


def _rounds(
    lines: Sequence[LineConfig],
    instruments: Sequence[str],
    widths: Mapping[str, int | None],
    step: bool,
    bound: Mapping[str, Any],
) -> list[Line]:
    found: list[Line] = []
    known = {**widths, **dict.fromkeys(bound)}
    for line in lines:
        to = _addressee(line, instruments)
        names = {**known, **line.loops}
        template = Template(line.text, names)
        pattern = _pattern(line, names)
        for values in line.rounds:
            values = {**bound, **values}
            sent = template.bound(values)
            left = next((place for place in sent.places if isinstance(place.index, str)), None)
            if left is not None:
                raise ValueError(f"{sent.text!r}: {left} needs a number, or the name of a `for:` in its place")
            found.append(
                Line(
                    to=to,
                    template=sent,
                    asks=line.ask is not None,
                    answer=_answer(line, None if pattern is None else pattern.bound(values), step=step),
                    block=line.answer.dtype if isinstance(line.answer, BinaryAnswer) else None,
                    names=tuple(line.reads),
                    saturated=None if line.saturated_if is None else line.condition,
                    at_s=line.at_s,
                )
            )
            found += _rounds(line.then, instruments, widths, step, values)
    return found


def _addressee(line: LineConfig, instruments: Sequence[str]) -> str:
    if line.to is None and len(instruments) == 1:
        return instruments[0]
    text = line.text
    if line.to is None:
        raise ValueError(f"{text!r}: say to which instrument, `to:` one of {', '.join(instruments)}")
    if line.to not in instruments:
        there = ", ".join(filter(None, instruments)) or "one, without a name: leave `to:` out"
        raise ValueError(f"{text!r}: there is no instrument {line.to!r}; there is {there}")
    return line.to


def _pattern(line: LineConfig, names: Mapping[str, int | None]) -> Template | None:
    if not isinstance(line.answer, str) or line.answer == _FLOATS:
        return None
    template = Template(line.answer, names)
    try:
        re.compile("".join("0" if not isinstance(part, str) else part for part in template.parts))
    except re.error as error:
        raise ValueError(f"answer {line.answer!r} is no regular expression: {error}") from None
    return template


def _answer(line: LineConfig, pattern: Template | None, *, step: bool) -> Answer | None:
    if line.ask is None:
        return None
    if pattern is not None:
        return Pattern(pattern)
    reads = line.answer is not None or line.reads or line.saturated_if or step
    return Floats(tuple(line.reads)) if reads else None


# ---- Knobs and monitors that are lines of text.


_VALUE = {"value": None, "n": None}


_Question = Annotated[LineConfig, BeforeValidator(partial(_as_line, "ask"))]


class CommandKnob(KnobConfig):
    """A setting that a line of text turns."""

    to: Annotated[str | None, NO_INFLUENCE_ON_STATES] = Field(default=None, description="one of `instruments`")
    set: AnyLine = Field(description='the line that sets it, such as "VOLT {value:.3f}"')
    read: Annotated[_Question | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description='the line that asks where it is, such as "MEAS:VOLT?"'
    )

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        (line,) = unrolled([self.set.model_copy(update={"to": None})], [""], _VALUE)
        if all(place.name != "value" for place in line.template.places):
            raise ValueError(f"set {line.template.text!r} must say where the number goes: {{value}}")
        for end in self.limits:
            line.template.filled({"value": end, "n": 0}, self.passed)
        self._check_ramp(line)
        return self

    def _check_ramp(self, line: Line) -> None:
        """Refuse a ramp that the digits of the line would make steeper."""
        if self.ramp_step is None or self.resolution is not None:
            return
        written: list[float] = []

        def note(place: Place, text: str) -> str:
            if place.name == "value":
                written.append(float(text))
            return text

        low, high = self.limits
        # A third of a step: the ramp may begin anywhere.
        for value in np.arange(low, high, self.ramp_step / 3):
            line.template.filled({"value": float(value), "n": 0}, note)
        steps = np.abs(np.subtract(written[3:], written[:-3])) if len(written) > 3 else np.zeros(1)
        if steps.max() > self.ramp_step * (1 + 1e-9):
            raise ValueError(
                f"ramp_step {self.ramp_step:g} would become {steps.max():g} as it is written: give "
                f"{line.template.text!r} more digits, or say its `resolution`"
            )

    def passed(self, place: Place, text: str) -> str:
        """What is written at a place. Raises `InputRangeError` for a value beyond the limits as it is written."""
        low, high = self.limits
        if place.name == "value" and not low <= float(text) <= high:
            raise InputRangeError(f"{text} would be written, beyond limits [{low:g}, {high:g}]: give it more digits")
        return text

    def set_line(self, instruments: Sequence[str]) -> Line:
        """What sets it."""
        return _one(self.set, self.to, instruments, step=False)

    def read_line(self, instruments: Sequence[str]) -> Line | None:
        """What asks where it is."""
        return None if self.read is None else _one(self.read, self.to, instruments, step=True)


class CommandMonitor(MonitorConfig):
    """What is asked while the device is driven."""

    to: str | None = Field(default=None, description="one of `instruments`")
    ask: str = Field(description='the line, such as "TEMP?"')
    answer: str | None = Field(default=None, description="as of a line of a step; its group or number is `state`")

    def line(self, instruments: Sequence[str]) -> Line:
        """What is asked."""
        return _one(LineConfig(ask=self.ask, answer=self.answer), self.to, instruments, step=True)


def _one(line: LineConfig, to: str | None, instruments: Sequence[str], *, step: bool) -> Line:
    (found,) = unrolled([line.model_copy(update={"to": line.to or to})], instruments, _VALUE, step=step)
    return found
