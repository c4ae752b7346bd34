"""Keysight 33500 and 33600 waveform generators (33500 Series Operating and Service Guide, 33500-90901)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.roles import Output
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

_FULL_SCALE = 32767
_SHORTEST = 8
# What is read back differs by the digits of the answer.
_READ_BACK = 1e-6


class Keysight33500Config(Config):
    """A generator at an address, and what its outputs may play."""

    kind: Literal["keysight_33500"]
    address: str = Field(description="TCPIP::host::5025::SOCKET, TCPIP::host::hislip0::INSTR, USB0::…::INSTR")
    library: str = Field(default="@py", description='pyvisa-py, or "" for the VISA library of a vendor')
    timeout_s: PositiveFloat = 5.0
    outputs: dict[int, Output] = Field(min_length=1, description="by number")
    memory_samples: PositiveInt = Field(default=1_048_576, description="per output; 16 M with the memory option")

    def build(self) -> Keysight33500:
        """Not yet open."""
        return Keysight33500(self)


class Keysight33500(ScpiInstrument):
    """Plays a waveform once for each software trigger."""

    identity = "^(Agilent Technologies|Keysight Technologies),33[56]"

    def __init__(self, config: Keysight33500Config) -> None:
        super().__init__(config.address, library=config.library, timeout_s=config.timeout_s)
        self._config = config
        self._loaded: tuple[int, ...] = ()

    def load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> float:
        """See `Awg.load`."""
        self._check(volts, sample_rate_hz)
        self.write("*CLS", "FORM:BORD SWAP")
        rates = {self._load_output(number, samples, sample_rate_hz) for number, samples in volts.items()}
        self.check_errors()
        (rate,) = rates
        self._loaded = tuple(volts)
        return rate

    def arm(self) -> None:
        """See `Awg.arm`."""
        self.write(*(f"OUTP{number} ON" for number in self._loaded))
        self.finish("switching the outputs on", self.timeout_s)
        self.check_errors()

    def trigger(self) -> None:
        """See `Awg.trigger`."""
        self.write("*TRG")

    def stop(self) -> None:
        """See `Awg.stop`."""
        self.write("ABOR", *(f"OUTP{number} OFF" for number in self._config.outputs))
        self.finish("switching the outputs off", self.timeout_s)

    def _check(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> None:
        unknown = sorted(set(volts) - set(self._config.outputs))
        if unknown:
            raise ConfigurationError(f"{self.address} has no output {unknown[0]} (outputs: {[*self._config.outputs]})")
        lengths = {len(samples) for samples in volts.values()}
        if len(lengths) != 1:
            raise ConfigurationError(f"{self.address}: waveforms of one burst have one length, these {sorted(lengths)}")
        (length,) = lengths
        if not _SHORTEST <= length <= self._config.memory_samples:
            raise ConfigurationError(
                f"{self.address}: a waveform has {_SHORTEST} to {self._config.memory_samples} samples, not {length}"
            )
        for number, samples in volts.items():
            self._config.outputs[number].check(number, samples, sample_rate_hz)

    def _load_output(self, number: int, volts: np.ndarray, sample_rate_hz: float) -> float:
        output, source, name = self._config.outputs[number], f"SOUR{number}", f"RHW{number}"
        # The rest level is where the range is cut in half, so that the instrument idles at `safe_v`.
        reach = max(abs(end - output.safe_v) for end in output.range_v)
        counts = np.rint((volts - output.safe_v) * (_FULL_SCALE / reach)).astype("<i2")
        load = "INF" if math.isinf(output.load_ohm) else f"{output.load_ohm:g}"
        self.write(f"OUTP{number} OFF", f"{source}:BURS:STAT OFF", f"{source}:FUNC SIN", f"{source}:DATA:VOL:CLE")
        self.write_block(f"{source}:DATA:ARB:DAC {name},", counts)
        self.finish("the upload", max(self.timeout_s, len(volts) / 1e5))
        self.write(
            f"{source}:FUNC:ARB {name}",
            f"{source}:FUNC:ARB:FILT STEP",
            f"{source}:FUNC:ARB:SRAT {sample_rate_hz!r}",
            f"{source}:FUNC ARB",
            f"OUTP{number}:LOAD {load}",
            f"{source}:VOLT {2 * reach!r}",
            f"{source}:VOLT:OFFS {output.safe_v!r}",
            f"{source}:BURS:MODE TRIG",
            f"{source}:BURS:NCYC 1",
            f"TRIG{number}:SOUR BUS",
            f"{source}:BURS:STAT ON",
        )
        self.check_errors()
        self._expect(f"{source}:VOLT?", 2 * reach)
        self._expect(f"{source}:VOLT:OFFS?", output.safe_v)
        self._expect(f"{source}:FUNC:ARB:POIN?", len(volts))
        return self.query_number(f"{source}:FUNC:ARB:SRAT?")

    def _expect(self, query: str, value: float) -> None:
        found = self.query_number(query)
        if abs(found - value) > _READ_BACK * max(1.0, abs(value)):
            raise DeviceFault(f"{self.address}: {query} says {found:g}, and {value:g} was set")
