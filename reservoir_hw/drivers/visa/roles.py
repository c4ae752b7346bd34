"""What a bench needs of its instruments, and what drivers of generators and digitizers have in common."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, DeviceTimeout
from reservoir_hw.drivers.visa.links import SCPI, ConnectionConfig, resource_of
from reservoir_hw.drivers.visa.scpi import ScpiInstrument


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

    def trigger(self) -> None:
        """Play."""

    def stop(self) -> None:
        """Leave the outputs in their safe state: off."""


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

    def wait(self, timeout_s: float) -> None:
        """Until the record is complete. Raises `DeviceFault` if the trigger was not met."""

    def fetch(self) -> dict[int, Waveform]:
        """The record, by input."""
        ...


# ---- What drivers of digitizers that take single records have in common.


# Instruments take the nearest rate that they have. Neighbours differ by a factor of 2 or 2.5.
NEXT_RATE = 2.5
_LOOK_S = 0.002
_READ_BACK = 0.05


class RecordsConfig(DigitizerConfig):
    """A digitizer whose records are as long as its memory."""

    memory_samples: PositiveInt

    def check(self, inputs: Sequence[int], trigger: Trigger, samples: int) -> None:
        """Raise `ConfigurationError` for inputs that are not there, and for records that are too long."""
        wanted = {*inputs} if trigger.source == "external" else {*inputs, trigger.source}
        if unknown := sorted(wanted - set(self.inputs)):
            raise ConfigurationError(f"{self.address} has no input {unknown[0]} (inputs: {[*self.inputs]})")
        self.expect_memory(samples)

    def expect_memory(self, samples: int) -> None:
        """Raise `ConfigurationError` for records that are too long."""
        if samples > self.memory_samples:
            raise ConfigurationError(
                f"{self.address}: a record has at most {self.memory_samples} samples, {samples} are needed"
            )


class RecordDigitizerConfig(RecordsConfig):
    """A digitizer at an address, and the ranges of its inputs."""

    acquisition: Literal["normal", "high_resolution"] = Field(
        default="high_resolution",
        description="high_resolution averages what is taken between two samples of the record: 12 bits or more",
    )


class RecordDigitizer(ScpiInstrument):
    """Takes single records of its raw samples."""

    stop_command: ClassVar[str]
    """Ends a record that has waited too long."""

    def __init__(self, config: RecordDigitizerConfig) -> None:
        super().__init__(config.address, library=config.library, timeout_s=config.timeout_s)
        self._config = config
        self._taken: tuple[int, ...] = ()
        self._samples = 0

    @property
    def longest_record(self) -> int:
        """See `Digitizer.longest_record`."""
        return int(self._config.memory_samples / NEXT_RATE)

    def wait(self, timeout_s: float) -> None:
        """See `Digitizer.wait`."""
        if not comes(self._stopped, timeout_s):
            what = "the record was not complete" if self._triggered() else "trigger not met"
            self.write(self.stop_command)
            raise DeviceFault(f"{self.address}: {what} within {timeout_s:g} s")

    def fetch(self) -> dict[int, Waveform]:
        """See `Digitizer.fetch`."""
        return {number: self._fetch(number) for number in self._taken}

    @abstractmethod
    def _stopped(self) -> bool: ...

    @abstractmethod
    def _triggered(self) -> bool: ...

    @abstractmethod
    def _fetch(self, number: int) -> Waveform: ...

    def _expect_range(self, channel: Input, width: str, width_v: float, middle: str) -> None:
        """Read two settings back: `width`, which was set to `width_v`, and `middle`, to the middle of the range."""
        (low, high), middle_v = channel.range_v, sum(channel.range_v) / 2
        if (found := self.query_number(f"{width}?")) < width_v * (1 - _READ_BACK):
            raise DeviceFault(f"{self.address}: {width} is {found:g} V, and {width_v:g} V was set")
        # Instruments take the nearest offset that they have, some without an error.
        if abs((found := self.query_number(f"{middle}?")) - middle_v) > _READ_BACK * (high - low):
            raise DeviceFault(f"{self.address}: {middle} is {found:g} V, and {middle_v:g} V was set")

    def _expect_armed(self, armed: Callable[[], bool]) -> None:
        if not comes(armed, self.timeout_s):
            self.check_errors()
            raise DeviceTimeout(f"{self.address}: it did not arm within {self.timeout_s:g} s")

    def _too_short(self, samples: int) -> DeviceFault:
        return DeviceFault(f"{self.address}: a record of {self._samples} samples was due, {samples} came")


def comes(asked: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it becomes true within so long. It is asked again and again."""
    until = time.monotonic() + timeout_s
    while not asked():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True


# ---- What the drivers of waveform generators have in common.


_SOURCE_OHM = 50.0
_LOADS_OHM = (1.0, 10e3)


def load_share(load_ohm: float) -> float:
    """Of the volts inside a generator, what is left at a load; infinity is a high impedance."""
    return 1.0 if math.isinf(load_ohm) else load_ohm / (_SOURCE_OHM + load_ohm)


class BurstGeneratorConfig(GeneratorConfig):
    """A generator at an address, and what its outputs may play."""

    memory_samples: PositiveInt
    highest_sample_rate_hz: PositiveFloat

    # Of the instrument, into an open circuit.
    highest_v: ClassVar[float]
    smallest_vpp: ClassVar[float]

    @model_validator(mode="after")
    def _within_reach(self) -> Self:
        for number, output in self.outputs.items():
            load = output.load_ohm
            if not math.isinf(load) and not _LOADS_OHM[0] <= load <= _LOADS_OHM[1]:
                raise ValueError(f"outputs.{number}.load_ohm {load:g} must be 1 to 10000, or .inf")
            share = load_share(load)
            low, high = output.range_v
            if max(-low, high) > self.highest_v * share:
                raise ValueError(
                    f"outputs.{number}.range_v [{low:g}, {high:g}]: "
                    f"the instrument reaches ±{self.highest_v * share:g} V at {load:g} ohm"
                )
            if high - low < self.smallest_vpp * share:
                raise ValueError(
                    f"outputs.{number}.range_v [{low:g}, {high:g}]: the smallest range of the instrument is "
                    f"{self.smallest_vpp * share:g} V at {load:g} ohm"
                )
        return self

    def check(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float, shortest: int) -> None:
        """Raise `ConfigurationError` for waveforms (time,) by output that must not be played.

        The instrument needs `shortest` samples, with the one at `safe_v` that is put before them.
        """
        if unknown := sorted(set(volts) - set(self.outputs)):
            raise ConfigurationError(f"{self.address} has no output {unknown[0]} (outputs: {[*self.outputs]})")
        lengths = {len(samples) for samples in volts.values()}
        if len(lengths) != 1:
            raise ConfigurationError(f"{self.address}: waveforms of one burst have one length, these {sorted(lengths)}")
        (length,) = lengths
        shortest, longest = shortest - 1, self.memory_samples - 1
        if not shortest <= length <= longest:
            raise ConfigurationError(f"{self.address}: a waveform has {shortest} to {longest} samples, not {length}")
        if sample_rate_hz > self.highest_sample_rate_hz:
            raise ConfigurationError(
                f"{self.address}: {sample_rate_hz:g} samples/s exceed highest_sample_rate_hz "
                f"{self.highest_sample_rate_hz:g}"
            )
        for number, samples in volts.items():
            self.outputs[number].check(number, samples, sample_rate_hz)


class BurstGenerator(ScpiInstrument):
    """Plays a waveform once for each software trigger.

    An output that waits stands at the first sample of its waveform, so a sample at `safe_v` is put before it.
    """

    shortest: ClassVar[int]
    """How many samples the instrument must have, with the one at `safe_v`."""
    read_back: ClassVar[float] = 1e-6
    """By how much an answer may differ from what was set: by its last digits."""
    output_command: ClassVar[str] = "OUTP{number} {state}"
    trigger_command: ClassVar[str] = "*TRG"
    stop_commands: ClassVar[tuple[str, ...]] = ("ABOR",)

    def __init__(self, config: BurstGeneratorConfig) -> None:
        super().__init__(config.address, library=config.library, timeout_s=config.timeout_s)
        self._config = config
        self._loaded: tuple[int, ...] = ()

    @property
    def longest_waveform(self) -> int:
        """See `Awg.longest_waveform`."""
        return self._config.memory_samples - 1

    @property
    def safe_state(self) -> SafeState:
        """See `Awg.safe_state`."""
        return SafeState(self.address, self._all_off(), self.connection)

    def load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> float:
        """See `Awg.load`."""
        self._config.check(volts, sample_rate_hz, self.shortest)
        self._loaded = ()
        # An output of the waveforms before must not play along.
        self.write("*CLS", *self._switched("OFF", self._config.outputs))
        rates = self._load(volts, sample_rate_hz)
        if len(set(rates.values())) != 1:
            raise DeviceFault(f"{self.address}: the outputs have different sample rates: {rates}")
        self._loaded = tuple(volts)
        return rates[self._loaded[0]]

    def arm(self) -> None:
        """See `Awg.arm`."""
        self.write(*self._switched("ON", self._loaded))
        self.finish("switching the outputs on", self.timeout_s)
        self.check_errors()

    def trigger(self) -> None:
        """See `Awg.trigger`."""
        self.write(self.trigger_command)
        self.check_errors()

    def stop(self) -> None:
        """See `Awg.stop`."""
        self.write(*self._all_off())
        self.finish("switching the outputs off", self.timeout_s)

    @abstractmethod
    def _load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> dict[int, float]:
        """Upload what has been checked and set the outputs; returns the sample rates as they were read back."""

    def _played(self, number: int, volts: np.ndarray) -> np.ndarray:
        """What the instrument gets: volts (time + 1,)."""
        return np.concatenate(([self._config.outputs[number].safe_v], volts))

    def _upload(self, command: str, counts: np.ndarray) -> None:
        self.write_block(command, counts)
        self.finish("the upload", max(self.timeout_s, len(counts) / 1e5))
        self.check_errors()

    def _expect(self, query: str, value: float) -> None:
        found = self.query_number(query)
        if abs(found - value) > self.read_back * max(1.0, abs(value)):
            raise DeviceFault(f"{self.address}: {query} says {found:g}, and {value:g} was set")

    def _all_off(self) -> tuple[str, ...]:
        return (*self.stop_commands, *self._switched("OFF", self._config.outputs))

    def _switched(self, state: str, numbers: Iterable[int]) -> list[str]:
        return [self.output_command.format(number=number, state=state) for number in numbers]
