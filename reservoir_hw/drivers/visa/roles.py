"""What a bench needs of its instruments: something that plays volts, and something that takes them down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError


class Output(Config):
    """A channel of a generator. Volts are those at its terminals, with the load that is connected."""

    range_v: tuple[float, float] = Field(description="[lowest, highest] that may ever be played; beyond is refused")
    load_ohm: PositiveFloat = Field(default=float("inf"), description="what is connected; .inf: high impedance")
    safe_v: float = Field(default=0.0, description="the level before and after a waveform")
    highest_step_v: PositiveFloat | None = Field(default=None, description="between two samples; more is refused")
    highest_slew_v_per_s: PositiveFloat | None = Field(default=None, description="between two samples; more is refused")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.range_v
        if not low < high:
            raise ValueError(f"range_v {list(self.range_v)} must be [lowest, highest]")
        if not low <= self.safe_v <= high:
            raise ValueError(f"safe_v {self.safe_v:g} lies beyond range_v {list(self.range_v)}")
        return self

    def check(self, channel: int, volts: np.ndarray, sample_rate_hz: float) -> None:
        """Raise `ConfigurationError` for a waveform (time,) that this output must not play."""
        low, high = self.range_v
        if not np.isfinite(volts).all():
            raise ConfigurationError(f"output {channel}: {int((~np.isfinite(volts)).sum())} samples are not finite")
        if volts.min() < low or volts.max() > high:
            at = int(np.argmax((volts < low) | (volts > high)))
            raise ConfigurationError(
                f"output {channel}: sample {at} is {volts[at]:g} V, beyond range_v [{low:g}, {high:g}]; "
                "nothing was sent"
            )
        step = float(np.abs(np.diff(volts, prepend=self.safe_v, append=self.safe_v)).max())
        for name, found, limit in (
            ("highest_step_v", step, self.highest_step_v),
            ("highest_slew_v_per_s", step * sample_rate_hz, self.highest_slew_v_per_s),
        ):
            if limit is not None and found > limit:
                raise ConfigurationError(f"output {channel}: {found:g} exceeds {name} {limit:g}; nothing was sent")


class Input(Config):
    """A channel of a digitizer."""

    range_v: tuple[float, float] = Field(description="[lowest, highest] that it can take down; beyond it clips")
    coupling: Literal["dc", "ac"] = "dc"
    impedance_ohm: Literal[50, 1_000_000] = 1_000_000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.range_v[0] < self.range_v[1]:
            raise ValueError(f"range_v {list(self.range_v)} must be [lowest, highest]")
        return self


class Trigger(Config):
    """What starts a record."""

    source: Annotated[int, Field(ge=1)] | Literal["external"] = Field(description="an input, or the trigger input")
    level_v: float = 0.5
    slope: Literal["rising", "falling"] = "rising"
    before_s: NonNegativeFloat = Field(default=0.0, description="part of the record before the trigger")


@dataclass(frozen=True)
class Waveform:
    """What an input took down: `volts` (time,), the first of them `start_s` after the trigger; `clipped` samples."""

    volts: np.ndarray
    sample_rate_hz: float
    start_s: float
    clipped: int


class Awg(Protocol):
    """A generator of arbitrary waveforms: each is played once after a trigger, and `safe_v` before and after it."""

    def load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> float:
        """Take waveforms (time,) by output, all of one length; returns the sample rate as it was read back.

        Raises `ConfigurationError` for what the instrument or its outputs cannot play, before anything is sent.
        """
        ...

    def arm(self) -> None:
        """Switch the outputs on, at `safe_v`, and wait for the trigger."""
        ...

    def trigger(self) -> None:
        """Play."""
        ...

    def stop(self) -> None:
        """Leave the outputs in their safe state: off."""
        ...


class Digitizer(Protocol):
    """Something that takes volts down, one record at a time."""

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """Prepare records of so many samples or more; returns the sample rate as it was read back."""
        ...

    def arm(self) -> None:
        """Wait for the trigger from now on; returns when it does."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Until the record is complete. Raises `DeviceFault` if the trigger was not met."""
        ...

    def fetch(self) -> dict[int, Waveform]:
        """The record, by input."""
        ...
