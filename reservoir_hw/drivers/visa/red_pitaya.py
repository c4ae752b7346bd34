"""Red Pitaya STEMlab 125-14: a generator and a digitizer at one address (SCPI server of Red Pitaya OS 2.00-30 and up).

A bench that uses it as both has one connection to it (`ScpiInstrument.share`): the error queue and the format of data
belong to a connection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.roles import (
    BurstGenerator,
    BurstGeneratorConfig,
    Input,
    InstrumentConfig,
    RecordDigitizer,
    RecordDigitizerConfig,
    Trigger,
    Waveform,
    load_share,
)

_IDENTITY = "^REDPITAYA,"
_END = "\r\n"
_BASE_RATE_HZ = 125e6
_BUFFER_SAMPLES = 16384
_FULL_SCALE = 8192
# Both converters have steps of 1.2e-4.
_DECIMALS = 6
_FREE_FACTORS, _COARSEST = 16, 65536
_RANGES_V = {"LV": 1.0, "HV": 20.0}
_AVERAGING = {"normal": "OFF", "high_resolution": "ON"}
_EDGES = {"rising": "PE", "falling": "NE"}


class RedPitayaConfig(InstrumentConfig):
    """A Red Pitaya at an address: `outputs` below `generator:`, `inputs` below `digitizer:`."""

    kind: Literal["red_pitaya"]


class RedPitayaGeneratorConfig(RedPitayaConfig, BurstGeneratorConfig):
    """What its outputs may play: ±1 V into a high impedance."""

    memory_samples: PositiveInt = _BUFFER_SAMPLES
    highest_sample_rate_hz: PositiveFloat = _BASE_RATE_HZ

    highest_v = 1.0
    smallest_vpp = 0.0

    def build(self) -> RedPitayaGenerator:
        """Not yet open."""
        return RedPitayaGenerator(self)


class RedPitayaDigitizerConfig(RedPitayaConfig, RecordDigitizerConfig):
    """The ranges of its inputs. They say how the jumpers are set: LV within ±1 V, otherwise HV, ±20 V."""

    memory_samples: PositiveInt = _BUFFER_SAMPLES

    @model_validator(mode="after")
    def _within_reach(self) -> Self:
        for number, channel in self.inputs.items():
            low, high = channel.range_v
            if max(-low, high) > _RANGES_V["HV"]:
                raise ValueError(f"inputs.{number}.range_v [{low:g}, {high:g}]: the instrument reaches ±20 V")
            if channel.coupling != "dc" or channel.impedance_ohm != 1_000_000:
                raise ValueError(f"inputs.{number}: the instrument has coupling dc and impedance_ohm 1000000 only")
        return self

    def build(self) -> RedPitayaDigitizer:
        """Not yet open."""
        return RedPitayaDigitizer(self)


class RedPitayaGenerator(BurstGenerator):
    """Each upload resets both outputs of the board."""

    identity, end = _IDENTITY, _END
    shortest = 2
    # Answers have six digits.
    read_back = 1e-5
    output_command = "OUTPUT{number}:STATE {state}"
    stop_commands: ClassVar[tuple[str, ...]] = ()

    def trigger(self) -> None:
        """See `Awg.trigger`. Several outputs begin together."""
        number, *others = self._loaded
        self.write("SOUR:TRIG:INT" if others else f"SOUR{number}:TRIG:INT")
        self.check_errors()

    def _load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> dict[int, float]:
        self.write("GEN:RST", "ACQ:DATA:FORMAT BIN")
        return {number: self._load_output(number, samples, sample_rate_hz) for number, samples in volts.items()}

    def _load_output(self, number: int, volts: np.ndarray, sample_rate_hz: float) -> float:
        output, source = self._config.outputs[number], f"SOUR{number}"
        # The instrument counts in volts into a high impedance.
        share = load_share(output.load_ohm)
        samples, safe = self._played(number, volts) / share, output.safe_v / share
        # The frequency is that of a whole buffer, however short the waveform is. It is kept in single precision.
        frequency = float(np.float32(sample_rate_hz / _BUFFER_SAMPLES))
        self.write(f"{source}:TRAC:DATA:DATA {_numbers(samples)}")
        self.finish("the upload", max(self.timeout_s, len(samples) / 1e4))
        self.check_errors()
        self._expect_samples(f"{source}:TRAC:DATA:DATA?", samples)
        self.write(
            f"{source}:FUNC ARBITRARY",
            f"{source}:FREQ:FIX {frequency!r}",
            f"{source}:VOLT 1",
            f"{source}:VOLT:OFFS 0",
            f"{source}:BURS:STAT BURST",
            f"{source}:BURS:NCYC 1",
            f"{source}:BURS:NOR 1",
            f"{source}:BURS:INITV {safe!r}",
            f"{source}:BURS:LASTV {safe!r}",
            f"{source}:TRIG:SOUR INT",
        )
        self.check_errors()
        for query, value in (
            (f"{source}:FREQ:FIX?", frequency),
            (f"{source}:VOLT?", 1.0),
            (f"{source}:VOLT:OFFS?", 0.0),
            (f"{source}:BURS:NCYC?", 1.0),
            (f"{source}:BURS:INITV?", safe),
            (f"{source}:BURS:LASTV?", safe),
        ):
            self._expect(query, value)
        return frequency * _BUFFER_SAMPLES

    def _expect_samples(self, query: str, samples: np.ndarray) -> None:
        found = self.query_block(query, ">f4")
        if len(found) != len(samples):
            raise DeviceFault(f"{self.address}: {query} has {len(found)} samples, and {len(samples)} were sent")
        wrong = np.abs(found - samples) > 10.0**-_DECIMALS
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DeviceFault(f"{self.address}: {query} has {found[at]:g} as sample {at}, and {samples[at]:g} was sent")


class RedPitayaDigitizer(RecordDigitizer):
    """An external trigger is that of the board's own generator."""

    identity, end = _IDENTITY, _END
    stop_command = "ACQ:STOP"

    _source = ""
    _rate_hz = _before_s = 0.0

    @property
    def longest_record(self) -> int:
        """See `Digitizer.longest_record`: up to 7.8 MS/s."""
        return self._config.memory_samples * _FREE_FACTORS // (_FREE_FACTORS + 1)

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """See `Digitizer.configure`. The rate is 125 MS/s divided by a whole number, not below the one wanted."""
        self._config.check(inputs, trigger, samples)
        if (factor := _factor(sample_rate_hz)) is None:
            raise ConfigurationError(
                f"{self.address}: it takes {_BASE_RATE_HZ:g} samples/s at most, and {sample_rate_hz:g} are needed"
            )
        rate = _BASE_RATE_HZ / factor
        # Of the same duration.
        points = math.ceil(samples * rate / sample_rate_hz * (1 - 1e-9))
        self._config.expect_memory(points)
        before = math.ceil(trigger.before_s * rate)
        # The trigger stands in the middle of the buffer, unless the end is delayed.
        delay = _BUFFER_SAMPLES // 2 - before
        self._source = "AWG_PE" if trigger.source == "external" else f"CH{trigger.source}_{_EDGES[trigger.slope]}"
        gains = {number: _gain(channel) for number, channel in self._config.inputs.items()}
        self.write(
            "*CLS",
            "ACQ:RST",
            "ACQ:DATA:FORMAT BIN",
            f"ACQ:DEC:FACTOR {factor}",
            f"ACQ:AVG {_AVERAGING[self._config.acquisition]}",
            *(f"ACQ:SOUR{number}:GAIN {gain}" for number, gain in gains.items()),
            f"ACQ:TRIG:DLY {delay}",
            f"ACQ:TRIG:LEV {trigger.level_v!r}",
        )
        self.check_errors()
        for query, value in (("ACQ:DEC:FACTOR?", factor), ("ACQ:TRIG:DLY?", delay)):
            if (found := self.query_number(query)) != value:
                raise DeviceFault(f"{self.address}: {query} says {found:g}, and {value} was set")
        for number, gain in gains.items():
            if (said := self.query(f"ACQ:SOUR{number}:GAIN?")) != gain:
                raise DeviceFault(f"{self.address}: input {number} has the gain {said}, and {gain} was set")
        self._taken, self._rate_hz, self._samples, self._before_s = tuple(inputs), rate, points, before / rate
        return rate

    def arm(self) -> None:
        """See `Digitizer.arm`."""
        self.write("ACQ:START")
        # What a record shows before its trigger must have been taken before the trigger may come.
        time.sleep(self._before_s)
        self.write(f"ACQ:TRIG {self._source}")
        self.check_errors()

    def _stopped(self) -> bool:
        return self.query("ACQ:TRIG:FILL?") == "1"

    def _triggered(self) -> bool:
        return self.query("ACQ:TRIG:STAT?") == "TD"

    def _fetch(self, number: int) -> Waveform:
        # Volts are calibrated by the board. Codes are not: only they say what was clipped.
        codes, volts = self._data(number, "RAW", ">i2"), self._data(number, "VOLTS", ">f4")
        clipped = int(np.count_nonzero((codes <= -_FULL_SCALE) | (codes >= _FULL_SCALE - 1)))
        return Waveform(volts.astype(np.float64), self._rate_hz, -self._before_s, clipped)

    def _data(self, number: int, units: str, dtype: str) -> np.ndarray:
        self.write(f"ACQ:DATA:UNITS {units}")
        data = self.query_block(f"ACQ:SOUR{number}:DATA:OLD:N? {self._samples}", dtype)
        if len(data) != self._samples:
            raise self._too_short(len(data))
        return data


def _numbers(samples: np.ndarray) -> str:
    digits = f"%.{_DECIMALS}f"
    return ",".join([digits % sample for sample in samples.tolist()])


def _factor(sample_rate_hz: float) -> int | None:
    """The largest division of the base rate that is not below a rate; None if there is none."""
    factor = min(int(_BASE_RATE_HZ / sample_rate_hz * (1 + 1e-9)), _COARSEST)
    if factor < 1:
        return None
    return factor if factor >= _FREE_FACTORS else 1 << factor.bit_length() - 1


def _gain(channel: Input) -> str:
    low, high = channel.range_v
    return "LV" if max(-low, high) <= _RANGES_V["LV"] else "HV"
