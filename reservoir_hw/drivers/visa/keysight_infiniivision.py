"""Keysight InfiniiVision oscilloscopes (InfiniiVision 3000T X-Series Programmer's Guide)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, DeviceTimeout, ProtocolError
from reservoir_hw.drivers.visa.roles import DigitizerConfig, Input, Trigger, Waveform
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

_RUNNING = 8  # bit 3 of the operation status condition register
_LOOK_S = 0.002
_TIME_DIVISIONS = 10
_READ_BACK = 0.05
# Sample rates go in steps of 1, 2, 5, 10.
_NEXT_RATE = 2.5
_ACQUISITIONS = {"normal": "NORM", "high_resolution": "HRES"}


class KeysightInfiniiVisionConfig(DigitizerConfig):
    """A Keysight InfiniiVision at an address, and the ranges of its inputs."""

    kind: Literal["keysight_infiniivision"]
    memory_samples: PositiveInt = Field(default=1_000_000, description="per record and input")
    acquisition: Literal["normal", "high_resolution"] = Field(
        default="high_resolution",
        description="high_resolution averages what is taken between two samples of the record: 12 bits instead of 8",
    )

    def build(self) -> KeysightInfiniiVision:
        """Not yet open."""
        return KeysightInfiniiVision(self)


class KeysightInfiniiVision(ScpiInstrument):
    """Takes single records of its raw samples, 16-bit words."""

    errors = ":SYST:ERR?"
    identity = "^(AGILENT TECHNOLOGIES|KEYSIGHT TECHNOLOGIES),[A-Z]{2,4}-X "

    def __init__(self, config: KeysightInfiniiVisionConfig) -> None:
        super().__init__(config.address, library=config.library, timeout_s=config.timeout_s)
        self._config = config
        self._taken: tuple[int, ...] = ()
        self._samples = 0

    @property
    def longest_record(self) -> int:
        """See `Digitizer.longest_record`."""
        return int(self._config.memory_samples / _NEXT_RATE)

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """See `Digitizer.configure`. The instrument takes the rate that its time base and its memory give."""
        wanted = {*inputs} if trigger.source == "external" else {*inputs, trigger.source}
        if unknown := sorted(wanted - set(self._config.inputs)):
            raise ConfigurationError(f"{self.address} has no input {unknown[0]} (inputs: {[*self._config.inputs]})")
        if samples > self._config.memory_samples:
            raise ConfigurationError(
                f"{self.address}: a record has at most {self._config.memory_samples} samples, {samples} are needed"
            )
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
        if rate < sample_rate_hz * (1 - _READ_BACK):
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
        until = time.monotonic() + self.timeout_s
        while self.query(":AER?") not in ("1", "+1"):
            if time.monotonic() > until:
                self.check_errors()
                raise DeviceTimeout(f"{self.address}: it did not arm within {self.timeout_s:g} s")
            time.sleep(_LOOK_S)

    def wait(self, timeout_s: float) -> None:
        """See `Digitizer.wait`."""
        until = time.monotonic() + timeout_s
        while int(self.query_number(":OPER:COND?")) & _RUNNING:
            if time.monotonic() > until:
                met = self.query(":TER?") in ("1", "+1")
                self.write(":STOP")
                what = "the record was not complete" if met else "trigger not met"
                raise DeviceFault(f"{self.address}: {what} within {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def fetch(self) -> dict[int, Waveform]:
        """See `Digitizer.fetch`."""
        return {number: self._fetch(number) for number in self._taken}

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
        found, middle = self.query_number(f"{at}:RANG?"), self.query_number(f"{at}:OFFS?")
        if found < (high - low) * (1 - _READ_BACK):
            raise DeviceFault(f"{self.address}: {at}:RANG is {found:g} V, and {high - low:g} V was set")
        # The instrument takes the nearest offset that it has, and reports no error.
        if abs(middle - (high + low) / 2) > _READ_BACK * (high - low):
            raise DeviceFault(f"{self.address}: {at}:OFFS is {middle:g} V, and {(high + low) / 2:g} V was set")

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
            raise DeviceFault(f"{self.address}: a record of {self._samples} samples was due, {len(raw)} came")
        volts = (raw.astype(np.float64) - yref) * yinc + yorg
        # The guide: 0 is a hole, 1 clipped low and the highest value clipped high; of bytes, shifted or not.
        clipped = int(np.count_nonzero((raw < 0x0200) | (raw >= 0xFF00)))
        return Waveform(volts, 1 / xinc, xorg - xref * xinc, clipped)
