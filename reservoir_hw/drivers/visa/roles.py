"""What a bench needs of its instruments: something that plays volts, and something that takes them down."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.visa.links import SCPI, ConnectionConfig, resource_of


class InstrumentConfig(Config):
    """What every kind of instrument can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    kind: Any
    address: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(
        description="TCPIP::host::5025::SOCKET, TCPIP::host::hislip0::INSTR, USB0::…::INSTR"
    )
    library: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(
        default="@py", description='pyvisa-py, or "" for the VISA library of a vendor'
    )
    timeout_s: Annotated[PositiveFloat, NO_INFLUENCE_ON_STATES] = Field(
        default=5.0, description="the longest wait without a byte"
    )
    resource: Annotated[str | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="what one process uses at a time; by default what the address says"
    )

    @property
    def locked(self) -> str:
        """The name under which the instrument is locked."""
        return self.resource or resource_of(self.address)

    @abstractmethod
    def build(self) -> Any:
        """The instrument, not yet open."""


@dataclass(frozen=True)
class SafeState:
    """Commands that bring the instrument at an address to its safe state.

    `answered` says whether each is answered by a line, and `confirm` asks whether all is done; empty: it is not asked.
    An instrument that takes one client can be reached only after its owner has died.
    """

    address: str
    commands: tuple[str, ...]
    connection: ConnectionConfig = SCPI
    answered: bool = False
    confirm: str = "*OPC?"


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


class GeneratorConfig(InstrumentConfig):
    """A generator, and what its outputs may play."""

    outputs: dict[int, Output] = Field(min_length=1, description="by number")

    @abstractmethod
    def build(self) -> Awg:
        """The instrument, not yet open."""


class DigitizerConfig(InstrumentConfig):
    """A digitizer, and the ranges of its inputs."""

    inputs: dict[int, Input] = Field(min_length=1, description="by number")

    @abstractmethod
    def build(self) -> Digitizer:
        """The instrument, not yet open."""


@dataclass(frozen=True)
class Waveform:
    """What an input took down: `volts` (time,), the first of them `start_s` after the trigger; `clipped` samples."""

    volts: np.ndarray
    sample_rate_hz: float
    start_s: float
    clipped: int


class Instrument(Protocol):
    """A connection to an instrument."""

    @property
    def idn(self) -> str:
        """Its answer to `*IDN?`; empty before `open`."""
        ...

    def open(self) -> Any:
        """Connect. Raises `ConfigurationError` where another instrument answers. Idempotent."""
        ...

    def close(self) -> None:
        """Idempotent. The instrument keeps its settings."""
        ...


class Awg(Instrument, Protocol):
    """A generator of arbitrary waveforms: each is played once after a trigger, and `safe_v` before and after it."""

    @property
    def longest_waveform(self) -> int:
        """In samples."""
        ...

    @property
    def safe_state(self) -> SafeState:
        """What switches its outputs off, for a guard with a connection of its own."""
        ...

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


class Digitizer(Instrument, Protocol):
    """Something that takes volts down, one record at a time."""

    @property
    def longest_record(self) -> int:
        """So many samples it can take at any rate that is asked for, or a little above."""
        ...

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
