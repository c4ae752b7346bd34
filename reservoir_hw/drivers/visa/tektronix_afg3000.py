"""Tektronix AFG3000 waveform generators (AFG3000 Series Programmer Manual)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from reservoir_hw.drivers.visa.burst_generator import BurstGenerator, BurstGeneratorConfig
from reservoir_hw.drivers.visa.roles import Output

_MIDDLE = 8191
# Amplitudes have a resolution of 0.1 mV or four digits, offsets of 1 mV.
_AMPLITUDE_STEP_V, _AMPLITUDE_DIGITS, _OFFSET_DECIMALS = 1e-4, 4, 3


class TektronixAfg3000Config(BurstGeneratorConfig):
    """A Tektronix AFG3000 at an address, and what its outputs may play."""

    kind: Literal["tektronix_afg3000"]
    memory_samples: PositiveInt = Field(default=131_072, description="of the model; the first ones have 65536")
    highest_sample_rate_hz: PositiveFloat = Field(
        default=250e6,
        description="beyond it the instrument leaves samples out; some models reach 1e9 with up to 16384 samples",
    )

    highest_v = 10.0
    smallest_vpp = 20e-3

    def build(self) -> TektronixAfg3000:
        """Not yet open."""
        return TektronixAfg3000(self)


class TektronixAfg3000(BurstGenerator):
    """The outputs share one edit memory.

    The last output of a burst plays it. The others play a user memory, which keeps its contents without power and wears
    out with every upload: with one output, none is written.
    """

    identity = "^TEKTRONIX,AFG3[0-9]{3}[BC]?,"
    # One more than the instrument needs: see _load_output.
    shortest = 3

    def _load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> dict[int, float]:
        last = [*volts][-1]
        rates: dict[int, float] = {}
        for number, samples in volts.items():
            memory = "EMEM" if number == last else f"USER{number}"
            rates[number] = self._load_output(number, memory, samples, sample_rate_hz)
        return rates

    def _load_output(self, number: int, memory: str, volts: np.ndarray, sample_rate_hz: float) -> float:
        output, source = self._config.outputs[number], f"SOUR{number}"
        amplitude, offset = _levels(output)
        played = self._played(number, volts)
        counts = np.rint((played - offset) * (2 * _MIDDLE / amplitude)) + _MIDDLE
        load = "INF" if math.isinf(output.load_ohm) else f"{output.load_ohm:g}"
        # There is no command for the sample rate.
        frequency = sample_rate_hz / len(counts)
        # Otherwise an upload of the same length that is lost would leave the waveform before.
        self.write("DATA:DEF EMEM,2")
        self._upload("DATA:DATA EMEM,", counts.astype(">u2"))
        self._expect("DATA:POIN? EMEM", len(counts))
        if memory != "EMEM":
            self.write(f"DATA:COPY {memory},EMEM")
            self.finish("storing the waveform", max(self.timeout_s, len(counts) / 1e4))
        self.write(
            f"{source}:FREQ:MODE FIX",
            f"{source}:FUNC {memory}",
            f"{source}:FREQ {frequency!r}",
            f"{source}:PHAS 0",
            f"OUTP{number}:POL NORM",
            f"OUTP{number}:IMP {load}",
            f"{source}:VOLT:UNIT VPP",
            # The offset of before may leave no room for this amplitude.
            f"{source}:VOLT:OFFS 0",
            f"{source}:VOLT {amplitude!r}",
            f"{source}:VOLT:OFFS {offset!r}",
            "TRIG:SOUR EXT",
            f"{source}:BURS:MODE TRIG",
            f"{source}:BURS:NCYC 1",
            f"{source}:BURS:TDEL 0",
            f"{source}:BURS:STAT ON",
        )
        self.check_errors()
        self._expect(f"{source}:VOLT?", amplitude)
        self._expect(f"{source}:VOLT:OFFS?", offset)
        self._expect(f"{source}:FREQ?", frequency)
        return self.query_number(f"{source}:FREQ?") * len(counts)


def _levels(output: Output) -> tuple[float, float]:
    """The smallest amplitude and an offset that the instrument has, and that reach over the range."""
    low, high = output.range_v
    offset = round((low + high) / 2, _OFFSET_DECIMALS)
    least = 2 * max(high - offset, offset - low)
    step = max(_AMPLITUDE_STEP_V, 10.0 ** (math.floor(math.log10(least)) + 1 - _AMPLITUDE_DIGITS))
    return round(math.ceil(round(least / step, 6)) * step, 6), offset
