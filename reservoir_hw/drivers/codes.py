"""What the protocols number alike: how numbers travel, and errors."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from reservoir_hw.core.errors import (
    CalibrationError,
    ConfigurationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    Discontinuity,
    InputRangeError,
    NotSupported,
    ProtocolError,
    ReservoirError,
    ShapeError,
    StateLost,
)

DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i1"),
}
"""Numbers of the dtypes on the wire."""


class Encoding(NamedTuple):
    """How an array is written: dtype number and scale; value = number × scale."""

    dtype: int
    scale: float = 1.0

    @property
    def number(self) -> np.dtype[Any]:
        """The numpy dtype of the numbers on the wire."""
        return DTYPES[self.dtype]

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value that can be written."""
        info = np.finfo(self.number) if self.number.kind == "f" else np.iinfo(self.number)
        return float(info.min) * self.scale, float(info.max) * self.scale

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Numbers for the wire, C-contiguous. `InputRangeError` for what integers cannot hold."""
        number = self.number
        if number.kind == "f":
            return np.ascontiguousarray(values, number)
        counts = np.rint(np.divide(values, self.scale, dtype=np.float64))
        limits = np.iinfo(number)
        if counts.size and not (limits.min <= counts.min() and counts.max() <= limits.max):
            raise InputRangeError(
                f"values from {values.min():g} to {values.max():g} do not fit {number} with a scale of {self.scale:g}: "
                f"the largest is {limits.max * self.scale:g}"
            )
        return counts.astype(number)

    def decoded(self, numbers: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """The values, as a copy: inside a message numbers lie at any address."""
        values = np.empty(numbers.shape, dtype)
        self.decode(numbers, values)
        return values

    def decode(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the values."""
        if self.scale == 1.0:
            out[...] = numbers
        else:
            np.multiply(numbers, self.scale, out=out, dtype=np.float64, casting="same_kind")


_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def encoding_of(dtype: Any, scale: float = 1.0) -> Encoding:
    """The encoding of a numpy dtype; `ProtocolError` if the wire knows none."""
    if (number := _NUMBERS.get(np.dtype(dtype))) is None:
        raise ProtocolError(f"{np.dtype(dtype)} does not travel; there are {', '.join(map(str, _NUMBERS))}")
    return checked_encoding(number, scale)


def checked_encoding(dtype: Any, scale: Any) -> Encoding:
    """The encoding that a declaration names, or `ProtocolError`."""
    if type(dtype) is not int or dtype not in DTYPES:
        raise ProtocolError(f"there is no dtype number {dtype!r}")
    if not isinstance(scale, int | float) or not (math.isfinite(scale) and scale > 0):
        raise ProtocolError(f"a scale of {scale!r} is not a positive number")
    if DTYPES[dtype].kind == "f" and scale != 1:
        raise ProtocolError("floating point numbers have no scale")
    return Encoding(dtype, float(scale))


# ---- Error codes of the protocol, and the exceptions they stand for on either side.


class Code(IntEnum):
    """What went wrong (docs/protocol.md)."""

    VERSION = 1
    BUSY = 2
    NO_SESSION = 3
    MALFORMED = 4
    CHECKSUM = 5
    SEQUENCE = 6
    SHAPE = 7
    INPUT_RANGE = 8
    TOO_LARGE = 9
    NOT_SUPPORTED = 10
    STATE_LOST = 11
    DISCONTINUITY = 12
    DEVICE_FAULT = 13
    DEVICE_TIMEOUT = 14
    CANCELLED = 15
    SHUTTING_DOWN = 16
    CONFIGURATION = 17
    INTERNAL = 18
    DEVICE_DISCONNECTED = 19
    CALIBRATION = 20


# The code that a server sends for an exception: the first that fits.
_SENT: dict[type[ReservoirError], Code] = {
    ShapeError: Code.SHAPE,
    InputRangeError: Code.INPUT_RANGE,
    NotSupported: Code.NOT_SUPPORTED,
    Discontinuity: Code.DISCONTINUITY,
    StateLost: Code.STATE_LOST,
    CalibrationError: Code.CALIBRATION,
    DeviceTimeout: Code.DEVICE_TIMEOUT,
    DeviceDisconnected: Code.DEVICE_DISCONNECTED,
    DeviceBusy: Code.BUSY,
    DeviceError: Code.DEVICE_FAULT,
    ConfigurationError: Code.CONFIGURATION,
}
# What the client raises.
_EXCEPTIONS: dict[Code, type[ReservoirError]] = {
    **{code: kind for kind, code in _SENT.items()},
    Code.VERSION: ProtocolError,
    Code.NO_SESSION: DeviceDisconnected,
    Code.MALFORMED: ProtocolError,
    Code.CHECKSUM: ProtocolError,
    Code.SEQUENCE: ProtocolError,
    Code.TOO_LARGE: ConfigurationError,
    Code.DEVICE_FAULT: DeviceFault,
    Code.CANCELLED: DeviceFault,
    Code.SHUTTING_DOWN: DeviceDisconnected,
    Code.INTERNAL: DeviceFault,
}

# After these the device still holds the state it had.
HARMLESS = frozenset(
    {Code.VERSION, Code.BUSY, Code.NO_SESSION, Code.SHAPE, Code.INPUT_RANGE, Code.TOO_LARGE, Code.NOT_SUPPORTED,
     Code.CONFIGURATION, Code.CALIBRATION}
)  # fmt: skip


class Refusal(Exception):
    """Why a device does not do what it was asked."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def code_of(error: BaseException) -> Code:
    """The code for this exception."""
    if isinstance(error, Refusal):
        return error.code
    return next((code for kind, code in _SENT.items() if isinstance(error, kind)), Code.INTERNAL)


def exception_of(code: int, text: str, step: int = 0) -> ReservoirError:
    """What a client raises when it gets this code; an unknown one is a `ProtocolError`."""
    if code == Code.DISCONTINUITY:
        return Discontinuity(text, step=step)
    try:
        return _EXCEPTIONS[Code(code)](text)
    except ValueError:
        return ProtocolError(f"{text} (error {code}, which this program does not know)")


# ---- Texts that others sent: made fit to be shown, and to be sent on.


LONGEST = 1 << 16


def printable(text: str) -> str:
    """What others sent, as it may be shown in a log or on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(text: str) -> str:
    """A text of a device for a message: as `printable`, but its lines stay lines."""
    return "\n".join(map(printable, text[:LONGEST].splitlines()))


def sendable(text: str) -> str:
    """A text that may contain bytes from an instrument, which need not be text."""
    return text.encode(errors="backslashreplace").decode()


def clipped(text: str, size: int) -> str:
    """A text of at most `size` bytes."""
    raw = text.encode()
    return text if len(raw) <= size else raw[: size - 3].decode(errors="ignore") + "..."
