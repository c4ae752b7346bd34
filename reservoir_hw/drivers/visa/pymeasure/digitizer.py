"""Below `digitizer:`, one that is driven by a class of PyMeasure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, DeviceTimeout
from reservoir_hw.drivers.visa.pymeasure.configuration import NAMES, PymeasureConfig, range_names
from reservoir_hw.drivers.visa.pymeasure.connection import PymeasureConnection
from reservoir_hw.drivers.visa.pymeasure.steps import Condition, Reading, Step, filled, for_each
from reservoir_hw.drivers.visa.roles import DigitizerConfig, Input, Trigger, Waveform

_LOOK_S = 0.002
_READ_BACK = 0.05
# Of a range, at each of its ends: a step of a converter of 8 bits.
_CLIPPED = 1 / 256


class Fetch(Reading):
    """A record of one input, and where in it its volts and its times are: keys and indices, one after another."""

    volts: list[int | str] = Field(default_factory=list, description="an array; by default the result itself")
    times_s: list[int | str] | None = Field(default=None, description="an array, 0 at the trigger")
    interval_s: list[int | str] | None = Field(default=None, description="without times_s: between two samples")
    start_s: list[int | str] | None = Field(default=None, description="without times_s: of the first sample")

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        both = self.interval_s is not None and self.start_s is not None
        if (self.times_s is not None) == both:
            raise ValueError("either times_s, or interval_s and start_s, say when the samples were taken")
        return self


class PymeasureDigitizerConfig(PymeasureConfig, DigitizerConfig):
    """A digitizer that takes single records. A step that has {input} is carried out for each input."""

    memory_samples: PositiveInt = Field(description="per record and input, at any rate that is asked for")
    words: dict[Literal["rising", "falling", "external", "dc", "ac"], Any] = Field(
        default_factory=dict, description="what {slope}, {source} and {coupling} are called by the instrument"
    )
    configure: list[Step] = Field(min_length=1, description="inputs, time base and trigger")
    arm: list[Step] = Field(min_length=1, description="take the next record")
    armed: Condition | None = Field(
        default=None, description="when it waits for the trigger; null: it does when `arm` is done"
    )
    done: Condition = Field(description="when the record is complete")
    fetch: Fetch = Field(description="the record of {input}")

    steps = ("configure", "arm", "armed", "done", "fetch")
    names = NAMES | {
        "input", "coupling", "impedance_ohm", "before_s", "centre_s", "source", "level_v", "slope",
    }  # fmt: skip

    def build(self) -> PymeasureDigitizer:
        """Not yet open. Raises `MissingExtra` without PyMeasure."""
        return PymeasureDigitizer(self)


class PymeasureDigitizer:
    """A `Digitizer`. What rate it took is known of a record that was fetched, and checked then."""

    def __init__(self, config: PymeasureDigitizerConfig) -> None:
        self._config = config
        asked = [one for one in (config.armed, config.done, config.fetch) if one is not None]
        paths = [*(path for step in [*config.configure, *config.arm] for path in step.paths), *(a.path for a in asked)]
        self._connection = PymeasureConnection(
            config, [filled(path, {"input": number}) for path in paths for number in config.inputs]
        )
        self._names: dict[int, dict[str, Any]] = {}
        self._taken: tuple[int, ...] = ()

    @property
    def idn(self) -> str:
        """See `Instrument.idn`."""
        return self._connection.idn

    @property
    def longest_record(self) -> int:
        """See `Digitizer.longest_record`."""
        return self._config.memory_samples

    def open(self) -> Self:
        """See `Instrument.open`."""
        self._connection.open()
        return self

    def close(self) -> None:
        """See `Instrument.close`."""
        self._connection.close()

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """See `Digitizer.configure`; returns the rate that was asked for."""
        config = self._config
        wanted = {*inputs} if trigger.source == "external" else {*inputs, trigger.source}
        if unknown := sorted(wanted - set(config.inputs)):
            raise ConfigurationError(f"{config.address} has no input {unknown[0]} (inputs: {[*config.inputs]})")
        if samples > config.memory_samples:
            raise ConfigurationError(
                f"{config.address}: a record has at most {config.memory_samples} samples, {samples} are needed"
            )
        timing = _timing(trigger, sample_rate_hz, samples)
        for number, channel in config.inputs.items():
            known = {**timing, **_range(number, channel)}
            words = {name: config.words.get(known[name], known[name]) for name in ("slope", "source", "coupling")}
            self._names[number] = {**known, **words}
        self._taken = tuple(inputs)
        self._connection.write("*CLS")
        self._carry_out(config.configure)
        return sample_rate_hz

    def arm(self) -> None:
        """See `Digitizer.arm`."""
        self._carry_out(self._config.arm)
        limit = self._config.timeout_s
        if self._config.armed is not None and not self._becomes(self._config.armed, limit):
            raise DeviceTimeout(f"{self._config.address}: it did not arm within {limit:g} s")

    def wait(self, timeout_s: float) -> None:
        """See `Digitizer.wait`."""
        if not self._becomes(self._config.done, timeout_s):
            raise DeviceFault(f"{self._config.address}: trigger not met within {timeout_s:g} s")

    def fetch(self) -> dict[int, Waveform]:
        """See `Digitizer.fetch`. Raises `DeviceFault` for a record that is shorter or slower than was asked for."""
        return {number: self._fetch(number) for number in self._taken}

    def _carry_out(self, steps: Iterable[Step]) -> None:
        self._connection.carry_out(for_each(steps, "input", self._names.values()))

    def _becomes(self, condition: Condition, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        names = next(iter(self._names.values()))
        while not condition.met_by(self._connection.ask(condition, names)):
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)
        return True

    def _fetch(self, number: int) -> Waveform:
        config, names = self._config, self._names[number]
        result = self._connection.ask(config.fetch, names)
        where = f"{config.address}: the result of {config.fetch.path}"
        volts = np.asarray(as_numpy(_at(result, config.fetch.volts, where)), np.float64)
        if volts.ndim != 1 or len(volts) < 2:
            raise DeviceFault(f"{where}: an array (time,) of volts was due, this has the shape {volts.shape}")
        if config.fetch.times_s is not None:
            times = np.asarray(_at(result, config.fetch.times_s, where), np.float64)
            start_s, interval_s = float(times[0]), float(times[-1] - times[0]) / (len(times) - 1)
        else:
            start_s = float(_at(result, config.fetch.start_s, where))
            interval_s = float(_at(result, config.fetch.interval_s, where))
        rate, duration_s = names["sample_rate_hz"], names["duration_s"]
        if interval_s * rate > 1 + _READ_BACK:
            raise DeviceFault(
                f"{where}: it has {1 / interval_s:g} samples/s, and {rate:g} were asked for: "
                "take a smaller memory_samples, so that records are shorter"
            )
        if (len(volts) + 1) * interval_s < duration_s:
            raise DeviceFault(f"{where}: a record of {duration_s:g} s was due, {len(volts) * interval_s:g} s came")
        step_v = names["span_v"] * _CLIPPED
        clipped = int(np.count_nonzero((volts < names["low_v"] + step_v) | (volts >= names["high_v"] - step_v)))
        return Waveform(volts, 1 / interval_s, start_s, clipped)


def _at(result: Any, path: Any, where: str) -> Any:
    for key in path:
        try:
            result = result[key]
        except (LookupError, TypeError) as error:
            raise ConfigurationError(f"{where} has no {key!r}: {type(error).__name__}: {error}") from error
    return result


def _range(number: int, channel: Input) -> dict[str, Any]:
    return {
        **range_names(channel.range_v),
        "input": number,
        "coupling": channel.coupling,
        "impedance_ohm": channel.impedance_ohm,
    }


def _timing(trigger: Trigger, sample_rate_hz: float, samples: int) -> dict[str, Any]:
    duration_s = samples / sample_rate_hz
    return {
        "samples": samples,
        "sample_rate_hz": sample_rate_hz,
        "duration_s": duration_s,
        "before_s": trigger.before_s,
        # From the trigger to the middle of the record.
        "centre_s": duration_s / 2 - trigger.before_s,
        "source": trigger.source,
        "level_v": trigger.level_v,
        "slope": trigger.slope,
    }
