"""What was measured on a bench, and of which bench it is true."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from pydantic import AwareDatetime, Field, PositiveFloat, ValidationError

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import CalibrationError, ConfigurationError
from reservoir_hw.core.files import replacing
from reservoir_hw.core.signal import Template

FILLED = 0.8
"""Of the range of the digitizer, what the answer must fill."""


class Estimate(Config):
    """A number, and the interval in which it lies with 95 %."""

    value: float
    low: float
    high: float


class Chain(Config):
    """What a calibration is true of."""

    device_name: str
    generator: str = Field(description="its answer to *IDN?")
    digitizer: str = Field(description="its answer to *IDN?")
    output: int
    answer: int
    theta_s: float
    points_per_node: int
    rest_v: float = Field(description="of the output between bursts")
    marker_v: float = Field(description="highest level of the markers")


class MarkerAnswer(NamedTuple):
    """How a device answers to a marker, from `delay_s` after it on."""

    delay_s: float
    template: Template


class Calibration(Config):
    """A file of `reservoir-hw device calibrate`. Volts at the output and at the answer's input."""

    made: AwareDatetime
    chain: Chain
    gain: Estimate = Field(description="volts of the answer per volt of a small signal at rest, settled")
    offset_v: Estimate = Field(description="the answer at rest")
    delay_s: Estimate = Field(description="from the output to the answer")
    tau_s: Estimate = Field(description="response time")
    noise_v: Estimate = Field(description="rms of the answer at rest")
    linear_range_v: tuple[float, float] = Field(description="of the output: the answer differs from a line by < 5 %")
    answer_range_v: tuple[float, float] = Field(description="of the answer over the inputs' whole range")
    vertical_range_v: tuple[float, float] = Field(description="range of the digitizer, filled to at least 80 %")
    memory_steps: int = Field(description="after so many steps what was played before is below the noise")
    marker_answer_v: list[float] = Field(description="how the device answers to a marker")
    marker_answer_rate_hz: PositiveFloat

    @property
    def id(self) -> str:
        """Twelve digits that stand for all of it."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    @property
    def marker_answer(self) -> MarkerAnswer:
        """As the bench needs it. A delay that may be none is none: otherwise each calibration would shift states."""
        delay_s = self.delay_s.value if self.delay_s.low > 0 else 0.0
        return MarkerAnswer(delay_s, Template(np.array(self.marker_answer_v), self.marker_answer_rate_hz))

    def age_h(self) -> float:
        """Hours since it was made."""
        return (datetime.now(UTC) - self.made).total_seconds() / 3600

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        with replacing(path) as partial:
            partial.write_text(self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read it. Raises `CalibrationError` if there is none, `ConfigurationError` if the file is something else."""
        try:
            return cls.model_validate_json(Path(path).read_text())
        except OSError as error:
            raise CalibrationError(
                f"the calibration {path} cannot be read ({error.strerror}): `reservoir-hw device calibrate` makes one"
            ) from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{path} is no calibration: it is no text") from None
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"])) or "the file"
            raise ConfigurationError(f"{path} is no calibration: {place}: {problem['msg']}") from None

    def expect(self, chain: Chain, max_age_h: float | None) -> None:
        """Raise `CalibrationError` if it is of another bench, too old, or of the future."""
        for name in Chain.model_fields:
            here, there = getattr(chain, name), getattr(self.chain, name)
            if here != there:
                raise CalibrationError(
                    f"the calibration {self.id} belongs to another bench: its {name} is {there!r}, and here it is "
                    f"{here!r}; calibrate again"
                )
        if max_age_h is None:
            return
        # Clocks of two hosts may differ a little.
        if self.age_h() < -1:
            made, now = (f"{moment:%Y-%m-%d %H:%M} UTC" for moment in (self.made.astimezone(UTC), datetime.now(UTC)))
            raise CalibrationError(
                f"the calibration {self.id} was made at {made}, and the clock of this host says {now}, so nobody knows "
                "its age: set the clock, or calibrate again"
            )
        if self.age_h() > max_age_h:
            raise CalibrationError(
                f"the calibration {self.id} is {self.age_h():.1f} h old, and max_calibration_age_h is {max_age_h:g}; "
                "calibrate again"
            )
