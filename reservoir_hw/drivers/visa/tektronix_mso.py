"""Tektronix oscilloscopes of the 4, 5 and 6 Series (4/5/6 Series MSO Programmer Manual)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, DeviceTimeout, ProtocolError
from reservoir_hw.drivers.visa.roles import DigitizerConfig, Input, Trigger, Waveform
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

# Bits 2 to 5 of the standard event status register. Warnings count as execution errors.
_ERRORS = 0b111100
_LOOK_S = 0.002
_VOLT_DIVISIONS = 10
_SHORTEST_RECORD = 1000
_READ_BACK = 0.05
# The instrument takes the nearest rate that it has. Neighbours differ by a factor of 2 or 2.5.
_NEXT_RATE = 2.5
_RATES = (1.0, 1.5, 2.0, _NEXT_RATE)
# The answers to WFMOutpre have five digits and more.
_DIGITS = 1e-4
_ACQUISITIONS = {"normal": "SAM", "high_resolution": "HIR"}
_PREAMBLE = ":WFMO:NR_P?;:WFMO:PT_O?;:WFMO:XIN?;:WFMO:XZE?;:WFMO:YMU?;:WFMO:YOF?;:WFMO:YZE?"


class TektronixMsoConfig(DigitizerConfig):
    """A Tektronix MSO of the 4, 5 or 6 Series at an address, and the ranges of its inputs."""

    kind: Literal["tektronix_mso"]
    memory_samples: PositiveInt = Field(default=31_250_000, description="per record and input; 62.5 M in a 5 Series")
    acquisition: Literal["normal", "high_resolution"] = Field(
        default="high_resolution",
        description="high_resolution averages what is taken between two samples of the record: 12 to 16 bits",
    )

    def build(self) -> TektronixMso:
        """Not yet open."""
        return TektronixMso(self)


class TektronixMso(ScpiInstrument):
    """Takes single records of its raw samples, 16-bit words.

    An external trigger needs a model with an auxiliary input.
    """

    # The MSO4000 and MSO5000, which have longer names, speak otherwise.
    identity = "^TEKTRONIX,(MSO[456][468]|LPD64)(B|LP)?,"

    def __init__(self, config: TektronixMsoConfig) -> None:
        super().__init__(config.address, library=config.library, timeout_s=config.timeout_s)
        self._config = config
        self._taken: tuple[int, ...] = ()
        self._samples = 0

    @property
    def longest_record(self) -> int:
        """See `Digitizer.longest_record`."""
        return int(self._config.memory_samples / _NEXT_RATE)

    def check_errors(self) -> None:
        """Raise `DeviceFault` with all events that are errors or warnings."""
        # Reading the register makes its events readable.
        if int(self.query_number("*ESR?")) & _ERRORS:
            raise DeviceFault(f"{self.address}: the instrument reports {self.query('ALLE?')}")

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """See `Digitizer.configure`. The instrument takes a rate that it has, not below the one that is wanted."""
        wanted = {*inputs} if trigger.source == "external" else {*inputs, trigger.source}
        if unknown := sorted(wanted - set(self._config.inputs)):
            raise ConfigurationError(f"{self.address} has no input {unknown[0]} (inputs: {[*self._config.inputs]})")
        self._expect_memory(samples)
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
        until = time.monotonic() + self.timeout_s
        # A trigger may come at once.
        while not (self.query("TRIG:STATE?").upper().startswith("REA") or self._complete()):
            if time.monotonic() > until:
                self.check_errors()
                raise DeviceTimeout(f"{self.address}: it did not arm within {self.timeout_s:g} s")
            time.sleep(_LOOK_S)

    def wait(self, timeout_s: float) -> None:
        """See `Digitizer.wait`."""
        until = time.monotonic() + timeout_s
        while self.query_number("ACQ:STATE?"):
            if time.monotonic() > until:
                met = self.query("TRIG:STATE?").upper().startswith("TRIG")
                self.write("ACQ:STATE STOP")
                what = "the record was not complete" if met else "trigger not met"
                raise DeviceFault(f"{self.address}: {what} within {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def fetch(self) -> dict[int, Waveform]:
        """See `Digitizer.fetch`."""
        # Otherwise the instrument gives the record before.
        if not self._complete():
            raise DeviceFault(f"{self.address}: a record of {self._samples} samples was due, 0 came")
        return {number: self._fetch(number) for number in self._taken}

    def _complete(self) -> bool:
        return self.query_number("ACQ:NUMAC?") > 0

    def _expect_memory(self, samples: int) -> None:
        if samples > self._config.memory_samples:
            raise ConfigurationError(
                f"{self.address}: a record has at most {self._config.memory_samples} samples, {samples} are needed"
            )

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
        found, middle = self.query_number(f"{at}:SCA?"), self.query_number(f"{at}:OFFS?")
        if found < scale * (1 - _READ_BACK):
            raise DeviceFault(f"{self.address}: {at}:SCA is {found:g} V, and {scale:g} V was set")
        if abs(middle - offset) > _READ_BACK * (high - low):
            raise DeviceFault(f"{self.address}: {at}:OFFS is {middle:g} V, and {offset:g} V was set")

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
            raise DeviceFault(f"{self.address}: a record of {self._samples} samples was due, {len(raw)} came")
        volts = (raw.astype(np.float64) - yoff) * ymult + yzero
        # The first and the last of 256 steps: so it is whatever the number of bits.
        clipped = int(np.count_nonzero((raw < -0x7F00) | (raw >= 0x7F00)))
        return Waveform(volts, 1 / xinc, xzero - trigger_point * xinc, clipped)
