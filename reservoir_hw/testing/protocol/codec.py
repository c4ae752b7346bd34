"""The bytes of docs/protocol.md, and what a spec may say, written from that page alone."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c
import msgpack
import numpy as np

from reservoir_hw.testing.protocol.ledger import NotThePage

VERSION = 1
HEADER = struct.Struct("<4sBBHQQQIIIB3sdQdI")
"""The 76 bytes that the last field, their CRC-32C, covers."""

ATTACH, RESET, RUN, SNAPSHOT, RESTORE, TRANSITION, UPLOAD, READOUT, SET, GET = range(1, 11)
SWITCHES = {
    SNAPSHOT: "snapshot",
    RESTORE: "snapshot",
    TRANSITION: "settable",
    UPLOAD: "programmable",
    READOUT: "readout",
}
"""What a device declares that has these operations."""
REPLY = 0x80
ERROR = 0xFF
MORE, OUTPUTS = 1, 2

NONE, F4, F8, I2, I4, I1 = range(6)
ARRAY_DTYPES = ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
NUMBERS = {F4: "<f4", F8: "<f8", I2: "<i2", I4: "<i4", I1: "i1"}

E_VERSION, E_BUSY, E_NO_SESSION, E_MALFORMED, E_CHECKSUM, E_SEQUENCE, E_SHAPE, E_RANGE, E_TOO_LARGE = range(1, 10)
E_NOT_SUPPORTED, E_STATE_LOST, E_DISCONTINUITY, E_FAULT, E_TIMEOUT, E_CANCELLED = range(10, 16)
E_SHUTTING_DOWN, E_CONFIGURATION, E_INTERNAL, E_DISCONNECTED, E_CALIBRATION = range(16, 21)
LOSES_STATE = {4, 5, 6, 11, 12, 13, 14, 15, 16, 18, 19}


def crc32c(data: bytes) -> int:
    """CRC-32C: of `123456789` it is 0xE3069283."""
    return google_crc32c.value(data)


def sealed(front: bytes) -> bytes:
    """Bytes with their checksum behind them."""
    return front + struct.pack("<I", crc32c(front))


def control_address(address: str) -> str:
    """The next port, or the path with `.control` behind it."""
    if address.startswith(("ipc://", "unix://")):
        return f"{address}.control"
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"


# ---- control ------------------------------------------------------------------------------------


def pack_control(message: Mapping[str, Any]) -> bytes:
    """A control frame."""
    body = to_msgpack(dict(message))
    return struct.pack("<4sB3sI", b"RHWC", VERSION, bytes(3), crc32c(body)) + body


def unpack_control(frame: bytes) -> dict[str, Any]:
    """The map in a control frame, or `NotThePage`."""
    if len(frame) < 12:
        raise NotThePage(f"a control frame of {len(frame)} bytes")
    magic, version, zeros, crc = struct.unpack("<4sB3sI", frame[:12])
    if magic != b"RHWC" or version != VERSION or zeros != bytes(3):
        raise NotThePage(f"control header {frame[:12].hex()}")
    if crc32c(frame[12:]) != crc:
        raise NotThePage("checksum of a control message")
    message = from_msgpack(frame[12:])
    if not isinstance(message, dict) or not {"op", "id"} <= set(message):
        raise NotThePage(f"no op and id in {message!r}")
    return message


# ---- data ---------------------------------------------------------------------------------------


@dataclass
class Header:
    """The 80 bytes, without the two checksums."""

    operation: int
    session: int = 0
    request: int = 0
    step: int = 0
    batch: int = 0
    steps: int = 0
    width: int = 0
    dtype: int = NONE
    scale: float = 1.0
    time: int = 0
    period: float = 0.0
    flags: int = 0
    version: int = VERSION


def pack_data(header: Header, payload: bytes = b"") -> list[bytes]:
    """The two frames of a data message."""
    h = header
    front = HEADER.pack(
        *(b"RHWD", h.version, h.operation, h.flags, h.session, h.request, h.step, h.batch, h.steps, h.width),
        *(h.dtype, bytes(3), h.scale, h.time, h.period, crc32c(payload)),
    )
    return [sealed(front), payload]


def unpack_header(frame: bytes) -> tuple[Header, int]:
    """The header, and the checksum that the payload must have; or `NotThePage`."""
    if len(frame) != 80:
        raise NotThePage(f"a header of {len(frame)} bytes")
    if crc32c(frame[:76]) != int.from_bytes(frame[76:], "little"):
        raise NotThePage("checksum of the header")
    magic, version, operation, flags, *numbers, zeros, scale, time, period, crc = HEADER.unpack(frame[:76])
    if magic != b"RHWD" or version != VERSION or zeros != bytes(3):
        raise NotThePage(f"header {frame.hex()}")
    return Header(operation, *numbers, scale=scale, time=time, period=period, flags=flags), crc


def unpack_data(frames: list[bytes]) -> tuple[Header, bytes]:
    """The header and the payload of a data message, both checksums checked; or `NotThePage`."""
    if len(frames) != 2:
        raise NotThePage(f"a data message of {len(frames)} frames")
    header, crc = unpack_header(frames[0])
    if crc32c(frames[1]) != crc:
        raise NotThePage("checksum of the payload")
    return header, frames[1]


def numbers(header: Header, payload: bytes) -> np.ndarray:
    """The payload as it was sent, (batch, steps, width), not scaled."""
    return np.frombuffer(payload, NUMBERS[header.dtype]).reshape(header.batch, header.steps, header.width)


def to_msgpack(value: Any) -> bytes:
    """Whole numbers in their shortest form, others in 64 bits."""
    packed = msgpack.packb(value)
    assert packed is not None
    return packed


def from_msgpack(content: bytes) -> Any:
    """What the bytes say, or `NotThePage`."""
    try:
        return msgpack.unpackb(content)
    except ValueError as error:
        raise NotThePage(f"no msgpack: {str(error) or type(error).__name__}") from error


def pack_named(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays as msgpack."""
    little = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    return to_msgpack({name: [one.dtype.str[1:], list(one.shape), one.tobytes()] for name, one in little.items()})


def unpack_named(payload: bytes) -> dict[str, np.ndarray]:
    """The named arrays in a payload, or `NotThePage`."""
    content = from_msgpack(payload)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise NotThePage("named arrays are a map with text keys")
    return {name: _array(name, entry) for name, entry in content.items()}


def _array(name: str, entry: Any) -> np.ndarray:
    match entry:
        case [str(dtype), list(shape), bytes(data)] if dtype in ARRAY_DTYPES and len(shape) <= 8:
            lengths = all(type(length) is int and length >= 0 for length in shape)
            number = np.dtype("?" if dtype == "b1" else f"<{dtype}")
            if lengths and math.prod(shape) * number.itemsize == len(data):
                return np.frombuffer(data, number).reshape(shape)
    raise NotThePage(f"{name!r} is not [dtype, shape, data]: {str(entry)[:100]}")


# ---- what the keys of a spec may be ---------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Whether this is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_range(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
    return value is None or (is_pair and value[0] < value[1])


SPEC: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "dtype": ("float32 or float64", lambda value: value in ("float32", "float64")),
    "input_range": ("[lowest, highest] or nil", _is_range),
    "state_range": ("[lowest, highest] or nil", _is_range),
    "max_batch": ("a number of sequences or nil", lambda value: value is None or (_is_count(value) and value > 0)),
    "continuity": (
        "held, replayed or free_running",
        lambda value: value in ("held", "replayed", "free_running"),
    ),
    "held_for_s": ("seconds or nil", lambda value: value is None or (is_number(value) and value > 0)),
    "memory_steps": ("a number of steps", _is_count),
    "step_period_s": ("seconds or nil", lambda value: value is None or (is_number(value) and value >= 0)),
    "reset_time_s": ("seconds or nil", lambda value: value is None or (is_number(value) and value >= 0)),
    "clock": ("device, host or external", lambda value: value in ("device", "host", "external")),
    **dict.fromkeys(
        ("snapshot", "settable", "programmable", "deterministic"),
        ("true or false", lambda value: isinstance(value, bool)),
    ),
}
"""What each key that may be missing is, in words and as a test."""


def fitting(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec without those keys that make no sense: they count as missing."""
    return {name: value for name, value in spec.items() if name not in SPEC or SPEC[name][1](value)}
