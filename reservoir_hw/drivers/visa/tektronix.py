"""Tektronix AFG3000 waveform generators (AFG3000 Series Programmer Manual)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ProtocolError
from reservoir_hw.drivers.visa.roles import (
    NEXT_RATE,
    BurstGenerator,
    BurstGeneratorConfig,
    Input,
    Output,
    RecordDigitizer,
    RecordDigitizerConfig,
    Trigger,
    Waveform,
)

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
        return {
            number: self._load_output(number, "EMEM" if number == last else f"USER{number}", samples, sample_rate_hz)
            for number, samples in volts.items()
        }

    def _load_output(self, number: int, memory: str, volts: np.ndarray, sample_rate_hz: float) -> float:
        output, source = self._config.outputs[number], f"SOUR{number}"
        amplitude, offset = _levels(output)
        counts = np.rint((self._played(number, volts) - offset) * (2 * _MIDDLE / amplitude)) + _MIDDLE
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


# ---- Tektronix oscilloscopes of the 4, 5 and 6 Series (4/5/6 Series MSO Programmer Manual).


# Bits 2 to 5 of the standard event status register. Warnings count as execution errors.
_ERRORS = 0b111100
_VOLT_DIVISIONS = 10
_SHORTEST_RECORD = 1000
_RATES = (1.0, 1.5, 2.0, NEXT_RATE)
# The answers to WFMOutpre have five digits and more.
_DIGITS = 1e-4
_ACQUISITIONS = {"normal": "SAM", "high_resolution": "HIR"}
_PREAMBLE = ":WFMO:NR_P?;:WFMO:PT_O?;:WFMO:XIN?;:WFMO:XZE?;:WFMO:YMU?;:WFMO:YOF?;:WFMO:YZE?"


class TektronixMsoConfig(RecordDigitizerConfig):
    """A Tektronix MSO of the 4, 5 or 6 Series at an address, and the ranges of its inputs."""

    kind: Literal["tektronix_mso"]
    memory_samples: PositiveInt = Field(default=31_250_000, description="per record and input; 62.5 M in a 5 Series")

    def build(self) -> TektronixMso:
        """Not yet open."""
        return TektronixMso(self)


class TektronixMso(RecordDigitizer):
    """Records are 16-bit words. An external trigger needs a model with an auxiliary input."""

    # The MSO4000 and MSO5000, which have longer names, speak otherwise.
    identity = "^TEKTRONIX,(MSO[456][468]|LPD64)(B|LP)?,"
    stop_command = "ACQ:STATE STOP"

    def check_errors(self) -> None:
        """Raise `DeviceFault` with all events that are errors or warnings."""
        # Reading the register makes its events readable.
        if int(self.query_number("*ESR?")) & _ERRORS:
            raise DeviceFault(f"{self.address}: the instrument reports {self.query('ALLE?')}")

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """See `Digitizer.configure`. The instrument takes a rate that it has, not below the one that is wanted."""
        self._config.check(inputs, trigger, samples)
        self.write(
            # With headers, a query is answered by more than its value.
            "HEAD OFF",
            "*CLS",
            "ACQ:STATE STOP",
            f"ACQ:MOD {_ACQUISITIONS[self._config.acquisition]}",
            "ACQ:STOPA SEQ",
            "HOR:MOD MAN",
            "HOR:MOD:MAN:CONFIG HORIZ",
            "HOR:DEL:MOD OFF",
        )
        for number, channel in self._config.inputs.items():
            self._prepare(number, channel, shown=number in inputs)
        rate = self._set_rate(sample_rate_hz)
        # Of the same duration.
        points = max(_SHORTEST_RECORD, math.ceil(samples * rate / sample_rate_hz * (1 - 1e-9)))
        self._config.expect_memory(points)
        source, level = "AUX", "TRIG:AUXL"
        if trigger.source != "external":
            source, level = f"CH{trigger.source}", f"TRIG:A:LEV:CH{trigger.source}"
        self.write(
            f"HOR:MOD:RECO {points}",
            f"HOR:POS {100 * trigger.before_s * rate / points!r}",
            "TRIG:A:TYP EDGE",
            "TRIG:A:MOD NORM",
            f"TRIG:A:EDGE:SOU {source}",
            "TRIG:A:EDGE:COUP DC",
            f"TRIG:A:EDGE:SLO {'RIS' if trigger.slope == 'rising' else 'FALL'}",
            f"{level} {trigger.level_v!r}",
        )
        self.check_errors()
        if (found := self.query_number("HOR:MOD:RECO?")) < points:
            raise DeviceFault(f"{self.address}: the record has {found:g} samples, and {points} were set")
        self._taken, self._samples = tuple(inputs), points
        return rate

    def arm(self) -> None:
        """See `Digitizer.arm`."""
        self.write("ACQ:STATE RUN")
        # A trigger may come at once.
        self._expect_armed(lambda: self._trigger_state("REA") or self._complete())

    def fetch(self) -> dict[int, Waveform]:
        """See `Digitizer.fetch`."""
        # Otherwise the instrument gives the record before.
        if not self._complete():
            raise self._too_short(0)
        return super().fetch()

    def _stopped(self) -> bool:
        return not self.query_number("ACQ:STATE?")

    def _triggered(self) -> bool:
        return self._trigger_state("TRIG")

    def _trigger_state(self, begins: str) -> bool:
        return self.query("TRIG:STATE?").upper().startswith(begins)

    def _complete(self) -> bool:
        return self.query_number("ACQ:NUMAC?") > 0

    def _set_rate(self, sample_rate_hz: float) -> float:
        found = 0.0
        for factor in _RATES:
            self.write(f"HOR:MOD:SAMPLER {factor * sample_rate_hz!r}")
            if (found := self.query_number("HOR:MOD:SAMPLER?")) >= sample_rate_hz * (1 - _DIGITS):
                return found
        raise ConfigurationError(
            f"{self.address}: it takes {found:g} samples/s at most, and {sample_rate_hz:g} are needed"
        )

    def _prepare(self, number: int, channel: Input, *, shown: bool) -> None:
        low, high = channel.range_v
        at, scale, offset = f"CH{number}", (high - low) / _VOLT_DIVISIONS, (high + low) / 2
        self.write(
            f"DIS:GLO:{at}:STATE {int(shown)}",
            f"{at}:COUP {channel.coupling.upper()}",
            f"{at}:TER {channel.impedance_ohm}",
            f"{at}:BAN FUL",
            f"{at}:POS 0",
            f"{at}:SCA {scale!r}",
            f"{at}:OFFS {offset!r}",
        )
        self.check_errors()
        self._expect_range(channel, f"{at}:SCA", scale, f"{at}:OFFS")

    def _fetch(self, number: int) -> Waveform:
        # The encoding belongs to the source.
        self.write(f"DAT:SOU CH{number}", "DAT:ENC SRI", "DAT:WID 2", "DAT:STAR 1", f"DAT:STOP {self._samples}")
        self.check_errors()
        preamble = self.query(_PREAMBLE)
        try:
            points, trigger_point, xinc, xzero, ymult, yoff, yzero = map(float, preamble.split(";"))
        except ValueError:
            raise ProtocolError(f"{self.address}: {_PREAMBLE} was answered by {preamble!r}") from None
        raw = self.query_block("CURV?", "<i2")
        if len(raw) < points or len(raw) < self._samples:
            raise self._too_short(len(raw))
        volts = (raw.astype(np.float64) - yoff) * ymult + yzero
        # The first and the last of 256 steps: so it is whatever the number of bits.
        clipped = int(np.count_nonzero((raw < -0x7F00) | (raw >= 0x7F00)))
        return Waveform(volts, 1 / xinc, xzero - trigger_point * xinc, clipped)
