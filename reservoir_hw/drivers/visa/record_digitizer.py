"""What drivers of digitizers that take single records have in common."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, DeviceTimeout
from reservoir_hw.drivers.visa.roles import DigitizerConfig, Input, Trigger, Waveform
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

# Instruments take the nearest rate that they have. Neighbours differ by a factor of 2 or 2.5.
NEXT_RATE = 2.5
_LOOK_S = 0.002
_READ_BACK = 0.05


class RecordsConfig(DigitizerConfig):
    """A digitizer whose records are as long as its memory."""

    memory_samples: PositiveInt

    def check(self, inputs: Sequence[int], trigger: Trigger, samples: int) -> None:
        """Raise `ConfigurationError` for inputs that are not there, and for records that are too long."""
        wanted = {*inputs} if trigger.source == "external" else {*inputs, trigger.source}
        if unknown := sorted(wanted - set(self.inputs)):
            raise ConfigurationError(f"{self.address} has no input {unknown[0]} (inputs: {[*self.inputs]})")
        self.expect_memory(samples)

    def expect_memory(self, samples: int) -> None:
        """Raise `ConfigurationError` for records that are too long."""
        if samples > self.memory_samples:
            raise ConfigurationError(
                f"{self.address}: a record has at most {self.memory_samples} samples, {samples} are needed"
            )


class RecordDigitizerConfig(RecordsConfig):
    """A digitizer at an address, and the ranges of its inputs."""

    acquisition: Literal["normal", "high_resolution"] = Field(
        default="high_resolution",
        description="high_resolution averages what is taken between two samples of the record: 12 bits or more",
    )


class RecordDigitizer(ScpiInstrument):
    """Takes single records of its raw samples."""

    stop_command: ClassVar[str]
    """Ends a record that has waited too long."""

    def __init__(self, config: RecordDigitizerConfig) -> None:
        super().__init__(config.address, library=config.library, timeout_s=config.timeout_s)
        self._config = config
        self._taken: tuple[int, ...] = ()
        self._samples = 0

    @property
    def longest_record(self) -> int:
        """See `Digitizer.longest_record`."""
        return int(self._config.memory_samples / NEXT_RATE)

    def wait(self, timeout_s: float) -> None:
        """See `Digitizer.wait`."""
        if not comes(self._stopped, timeout_s):
            what = "the record was not complete" if self._triggered() else "trigger not met"
            self.write(self.stop_command)
            raise DeviceFault(f"{self.address}: {what} within {timeout_s:g} s")

    def fetch(self) -> dict[int, Waveform]:
        """See `Digitizer.fetch`."""
        return {number: self._fetch(number) for number in self._taken}

    @abstractmethod
    def _stopped(self) -> bool: ...

    @abstractmethod
    def _triggered(self) -> bool: ...

    @abstractmethod
    def _fetch(self, number: int) -> Waveform: ...

    def _expect_range(self, channel: Input, width: str, width_v: float, middle: str) -> None:
        """Read two settings back: `width`, which was set to `width_v`, and `middle`, to the middle of the range."""
        (low, high), middle_v = channel.range_v, sum(channel.range_v) / 2
        if (found := self.query_number(f"{width}?")) < width_v * (1 - _READ_BACK):
            raise DeviceFault(f"{self.address}: {width} is {found:g} V, and {width_v:g} V was set")
        # Instruments take the nearest offset that they have, some without an error.
        if abs((found := self.query_number(f"{middle}?")) - middle_v) > _READ_BACK * (high - low):
            raise DeviceFault(f"{self.address}: {middle} is {found:g} V, and {middle_v:g} V was set")

    def _expect_armed(self, armed: Callable[[], bool]) -> None:
        if not comes(armed, self.timeout_s):
            self.check_errors()
            raise DeviceTimeout(f"{self.address}: it did not arm within {self.timeout_s:g} s")

    def _too_short(self, samples: int) -> DeviceFault:
        return DeviceFault(f"{self.address}: a record of {self._samples} samples was due, {samples} came")


def comes(asked: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it becomes true within so long. It is asked again and again."""
    until = time.monotonic() + timeout_s
    while not asked():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True
