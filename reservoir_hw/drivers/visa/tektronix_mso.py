"""Tektronix oscilloscopes of the 4, 5 and 6 Series (4/5/6 Series MSO Programmer Manual)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ProtocolError
from reservoir_hw.drivers.visa.record_digitizer import NEXT_RATE, RecordDigitizer, RecordDigitizerConfig
from reservoir_hw.drivers.visa.roles import Input, Trigger, Waveform

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
        self._check(inputs, trigger, samples)
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
        self._expect_memory(points)
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
        found = self.query_number("HOR:MOD:RECO?")
        if found < points:
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
            found = self.query_number("HOR:MOD:SAMPLER?")
            if found >= sample_rate_hz * (1 - _DIGITS):
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
