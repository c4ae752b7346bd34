"""What the drivers of waveform generators have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

import numpy as np
from pydantic import PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.roles import GeneratorConfig, SafeState
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

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
        unknown = sorted(set(volts) - set(self.outputs))
        if unknown:
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
