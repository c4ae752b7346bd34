"""Planned faults of an emulated board: what goes wrong on its line, and with it.

    seed: 1
    faults:
      - {kind: flip, direction: to_host, rate: 0.01}
      - {kind: drop, direction: to_board, operation: run, occurrence: 5, times: 2}
      - {kind: reboot, occurrence: 100}

A frame, or a line of text, is struck between the line and the board. Hosts meet it as they would with a bad cable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.seeds import generator
from reservoir_hw.emulators.board.board import (
    ANSWER,
    NAK,
    Code,
    Damaged,
    Device,
    DeviceProblem,
    Operation,
    TooLong,
    body_of,
)
from reservoir_hw.emulators.faults import PlannedFault

Direction = Literal["to_board", "to_host"]
OperationName = Literal["ping", "info", "attach", "reset", "step", "run", "status", "detach", "nak"]

_LONGEST = (1 << 16) - 1


class _Fault(PlannedFault):
    """Strikes at the `occurrence`-th time and so many times, or now and then."""

    rate: float | None = Field(default=None, ge=0, le=1, description="probability, instead of occurrence and times")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.rate is not None and self.model_fields_set & {"occurrence", "times"}:
            raise ValueError("give either rate, or occurrence and times")
        return self

    def strikes(self, count: int, random: np.random.Generator) -> bool:
        """Whether it does at this occurrence."""
        return self.is_due(count) if self.rate is None else random.random() < self.rate


class _AtFrame(_Fault):
    """Strikes when a frame comes."""

    operation: OperationName | None = Field(default=None, description="counts only such frames")


class _FrameFault(_AtFrame):
    """Strikes a frame on its way; `strike` gets it with its byte 0, and returns what arrives."""

    direction: Direction

    def strike(self, frame: bytes, random: np.random.Generator) -> bytes:
        """What arrives: by default the frame as it is."""
        return frame


class Struck(_FrameFault):
    """It is lost, comes twice, or comes otherwise than it was sent."""

    kind: Literal["drop", "repeat", "flip", "cut", "short", "digit"]

    def strike(self, frame: bytes, random: np.random.Generator) -> bytes:
        """As `_FrameFault.strike`."""
        return _STRUCK[self.kind](frame, random)


def _flipped(frame: bytes, random: np.random.Generator) -> bytes:
    """One to three bits, anywhere."""
    flipped = bytearray(frame)
    # Different bits: the same one twice would be no damage.
    for bit in random.choice(8 * len(frame), size=int(random.integers(1, 4)), replace=False).tolist():
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _other_digit(frame: bytes, random: np.random.Generator) -> bytes:
    """Of a line of text, one digit is another one: nobody can see that."""
    places = [at for at, byte in enumerate(frame) if chr(byte).isdigit()]
    changed = bytearray(frame)
    if places:
        at = int(random.choice(places))
        changed[at] = ord("0") + (changed[at] - ord("0") + int(random.integers(1, 10))) % 10
    return bytes(changed)


_STRUCK: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "drop": lambda frame, random: b"",
    "repeat": lambda frame, random: frame + frame,
    "flip": _flipped,
    # Its end is missing, and the byte 0 with it.
    "cut": lambda frame, random: frame[: int(random.integers(len(frame)))],
    # Its end is missing, but not the byte that ends it.
    "short": lambda frame, random: frame[: int(random.integers(len(frame)))] + frame[-1:],
    "digit": _other_digit,
}


class Noise(_FrameFault):
    """Garbage comes before it."""

    kind: Literal["noise"]
    bytes: PositiveInt = 16

    def strike(self, frame: bytes, random: np.random.Generator) -> bytes:
        """As `_FrameFault.strike`."""
        return random.bytes(self.bytes) + frame


class Stall(_FrameFault):
    """It comes later, and what is behind it, too."""

    kind: Literal["stall"]
    seconds: PositiveFloat


class Interruption(_AtFrame):
    """A frame to the board finds it just switched on, and is lost; or the cable falls out with it for good.

    A board that is unplugged runs on.
    """

    kind: Literal["reboot", "unplug"]


class DeviceFails(_Fault):
    """A step of the device fails."""

    kind: Literal["device"]
    code: Literal[12, 13, 14, 19] = Field(default=13, description="error of docs/serial-protocol.md")
    text: str = "a planned fault"


Fault = Annotated[Struck | Noise | Stall | Interruption | DeviceFails, Field(discriminator="kind")]


class BoardFaultPlan(Config):
    """A file for `emulate board --faults`."""

    seed: NonNegativeInt = 0
    faults: list[Fault] = Field(default_factory=list)


class Faults:
    """A plan at work: it counts what may be struck, and what was (`struck`, by kind)."""

    def __init__(self, plan: BoardFaultPlan) -> None:
        self.struck: Counter[str] = Counter()
        self._faults = [
            (fault, generator(plan.seed, f"board fault {number}")) for number, fault in enumerate(plan.faults)
        ]
        self._counts = [0] * len(plan.faults)

    def pass_frame(self, frame: bytes, direction: Direction) -> tuple[bytes, float]:
        """A frame with its byte 0, and perhaps one before it -> what arrives of it, and after how many seconds."""
        arriving, delay_s, operation = frame, 0.0, _operation_of(frame)
        for number, (fault, random) in enumerate(self._faults):
            if not isinstance(fault, _FrameFault) or fault.direction != direction or not arriving:
                continue
            if fault.operation in (None, operation) and self._strikes(number):
                arriving = fault.strike(arriving, random)
                delay_s += fault.seconds if isinstance(fault, Stall) else 0.0
        return arriving, delay_s

    def strikes(self, kind: Literal["reboot", "unplug"], frame: bytes) -> bool:
        """Whether one of these comes with this frame to the board."""
        operation = _operation_of(frame)
        struck = [
            self._strikes(number)
            for number, (fault, _) in enumerate(self._faults)
            if isinstance(fault, Interruption) and fault.kind == kind and fault.operation in (None, operation)
        ]
        return any(struck)

    def failing(self) -> DeviceProblem | None:
        """What fails in this step of the device."""
        for number, (fault, _) in enumerate(self._faults):
            if isinstance(fault, DeviceFails) and self._strikes(number):
                return DeviceProblem(Code(fault.code), fault.text)
        return None

    def _strikes(self, number: int) -> bool:
        fault, random = self._faults[number]
        self._counts[number] += 1
        struck = fault.strikes(self._counts[number], random)
        self.struck[fault.kind] += struck
        return struck


class FaultyDevice:
    """A device some of whose steps fail."""

    def __init__(self, device: Device, faults: Faults) -> None:
        self.nodes, self.inputs = device.nodes, device.inputs
        self._device, self._faults = device, faults

    def reset(self) -> None:
        """As `Device.reset`."""
        self._device.reset()

    def step(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        """As `Device.step`."""
        if (problem := self._faults.failing()) is not None:
            raise problem
        return self._device.step(counts)


def _operation_of(frame: bytes) -> str | None:
    try:
        code = body_of(frame.strip(b"\0"), _LONGEST)[1]
    except (Damaged, TooLong):
        return None
    if code == NAK:
        return "nak"
    return next((operation.name.lower() for operation in Operation if operation == code & ~ANSWER), None)
