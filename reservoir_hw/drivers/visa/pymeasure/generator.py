"""Below `generator:`, one that is driven by a class of PyMeasure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from reservoir_hw.drivers.visa.burst_generator import BurstGeneratorConfig
from reservoir_hw.drivers.visa.pymeasure.configuration import END, NAMES, PymeasureConfig, range_names
from reservoir_hw.drivers.visa.pymeasure.connection import PymeasureConnection
from reservoir_hw.drivers.visa.pymeasure.steps import Step, filled
from reservoir_hw.drivers.visa.roles import Output, SafeState

# A text has about six characters for each sample, and some instruments are slow to read it.
_SAMPLES_PER_S = 1e4


class PymeasureGeneratorConfig(PymeasureConfig, BurstGeneratorConfig):
    """A generator of one output that plays a waveform once for each trigger."""

    outputs: dict[int, Output] = Field(min_length=1, max_length=1, description="one, by its number")
    shortest_waveform: PositiveInt = Field(default=2, description="in samples")
    codes: tuple[float, float] | None = Field(
        default=None, description="what {waveform} has for the ends of range_v, such as [-32767, 32767]; null: volts"
    )
    whole_codes: bool = Field(default=True, description="codes are whole numbers")
    upload: list[Step] = Field(min_length=1, description="until the output plays {waveform} once for each trigger")
    sample_rate_hz: str | None = Field(default=None, description="the attribute that is the sample rate")
    frequency_hz: str | None = Field(
        default=None, description="where there is none: the attribute that is the frequency of the whole waveform"
    )
    arm: list[Step] = Field(min_length=1, description="switch the output on")
    trigger: list[Step] = Field(min_length=1, description="play")
    safe: list[str] = Field(min_length=1, description="SCPI commands that switch the output off: the guard sends them")

    # The class of PyMeasure knows its instrument.
    highest_v = math.inf
    smallest_vpp = 0.0

    steps = ("upload", "arm", "trigger")
    names = NAMES | {"output", "waveform", "load_ohm", "safe_v"}

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.sample_rate_hz is None) == (self.frequency_hz is None):
            raise ValueError("either sample_rate_hz or frequency_hz names the attribute that says how fast it plays")
        return self

    def build(self) -> PymeasureGenerator:
        """Not yet open. Raises `MissingExtra` without PyMeasure."""
        return PymeasureGenerator(self)


class PymeasureGenerator:
    """An `Awg`: what is played is checked here before PyMeasure gets it."""

    def __init__(self, config: PymeasureGeneratorConfig) -> None:
        self._config = config
        ((self._number, self._output),) = config.outputs.items()
        steps = [*config.upload, *config.arm, *config.trigger]
        self._rate = config.sample_rate_hz or config.frequency_hz or ""
        known = {"output": self._number}
        paths = [filled(path, known) for step in steps for path in [*step.paths]]
        self._connection = PymeasureConnection(config, [*paths, self._rate])
        self._names: dict[str, Any] = {}

    @property
    def idn(self) -> str:
        """See `Instrument.idn`."""
        return self._connection.idn

    @property
    def longest_waveform(self) -> int:
        """See `Awg.longest_waveform`."""
        return self._config.memory_samples - 1

    @property
    def safe_state(self) -> SafeState:
        """See `Awg.safe_state`."""
        config = self._config
        return SafeState(config.address, tuple(config.safe), config.library, config.timeout_s, END)

    def open(self) -> Self:
        """See `Instrument.open`."""
        self._connection.open()
        return self

    def close(self) -> None:
        """See `Instrument.close`."""
        self._connection.close()

    def load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> float:
        """See `Awg.load`."""
        config = self._config
        config.check(volts, sample_rate_hz, config.shortest_waveform)
        played = np.concatenate(([self._output.safe_v], volts[self._number]))
        self._names = _names(self._number, self._output, played, sample_rate_hz) | {"waveform": self._codes(played)}
        self._connection.write("*CLS", *config.safe)
        self._carry_out(config.upload)
        self._connection.finish(max(config.timeout_s, len(played) / _SAMPLES_PER_S))
        # A frequency is that of the whole waveform.
        samples = 1 if config.sample_rate_hz else len(played)
        return self._connection.set_number(self._rate, sample_rate_hz / samples) * samples

    def arm(self) -> None:
        """See `Awg.arm`."""
        self._carry_out(self._config.arm)
        self._connection.finish(self._config.timeout_s)

    def trigger(self) -> None:
        """See `Awg.trigger`."""
        self._carry_out(self._config.trigger)

    def stop(self) -> None:
        """See `Awg.stop`."""
        self._connection.write(*self._config.safe)
        self._connection.finish(self._config.timeout_s)

    def _carry_out(self, steps: Any) -> None:
        self._connection.carry_out((step, self._names) for step in steps)

    def _codes(self, volts: np.ndarray) -> list[Any]:
        if self._config.codes is None:
            return volts.tolist()
        codes = np.interp(volts, self._output.range_v, self._config.codes)
        return np.rint(codes).astype(np.int64).tolist() if self._config.whole_codes else codes.tolist()


def _names(number: int, output: Output, played: np.ndarray, sample_rate_hz: float) -> dict[str, Any]:
    return {
        **range_names(output.range_v),
        "output": number,
        "load_ohm": output.load_ohm,
        "safe_v": output.safe_v,
        "samples": len(played),
        "sample_rate_hz": sample_rate_hz,
        "duration_s": len(played) / sample_rate_hz,
    }
