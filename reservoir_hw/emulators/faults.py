"""Planned faults of emulated instruments: what goes wrong, at which command, and at its how-manieth occurrence.

    faults:
      - {kind: busy, instrument: generator, at: "DATA:ARB:DAC", seconds: 3}
      - {kind: disconnect, instrument: digitizer, at: ":WAV:DATA?", occurrence: 5, times: 2}

They strike between server and instrument: drivers meet them as they would in a lab.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.emulators.scpi.instrument import MessageDevice
from reservoir_hw.emulators.scpi.messages import ScpiError, definite_block

Execute = Callable[[], bytes]

# What the header of a message, and no block, may be longer than.
_HEADER_BYTES = 200
# How often an instrument that does nothing looks whether its client has gone.
_LOOK_S = 0.01


class PlannedFault(Config):
    """Strikes at the `occurrence`-th time, and so many times."""

    kind: Any
    occurrence: PositiveInt = 1
    times: PositiveInt | None = Field(default=1, description="null: from then on always")

    def is_due(self, count: int) -> bool:
        """Whether it strikes at this occurrence."""
        return self.occurrence <= count and (self.times is None or count < self.occurrence + self.times)


class _Fault(PlannedFault):
    """Counts messages with `at` in their beginning."""

    instrument: Literal["generator", "digitizer", "source", "switch", "supply"]
    at: str = Field(min_length=1, description="a part of the message, as it is sent, in upper or lower case")

    @abstractmethod
    def strike(self, device: MessageDevice, execute: Execute, cancelled: Callable[[], bool]) -> bytes:
        """The answer to a message that `execute` would carry out."""


class Delayed(_Fault):
    """For some time nothing is done: before the message is carried out (busy), or before its answer is sent (slow).

    If its client goes meanwhile, it gets no answer, and what is busy does not carry the message out.
    """

    kind: Literal["busy", "slow"]
    seconds: PositiveFloat

    def strike(self, device: MessageDevice, execute: Execute, cancelled: Callable[[], bool]) -> bytes:
        """As `_Fault.strike`."""
        answer = execute() if self.kind == "slow" else None
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            if cancelled():
                return b""
            time.sleep(_LOOK_S)
        return execute() if answer is None else answer


class QueuedError(_Fault):
    """The message is carried out, and an error stands in the queue."""

    kind: Literal["error"]
    code: int = -310

    def strike(self, device: MessageDevice, execute: Execute, cancelled: Callable[[], bool]) -> bytes:
        """As `_Fault.strike`."""
        answer = execute()
        device.report(ScpiError(self.code))
        return answer


class Struck(_Fault):
    """Nothing happens, the connection is dropped, or a block is shorter than it should be."""

    kind: Literal["ignored", "disconnect", "short_block", "wrong_length"]

    def strike(self, device: MessageDevice, execute: Execute, cancelled: Callable[[], bool]) -> bytes:
        """As `_Fault.strike`."""
        match self.kind:
            case "ignored":
                # A trigger that never comes.
                return b""
            case "disconnect":
                # The message is not carried out.
                raise ConnectionResetError("a planned fault")
            case "short_block":
                # The block is shorter than its header says.
                answer = execute()
                return answer[: len(answer) // 2]
            case "wrong_length":
                # It has half of the bytes that were asked for, and says so.
                payload = _payload(execute())
                return definite_block(payload[: len(payload) // 4 * 2], digits=8)


class Clipped(_Fault):
    """The first part of a block reads as beyond the converter's range."""

    kind: Literal["clipped"]
    bytes: PositiveInt = 100
    signed: bool = Field(default=False, description="its numbers are: 7F7F is the upper end of the range, and not FFFF")

    def strike(self, device: MessageDevice, execute: Execute, cancelled: Callable[[], bool]) -> bytes:
        """As `_Fault.strike`."""
        payload = _payload(execute())
        return definite_block((b"\x7f" if self.signed else b"\xff") * self.bytes + payload[self.bytes :], digits=8)


Fault = Annotated[Delayed | QueuedError | Struck | Clipped, Field(discriminator="kind")]


class FaultPlan(Config):
    """A file for `emulate bench --faults`."""

    faults: list[Fault] = Field(default_factory=list)

    def of(self, instrument: str) -> list[Fault]:
        """Those of one instrument."""
        return [fault for fault in self.faults if fault.instrument == instrument]


class FaultyInstrument:
    """An instrument as servers see it, with its faults. `struck` has the kinds that struck, in their order."""

    def __init__(self, device: MessageDevice, faults: Sequence[Fault]) -> None:
        self.struck: list[str] = []
        self._device, self._faults = device, list(faults)
        self._counts = [0] * len(self._faults)

    def execute(self, message: bytes | bytearray, cancelled: Callable[[], bool]) -> bytes:
        """As `MessageDevice.execute`."""
        begin = bytes(message[:_HEADER_BYTES]).decode("latin-1").upper()
        for number, fault in enumerate(self._faults):
            if fault.at.upper() in begin:
                self._counts[number] += 1
                if fault.is_due(self._counts[number]):
                    self.struck.append(fault.kind)
                    return fault.strike(self._device, lambda: self._device.execute(message, cancelled), cancelled)
        return self._device.execute(message, cancelled)

    def report(self, error: ScpiError) -> None:
        """As `MessageDevice.report`."""
        self._device.report(error)

    def status_byte(self) -> int:
        """As `MessageDevice.status_byte`."""
        return self._device.status_byte()


Served = MessageDevice | FaultyInstrument
"""An instrument as servers see it."""


def _payload(answer: bytes) -> bytes:
    """Of a definite-length block."""
    return answer[2 + int(answer[1:2]) :]
