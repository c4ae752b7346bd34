"""Keysight 33500 and 33600 waveform generators (33500 Series Operating and Service Guide, 33500-90901)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from reservoir_hw.drivers.visa.burst_generator import BurstGenerator, BurstGeneratorConfig

_FULL_SCALE = 32767


class Keysight33500Config(BurstGeneratorConfig):
    """A Keysight 33500 or 33600 at an address, and what its outputs may play."""

    kind: Literal["keysight_33500"]
    memory_samples: PositiveInt = Field(default=1_048_576, description="per output; 16 M with the memory option")
    highest_sample_rate_hz: PositiveFloat = Field(default=250e6, description="of the model; a 33600 reaches 1e9")

    highest_v = 10.0
    smallest_vpp = 2e-3

    def build(self) -> Keysight33500:
        """Not yet open."""
        return Keysight33500(self)


class Keysight33500(BurstGenerator):
    """Each output has a memory of its own."""

    identity = "^(Agilent Technologies|Keysight Technologies),33[56]"
    shortest = 8

    def _load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> dict[int, float]:
        self.write("FORM:BORD SWAP")
        return {number: self._load_output(number, samples, sample_rate_hz) for number, samples in volts.items()}

    def _load_output(self, number: int, volts: np.ndarray, sample_rate_hz: float) -> float:
        output, source, name = self._config.outputs[number], f"SOUR{number}", f"RHW{number}"
        low, high = output.range_v
        amplitude, offset = high - low, (low + high) / 2
        counts = np.rint((self._played(number, volts) - offset) * (2 * _FULL_SCALE / amplitude)).astype("<i2")
        load = "INF" if math.isinf(output.load_ohm) else f"{output.load_ohm:g}"
        self.write(f"{source}:BURS:STAT OFF", f"{source}:FUNC SIN", f"{source}:DATA:VOL:CLE")
        self._upload(f"{source}:DATA:ARB:DAC {name},", counts)
        self.write(
            f"{source}:FUNC:ARB {name}",
            f"{source}:FUNC:ARB:FILT STEP",
            f"{source}:FUNC:ARB:SRAT {sample_rate_hz!r}",
            f"{source}:FUNC ARB",
            f"OUTP{number}:LOAD {load}",
            # What somebody has left at the panel: volts in another unit, a signal upside down.
            f"OUTP{number}:POL NORM",
            f"{source}:VOLT:UNIT VPP",
            # The offset of before may leave no room for this amplitude.
            f"{source}:VOLT:OFFS 0",
            f"{source}:VOLT {amplitude!r}",
            f"{source}:VOLT:OFFS {offset!r}",
            f"{source}:BURS:MODE TRIG",
            f"{source}:BURS:NCYC 1",
            # The waiting output stands at the first sample.
            f"{source}:BURS:PHAS 0",
            f"TRIG{number}:SOUR BUS",
            f"{source}:BURS:STAT ON",
        )
        self.check_errors()
        self._expect(f"{source}:VOLT?", amplitude)
        self._expect(f"{source}:VOLT:OFFS?", offset)
        self._expect(f"{source}:FUNC:ARB:POIN?", len(counts))
        return self.query_number(f"{source}:FUNC:ARB:SRAT?")
