"""Below `generator:`, one that is driven by a class of PyMeasure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, DeviceTimeout
from reservoir_hw.drivers.visa.links import SCPI, Terminations
from reservoir_hw.drivers.visa.pymeasure.connection import (
    END,
    NAMES,
    Condition,
    PymeasureConfig,
    PymeasureInstrument,
    Reading,
    Step,
    channel_names,
    filled,
    for_each,
)
from reservoir_hw.drivers.visa.roles import (
    BurstGeneratorConfig,
    Output,
    RecordsConfig,
    SafeState,
    Trigger,
    Waveform,
    comes,
)

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


class PymeasureGenerator(PymeasureInstrument[PymeasureGeneratorConfig]):
    """An `Awg`: what is played is checked here before PyMeasure gets it."""

    def __init__(self, config: PymeasureGeneratorConfig) -> None:
        ((self._number, self._output),) = config.outputs.items()
        self._rate = config.sample_rate_hz or config.frequency_hz or ""
        known = {"output": self._number}
        steps = [*config.upload, *config.arm, *config.trigger]
        super().__init__(config, [*(filled(path, known) for step in steps for path in step.paths), self._rate])
        self._names: dict[str, Any] = {}

    @property
    def longest_waveform(self) -> int:
        """See `Awg.longest_waveform`."""
        return self._config.memory_samples - 1

    @property
    def safe_state(self) -> SafeState:
        """See `Awg.safe_state`."""
        config = self._config
        told = {"library": config.library, "timeout_s": config.timeout_s, "terminations": Terminations(write=END)}
        return SafeState(config.address, tuple(config.safe), SCPI.model_copy(update=told))

    def load(self, volts: Mapping[int, np.ndarray], sample_rate_hz: float) -> float:
        """See `Awg.load`."""
        config = self._config
        config.check(volts, sample_rate_hz, config.shortest_waveform)
        played = np.concatenate(([self._output.safe_v], volts[self._number]))
        known = {"output": self._number, "waveform": self._codes(played)}
        self._names = channel_names(self._output, len(played), sample_rate_hz) | known
        self._write("*CLS", *config.safe)
        self._play(config.upload)
        self._finish(max(config.timeout_s, len(played) / _SAMPLES_PER_S))
        # A frequency is that of the whole waveform.
        samples = 1 if config.sample_rate_hz else len(played)
        return self._set_number(self._rate, sample_rate_hz / samples) * samples

    def arm(self) -> None:
        """See `Awg.arm`."""
        self._play(self._config.arm)
        self._finish(self._config.timeout_s)

    def trigger(self) -> None:
        """See `Awg.trigger`."""
        self._play(self._config.trigger)

    def stop(self) -> None:
        """See `Awg.stop`."""
        self._write(*self._config.safe)
        self._finish(self._config.timeout_s)

    def _play(self, steps: Iterable[Step]) -> None:
        self._carry_out((step, self._names) for step in steps)

    def _codes(self, volts: np.ndarray) -> list[Any]:
        if self._config.codes is None:
            return volts.tolist()
        codes = np.interp(volts, self._output.range_v, self._config.codes)
        return np.rint(codes).astype(np.int64).tolist() if self._config.whole_codes else codes.tolist()


# ---- Below `digitizer:`, one that is driven by a class of PyMeasure.


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


class PymeasureDigitizerConfig(PymeasureConfig, RecordsConfig):
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


class PymeasureDigitizer(PymeasureInstrument[PymeasureDigitizerConfig]):
    """A `Digitizer`. What rate it took is known of a record that was fetched, and checked then."""

    def __init__(self, config: PymeasureDigitizerConfig) -> None:
        asked = [one.path for one in (config.armed, config.done, config.fetch) if one is not None]
        paths = [*(path for step in [*config.configure, *config.arm] for path in step.paths), *asked]
        super().__init__(config, [filled(path, {"input": number}) for path in paths for number in config.inputs])
        self._names: dict[int, dict[str, Any]] = {}
        self._taken: tuple[int, ...] = ()

    @property
    def longest_record(self) -> int:
        """See `Digitizer.longest_record`."""
        return self._config.memory_samples

    def configure(self, inputs: Sequence[int], trigger: Trigger, sample_rate_hz: float, samples: int) -> float:
        """See `Digitizer.configure`; returns the rate that was asked for."""
        config = self._config
        config.check(inputs, trigger, samples)
        # From the trigger to the middle of the record.
        timing = {**trigger.model_dump(), "centre_s": samples / sample_rate_hz / 2 - trigger.before_s}
        for number, channel in config.inputs.items():
            known = {**channel_names(channel, samples, sample_rate_hz), **timing, "input": number}
            words = {name: config.words.get(known[name], known[name]) for name in ("slope", "source", "coupling")}
            self._names[number] = {**known, **words}
        self._taken = tuple(inputs)
        self._write("*CLS")
        self._carry_out(for_each(config.configure, "input", self._names.values()))
        return sample_rate_hz

    def arm(self) -> None:
        """See `Digitizer.arm`."""
        config = self._config
        self._carry_out(for_each(config.arm, "input", self._names.values()))
        if config.armed is not None and not self._becomes(config.armed, config.timeout_s):
            raise DeviceTimeout(f"{config.address}: it did not arm within {config.timeout_s:g} s")

    def wait(self, timeout_s: float) -> None:
        """See `Digitizer.wait`."""
        if not self._becomes(self._config.done, timeout_s):
            raise DeviceFault(f"{self._config.address}: trigger not met within {timeout_s:g} s")

    def fetch(self) -> dict[int, Waveform]:
        """See `Digitizer.fetch`. Raises `DeviceFault` for a record that is shorter or slower than was asked for."""
        return {number: self._fetch(number) for number in self._taken}

    def _becomes(self, condition: Condition, timeout_s: float) -> bool:
        names = next(iter(self._names.values()))
        return comes(lambda: condition.met_by(self._ask(condition, names)), timeout_s)

    def _fetch(self, number: int) -> Waveform:
        config, names = self._config, self._names[number]
        result = self._ask(config.fetch, names)
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
