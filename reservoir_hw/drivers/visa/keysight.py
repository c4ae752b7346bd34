"""Keysight 33500 and 33600 waveform generators (33500 Series Operating and Service Guide, 33500-90901)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ProtocolError
from reservoir_hw.drivers.visa.roles import (
    BurstGenerator,
    BurstGeneratorConfig,
    Input,
    RecordDigitizer,
    RecordDigitizerConfig,
    Trigger,
    Waveform,
)

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


# ---- Keysight InfiniiVision oscilloscopes (InfiniiVision 3000T X-Series Programmer's Guide).


_RUNNING = 8  # bit 3 of the operation status condition register
_TIME_DIVISIONS = 10
_RATE_READ_BACK = 0.05
_TRUE = ("1", "+1")
_ACQUISITIONS = {"normal": "NORM", "high_resolution": "HRES"}


class KeysightInfiniiVisionConfig(RecordDigitizerConfig):
    """A Keysight InfiniiVision at an address, and the ranges of its inputs."""

    kind: Literal["keysight_infiniivision"]
    memory_samples: PositiveInt = Field(default=1_000_000, description="per record and input")

    def build(self) -> KeysightInfiniiVision:
        """Not yet open."""
        return KeysightInfiniiVision(self)


class KeysightInfiniiVision(RecordDigitizer):
    """Records are 16-bit words."""

    errors = ":SYST:ERR?"
    identity = "^(AGILENT TECHNOLOGIES|KEYSIGHT TECHNOLOGIES),[A-Z]{2,4}-X "
    stop_command = ":STOP"

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """See `Digitizer.configure`. The instrument takes the rate that its time base and its memory give."""
        self._config.check(inputs, trigger, samples)
        duration = samples / sample_rate_hz
        acquisition = _ACQUISITIONS[self._config.acquisition]
        self.write("*CLS", ":STOP", f":ACQ:TYPE {acquisition}", ":TIM:MODE MAIN", ":TIM:REF LEFT")
        for number, channel in self._config.inputs.items():
            self._prepare(number, channel, shown=number in inputs)
        source = "EXT" if trigger.source == "external" else f"CHAN{trigger.source}"
        self.write(f":TIM:RANG {duration!r}")
        found = self.query_number(":TIM:RANG?")
        self.write(
            # The reference stands one division from the left.
            f":TIM:POS {found / _TIME_DIVISIONS - trigger.before_s!r}",
            ":TRIG:MODE EDGE",
            ":TRIG:SWE NORM",
            f":TRIG:EDGE:SOUR {source}",
            f":TRIG:EDGE:SLOP {'POS' if trigger.slope == 'rising' else 'NEG'}",
            f":TRIG:EDGE:LEV {trigger.level_v!r},{source}",
            ":WAV:FORM WORD",
            ":WAV:BYT LSBF",
            ":WAV:UNS 1",
            # All points: of fewer the instrument would leave some out. This order, as MAX sets a mode, too.
            ":WAV:POIN MAX",
            ":WAV:POIN:MODE RAW",
        )
        self.check_errors()
        if found < duration * (1 - 1e-6):
            raise DeviceFault(f"{self.address}: the time base is {found:g} s, and {duration:g} s was set")
        self._taken, self._samples = tuple(inputs), samples
        rate = self.query_number(":ACQ:SRAT?")
        if rate < sample_rate_hz * (1 - _RATE_READ_BACK):
            raise ConfigurationError(
                f"{self.address}: it takes {rate:g} samples/s over {found:g} s, and {sample_rate_hz:g} are needed: "
                "shorten the records"
            )
        return rate

    def arm(self) -> None:
        """See `Digitizer.arm`."""
        self.query(":TER?")
        self.query(":AER?")
        self.write(":SING")
        self._expect_armed(lambda: self.query(":AER?") in _TRUE)

    def _stopped(self) -> bool:
        return not int(self.query_number(":OPER:COND?")) & _RUNNING

    def _triggered(self) -> bool:
        return self.query(":TER?") in _TRUE

    def _prepare(self, number: int, channel: Input, *, shown: bool) -> None:
        low, high = channel.range_v
        at = f":CHAN{number}"
        self.write(
            f"{at}:DISP {int(shown)}",
            f"{at}:PROB 1",
            f"{at}:COUP {channel.coupling.upper()}",
            f"{at}:IMP {'FIFT' if channel.impedance_ohm == 50 else 'ONEM'}",
            f"{at}:RANG {high - low!r}",
            f"{at}:OFFS {(high + low) / 2!r}",
        )
        self.check_errors()
        self._expect_range(channel, f"{at}:RANG", high - low, f"{at}:OFFS")

    def _fetch(self, number: int) -> Waveform:
        self.write(f":WAV:SOUR CHAN{number}")
        preamble = self.query(":WAV:PRE?").split(",")
        try:
            _, _, points, _, xinc, xorg, xref, yinc, yorg, yref = map(float, preamble)
        except ValueError:
            raise ProtocolError(f"{self.address}: :WAV:PRE? was answered by {','.join(preamble)!r}") from None
        # Without a record the data query is never answered.
        raw = self.query_block(":WAV:DATA?", "<u2") if points >= self._samples else np.empty(int(points))
        if len(raw) < points or len(raw) < self._samples:
            raise self._too_short(len(raw))
        volts = (raw.astype(np.float64) - yref) * yinc + yorg
        # The guide: 0 is a hole, 1 clipped low and the highest value clipped high; of bytes, shifted or not.
        clipped = int(np.count_nonzero((raw < 0x0200) | (raw >= 0xFF00)))
        return Waveform(volts, 1 / xinc, xorg - xref * xinc, clipped)
