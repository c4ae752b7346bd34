"""`kind: pymeasure`: which class of PyMeasure, and what is set and called to play and to take down."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES
from reservoir_hw.core.functions import FUNCTION
from reservoir_hw.drivers.visa.addresses import is_raw_socket
from reservoir_hw.drivers.visa.burst_generator import BurstGeneratorConfig
from reservoir_hw.drivers.visa.pymeasure.steps import Condition, Reading, Step, names_in
from reservoir_hw.drivers.visa.roles import DigitizerConfig, InstrumentConfig, Output

if TYPE_CHECKING:
    from reservoir_hw.drivers.visa.pymeasure.digitizer import PymeasureDigitizer
    from reservoir_hw.drivers.visa.pymeasure.generator import PymeasureGenerator

_RANGE = {"low_v", "high_v", "span_v", "middle_v"}
_TIMING = {"samples", "sample_rate_hz", "duration_s"}


class PymeasureConfig(InstrumentConfig):
    """An instrument that PyMeasure has a class for: `outputs` below `generator:`, `inputs` below `digitizer:`."""

    kind: Literal["pymeasure"]
    instrument: str = Field(pattern=FUNCTION, description="PyMeasure's class, as module:class")
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

    @property
    def made_with(self) -> dict[str, Any]:
        """Beside the address. On a raw socket nothing but a newline says where a message ends."""
        ends = dict.fromkeys(("read_termination", "write_termination"), "\n") if is_raw_socket(self.address) else {}
        return {"visa_library": self.library, **ends, **self.connection}


class PymeasureGeneratorConfig(PymeasureConfig, BurstGeneratorConfig):
    """A generator of one output that plays a waveform once for each trigger."""

    outputs: dict[int, Output] = Field(min_length=1, max_length=1, description="one, by its number")
    shortest_waveform: PositiveInt = Field(default=2, description="in samples")
    codes: tuple[float, float] | None = Field(
        default=None, description="what {waveform} has for the ends of range_v, such as [-32767, 32767]; null: volts"
    )
    whole_codes: bool = Field(default=True, description="codes are whole numbers")
    upload: list[Step] = Field(min_length=1, description="until the output plays {waveform} once for each trigger")
    sample_rate_hz: str | None = Field(default=None, description="the attribute that is the sample rate")
    frequency_hz: str | None = Field(
        default=None, description="where there is none: the attribute that is the frequency of the whole waveform"
    )
    arm: list[Step] = Field(min_length=1, description="switch the output on")
    trigger: list[Step] = Field(min_length=1, description="play")
    safe: list[str] = Field(min_length=1, description="SCPI commands that switch the output off: the guard sends them")

    # The class of PyMeasure knows its instrument.
    highest_v = math.inf
    smallest_vpp = 0.0

    steps = ("upload", "arm", "trigger")
    names = _RANGE | _TIMING | {"output", "waveform", "load_ohm", "safe_v"}

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.sample_rate_hz is None) == (self.frequency_hz is None):
            raise ValueError("either sample_rate_hz or frequency_hz names the attribute that says how fast it plays")
        return self

    def build(self) -> PymeasureGenerator:
        """Not yet open. Raises `MissingExtra` without PyMeasure."""
        from reservoir_hw.drivers.visa.pymeasure.generator import PymeasureGenerator

        return PymeasureGenerator(self)


class Fetch(Reading):
    """A record of one input, and where in it its volts and its times are: keys and indices, one after another."""

    volts: list[int | str] = Field(default_factory=list, description="an array; by default the result itself")
    times_s: list[int | str] | None = Field(default=None, description="an array, 0 at the trigger")
    interval_s: list[int | str] | None = Field(default=None, description="without times_s: between two samples")
    start_s: list[int | str] | None = Field(default=None, description="without times_s: of the first sample")

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        both = self.interval_s is not None and self.start_s is not None
        if (self.times_s is not None) == both:
            raise ValueError("either times_s, or interval_s and start_s, say when the samples were taken")
        return self


class PymeasureDigitizerConfig(PymeasureConfig, DigitizerConfig):
    """A digitizer that takes single records. A step that has {input} is carried out for each input."""

    memory_samples: PositiveInt = Field(description="per record and input, at any rate that is asked for")
    configure: list[Step] = Field(min_length=1, description="inputs, time base and trigger")
    arm: list[Step] = Field(min_length=1, description="take the next record")
    armed: Condition | None = Field(
        default=None, description="when it waits for the trigger; null: it does when `arm` is done"
    )
    done: Condition = Field(description="when the record is complete")
    fetch: Fetch = Field(description="the record of {input}")

    steps = ("configure", "arm", "armed", "done", "fetch")
    names = (
        _RANGE
        | _TIMING
        | {"input", "coupling", "impedance_ohm", "before_s", "centre_s", "source", "level_v", "slope"}
    )  # fmt: skip

    def build(self) -> PymeasureDigitizer:
        """Not yet open. Raises `MissingExtra` without PyMeasure."""
        from reservoir_hw.drivers.visa.pymeasure.digitizer import PymeasureDigitizer

        return PymeasureDigitizer(self)
