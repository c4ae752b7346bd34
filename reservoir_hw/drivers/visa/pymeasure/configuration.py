"""What a file says about any instrument that PyMeasure has a class for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from string import Formatter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.functions import FunctionName
from reservoir_hw.drivers.visa.roles import Input, InstrumentConfig, Output

Arguments = list[Any] | dict[str, Any]

_NAME_ALONE = re.compile(r"\{(\w+)\}")


class Step(Config):
    """Attributes that are set, in their order, or a method that is called. Texts may have {names} of what is known."""

    set: dict[str, Any] = Field(default_factory=dict, description="values by attribute, such as ch_1.amplitude")
    call: str | None = Field(default=None, description="a method, such as ch_1.data_arb")
    arguments: Arguments = Field(default_factory=list, description="of the method, in their order or by name")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.set) == (self.call is not None):
            raise ValueError("a step has `set:` or `call:`")
        return self

    @property
    def paths(self) -> list[str]:
        """The attributes and methods that it uses."""
        return [*self.set] if self.call is None else [self.call]


class Reading(Config):
    """An attribute that is read, or a method that is called for its result."""

    attr: str | None = Field(default=None, description="an attribute")
    call: str | None = Field(default=None, description="a method")
    arguments: Arguments = Field(default_factory=list, description="of the method, in their order or by name")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.attr is None) == (self.call is None):
            raise ValueError("either `attr:` or `call:` says what is asked")
        return self

    @property
    def path(self) -> str:
        """The attribute or method."""
        return self.attr or self.call or ""


class Condition(Reading):
    """True when what is read is `value`."""

    value: bool | int | float | str
    mask: int | None = Field(default=None, description="of a whole number, only these bits count")

    def met_by(self, found: Any) -> bool:
        """Whether this is the value."""
        if self.mask is not None:
            return int(float(found)) & self.mask == self.value
        try:
            return float(found) == float(self.value)
        except ValueError:
            return str(found).strip() == str(self.value)


def names_in(value: Any) -> set[str]:
    """All {names} in the texts of a value or step. Raises `ValueError` for a brace without its other one."""
    if isinstance(value, Config):
        return names_in([getattr(value, name) for name in type(value).model_fields])
    if isinstance(value, Mapping):
        return names_in([*value.keys(), *value.values()])
    if isinstance(value, list | tuple):
        return set().union(*map(names_in, value))
    if not isinstance(value, str):
        return set()
    return {name for _, name, _, _ in Formatter().parse(value) if name is not None}


def filled(value: Any, names: Mapping[str, Any]) -> Any:
    """A value with its {names} replaced. A text that is one name alone becomes what stands behind it, of any type."""
    if isinstance(value, Mapping):
        return {filled(key, names): filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    if not isinstance(value, str):
        return value
    alone = _NAME_ALONE.fullmatch(value)
    return names[alone[1]] if alone else value.format_map(names)


def for_each(steps: Iterable[Step], name: str, values: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Step, Any]]:
    """Steps with what is known to them: one that has {name} comes once for each of the values, others once."""
    every = [*values]
    for step in steps:
        for known in every if name in names_in(step) else every[:1]:
            yield step, known


END = "\r\n"
"""Of a message. Some instruments wait for the CR, for all others it is white space."""

NAMES = {"low_v", "high_v", "span_v", "middle_v", "samples", "sample_rate_hz", "duration_s"}
"""Of a channel, and of what is played or recorded."""


def channel_names(channel: Output | Input, samples: int, sample_rate_hz: float) -> dict[str, Any]:
    """What they stand for, and the keys of the channel."""
    low, high = channel.range_v
    return {
        **channel.model_dump(),
        "low_v": low,
        "high_v": high,
        "span_v": high - low,
        "middle_v": (low + high) / 2,
        "samples": samples,
        "sample_rate_hz": sample_rate_hz,
        "duration_s": samples / sample_rate_hz,
    }


class PymeasureConfig(InstrumentConfig):
    """An instrument that PyMeasure has a class for: `outputs` below `generator:`, `inputs` below `digitizer:`."""

    kind: Literal["pymeasure"]
    instrument: FunctionName = Field(description="PyMeasure's class, as module:class")
    identity: str = Field(
        min_length=1, description="regular expression for the answer to *IDN?: another instrument is refused"
    )
    connection: Annotated[dict[str, Any], NO_INFLUENCE_ON_STATES] = Field(
        default_factory=dict, description="what the class is made with, such as {baud_rate: 9600}"
    )
    tolerance: NonNegativeFloat = Field(
        default=0.01, description="by how much of its value an attribute may differ when it is read back"
    )

    steps: ClassVar[tuple[str, ...]]
    """The fields in which {names} may stand."""
    names: ClassVar[set[str]]
    """What these names may be."""

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for field in self.steps:
            unknown = sorted(names_in([getattr(self, field)]) - self.names)
            if unknown:
                known = ", ".join(f"{{{name}}}" for name in sorted(self.names))
                raise ValueError(f"{field} has {{{unknown[0]}}}; known here are {known}")
        return self
