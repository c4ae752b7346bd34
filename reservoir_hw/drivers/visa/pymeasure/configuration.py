"""What a file says about any instrument that PyMeasure has a class for."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES
from reservoir_hw.core.functions import FunctionName
from reservoir_hw.drivers.visa.pymeasure.steps import names_in
from reservoir_hw.drivers.visa.roles import InstrumentConfig

END = "\r\n"
"""Of a message. Some instruments wait for the CR, for all others it is white space."""

NAMES = {"low_v", "high_v", "span_v", "middle_v", "samples", "sample_rate_hz", "duration_s"}
"""Of a channel, and of what is played or recorded."""


def range_names(range_v: tuple[float, float]) -> dict[str, float]:
    """What the names of a range stand for."""
    low, high = range_v
    return {"low_v": low, "high_v": high, "span_v": high - low, "middle_v": (low + high) / 2}


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
