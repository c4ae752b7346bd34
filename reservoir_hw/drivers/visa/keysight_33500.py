"""Keysight 33500 and 33600 waveform generators (33500 Series Operating and Service Guide, 33500-90901)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.roles import GeneratorConfig, SafeState
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

_FULL_SCALE = 32767
_SHORTEST = 8
_SOURCE_OHM = 50.0
_LOADS_OHM = (1.0, 10e3)
# Into an open circuit.
_HIGHEST_V, _SMALLEST_VPP = 10.0, 2e-3
# What is read back differs by the digits of the answer.
_READ_BACK = 1e-6


class Keysight33500Config(GeneratorConfig):
    """A generator at an address, and what its outputs may play."""

    kind: Literal["keysight_33500"]
    memory_samples: PositiveInt = Field(default=1_048_576, description="per output; 16 M with the memory option")
    highest_sample_rate_hz: PositiveFloat = Field(default=250e6, description="of the model; a 33600 reaches 1e9")

    @model_validator(mode="after")
    def _within_reach(self) -> Self:
        for number, output in self.outputs.items():
            load = output.load_ohm
            if not math.isinf(load) and not _LOADS_OHM[0] <= load <= _LOADS_OHM[1]:
                raise ValueError(f"outputs.{number}.load_ohm {load:g} must be 1 to 10000, or .inf")
            share = 1.0 if math.isinf(load) else load / (_SOURCE_OHM + load)
            low, high = output.range_v
            if max(-low, high) > _HIGHEST_V * share:
                raise ValueError(
                    f"outputs.{number}.range_v [{low:g}, {high:g}]: "
                    f"the instrument reaches ±{_HIGHEST_V * share:g} V at {load:g} ohm"
                )
            if high - low < _SMALLEST_VPP * share:
                raise ValueError(
                    f"outputs.{number}.range_v [{low:g}, {high:g}]: the smallest range of the instrument is "
                    f"{_SMALLEST_VPP * share:g} V at {load:g} ohm"
                )
        return self

    def build(self) -> Keysight33500:
        """Not yet open."""
        return Keysight33500(self)


class Keysight33500(ScpiInstrument):
    """Plays a waveform once for each software trigger.

    An output that waits stands at the first sample of its waveform, so a sample at `safe_v` is put before it.
    """

    identity = "^(Agilent Technologies|Keysight Technologies),33[56]"

    def __init__(self, config: Keysight33500Config) -> None:
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
        return SafeState(self.address, self._all_off(), self._config.library, self.timeout_s)

    def load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> float:
        """See `Awg.load`."""
        self._check(volts, sample_rate_hz)
        self._loaded = ()
        # An output of the waveforms before must not play along.
        self.write("*CLS", "FORM:BORD SWAP", *(f"OUTP{number} OFF" for number in self._config.outputs))
        rates = {number: self._load_output(number, samples, sample_rate_hz) for number, samples in volts.items()}
        if len(set(rates.values())) != 1:
            raise DeviceFault(f"{self.address}: the outputs have different sample rates: {rates}")
        self._loaded = tuple(volts)
        return rates[self._loaded[0]]

    def arm(self) -> None:
        """See `Awg.arm`."""
        self.write(*(f"OUTP{number} ON" for number in self._loaded))
        self.finish("switching the outputs on", self.timeout_s)
        self.check_errors()

    def trigger(self) -> None:
        """See `Awg.trigger`."""
        self.write("*TRG")
        self.check_errors()

    def stop(self) -> None:
        """See `Awg.stop`."""
        self.write(*self._all_off())
        self.finish("switching the outputs off", self.timeout_s)

    def _all_off(self) -> tuple[str, ...]:
        return ("ABOR", *(f"OUTP{number} OFF" for number in self._config.outputs))

    def _check(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> None:
        unknown = sorted(set(volts) - set(self._config.outputs))
        if unknown:
            raise ConfigurationError(f"{self.address} has no output {unknown[0]} (outputs: {[*self._config.outputs]})")
        lengths = {len(samples) for samples in volts.values()}
        if len(lengths) != 1:
            raise ConfigurationError(f"{self.address}: waveforms of one burst have one length, these {sorted(lengths)}")
        (length,) = lengths
        shortest, longest = _SHORTEST - 1, self.longest_waveform
        if not shortest <= length <= longest:
            raise ConfigurationError(f"{self.address}: a waveform has {shortest} to {longest} samples, not {length}")
        if sample_rate_hz > self._config.highest_sample_rate_hz:
            raise ConfigurationError(
                f"{self.address}: {sample_rate_hz:g} samples/s exceed highest_sample_rate_hz "
                f"{self._config.highest_sample_rate_hz:g}"
            )
        for number, samples in volts.items():
            self._config.outputs[number].check(number, samples, sample_rate_hz)

    def _load_output(self, number: int, volts: np.ndarray, sample_rate_hz: float) -> float:
        output, source, name = self._config.outputs[number], f"SOUR{number}", f"RHW{number}"
        low, high = output.range_v
        amplitude, offset = high - low, (low + high) / 2
        played = np.concatenate(([output.safe_v], volts))
        counts = np.rint((played - offset) * (2 * _FULL_SCALE / amplitude)).astype("<i2")
        load = "INF" if math.isinf(output.load_ohm) else f"{output.load_ohm:g}"
        self.write(f"{source}:BURS:STAT OFF", f"{source}:FUNC SIN", f"{source}:DATA:VOL:CLE")
        self.write_block(f"{source}:DATA:ARB:DAC {name},", counts)
        self.finish("the upload", max(self.timeout_s, len(counts) / 1e5))
        self.check_errors()
        self.write(
            f"{source}:FUNC:ARB {name}",
            f"{source}:FUNC:ARB:FILT STEP",
            f"{source}:FUNC:ARB:SRAT {sample_rate_hz!r}",
            f"{source}:FUNC ARB",
            f"OUTP{number}:LOAD {load}",
            # The offset of before may leave no room for this amplitude.
            f"{source}:VOLT:OFFS 0",
            f"{source}:VOLT {amplitude!r}",
            f"{source}:VOLT:OFFS {offset!r}",
            f"{source}:BURS:MODE TRIG",
            f"{source}:BURS:NCYC 1",
            f"TRIG{number}:SOUR BUS",
            f"{source}:BURS:STAT ON",
        )
        self.check_errors()
        self._expect(f"{source}:VOLT?", amplitude)
        self._expect(f"{source}:VOLT:OFFS?", offset)
        self._expect(f"{source}:FUNC:ARB:POIN?", len(counts))
        return self.query_number(f"{source}:FUNC:ARB:SRAT?")

    def _expect(self, query: str, value: float) -> None:
        found = self.query_number(query)
        if abs(found - value) > _READ_BACK * max(1.0, abs(value)):
            raise DeviceFault(f"{self.address}: {query} says {found:g}, and {value:g} was set")
