"""Knobs and monitors that are lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from reservoir_hw.backends.commands.lines import AnyLine, Line, LineConfig, unrolled
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES
from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.knobs import KnobConfig, MonitorConfig
from reservoir_hw.drivers.commands.templates import Place

_VALUE = {"value": None, "n": None}


def _as_question(given: Any) -> Any:
    return {"ask": given} if isinstance(given, str) else given


_Question = Annotated[LineConfig, BeforeValidator(_as_question)]


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
