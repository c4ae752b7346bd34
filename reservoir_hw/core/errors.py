"""One tree of errors. Each also derives from the built-in that a caller would expect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ReservoirError(Exception):
    """Base of everything this package raises on purpose.

    A message says what happened, where (file, address, step), the likely cause and what to try next.
    """


class ConfigurationError(ReservoirError, ValueError):
    """The configuration cannot be used: unknown key, wrong type, values that do not fit together."""


class MissingExtra(ReservoirError, ImportError):
    """An optional dependency is needed; the message names the pip command that installs it."""


class OutOfMemory(ReservoirError, MemoryError):
    """There is not enough memory on this machine, or on its GPU; the message says what would fit."""


class NotOpen(ReservoirError, RuntimeError):
    """A reservoir was used before `open()` or after `close()`."""


class ShapeError(ReservoirError, ValueError):
    """An array has the wrong number of axes, or an axis of the wrong length."""


class InputRangeError(ReservoirError, ValueError):
    """An input is not finite, or lies outside the range that the device declares."""


class NotSupported(ReservoirError, NotImplementedError):
    """The device does not declare this capability; the message gives the declared reason."""


class StateLost(ReservoirError, RuntimeError):
    """The device no longer holds the state that the call would have continued from."""


class Discontinuity(StateLost):
    """A device with its own clock went on without inputs, or its states could not be taken in time.

    `step` is the first time step that is not what it should be.
    """

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        # Devices count with numpy, whose numbers do not travel.
        self.step = int(step)


class CalibrationError(ReservoirError, RuntimeError):
    """The calibration is missing, too old, or belongs to another device."""


class DeviceError(ReservoirError):
    """Base of what goes wrong at the device.

    `steps_done` says how many time steps were completed before the fault, `states` holds them:
    (batch, steps_done, nodes), or None where nothing was harvested.
    """

    def __init__(self, message: str, *, steps_done: int = 0, states: Any = None) -> None:
        super().__init__(message)
        self.steps_done = int(steps_done)
        self.states = states


class DeviceTimeout(DeviceError, TimeoutError):
    """The device did not answer in time."""


class DeviceDisconnected(DeviceError, ConnectionError):
    """The connection to the device is gone."""


class ProtocolError(DeviceError, ValueError):
    """The device answered something that the protocol does not allow."""


class DeviceFault(DeviceError, RuntimeError):
    """The device reports a fault, or returned states that cannot be true (NaN, wrong shape)."""


class OutputFault(DeviceFault):
    """A model beside its device gives outputs that are not finite.

    `outputs` are those of the same call before them: (batch, steps_done, outputs).
    """

    def __init__(self, message: str, *, outputs: Any) -> None:
        super().__init__(message, steps_done=outputs.shape[1])
        self.outputs = outputs


class StreamStopped(DeviceError, RuntimeError):
    """A live stream of answers cannot go on: it is late, what it would say is not to be used, or nobody reads it."""


class DeviceBusy(DeviceError, RuntimeError):
    """Another process owns the device; the message names the owner."""


def text_of(error: BaseException) -> str:
    """Its message, also where somebody's class fails to give one."""
    try:
        return str(error)
    except Exception:
        return "(an error whose message cannot be read)"


@contextmanager
def extra(name: str, why: str) -> Iterator[None]:
    """Around imports that need an extra: where one fails, `MissingExtra` says `why`, and the pip command."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{why}: pip install 'reservoir-hw[{name}]' ({error})") from error
