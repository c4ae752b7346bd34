"""What travels on the two sockets, byte by byte (docs/protocol.md). Nothing is trusted before its checksum is right."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple, cast

import google_crc32c
import msgpack
import numpy as np

from reservoir_hw.core.errors import ConfigurationError, ProtocolError
from reservoir_hw.drivers.codes import DTYPES

VERSION = 1
HEADER = struct.Struct("<4sBBHQQQIIIB3sdQdI")
HEADER_BYTES = HEADER.size + 4
DATA_MAGIC = b"RHWD"

_CONTROL = struct.Struct("<4sB3sI")
_CONTROL_MAGIC = b"RHWC"
_CHECKSUM = struct.Struct("<I")
_UNUSED = bytes(3)
LARGEST_CONTROL = 1 << 20
LARGEST_ARRAYS = 4096
LARGEST_NAME = 256
# Entries of a list or map in msgpack: memory is taken for as many as it says that it has.
LARGEST_LIST = 1 << 16
# Numbers in an array, if lengths of 0 are left out of account: numpy makes no larger ones, even empty.
LARGEST_SHAPE = 1 << 48
# Copying so little is quicker than making a read-only view of it.
_COPIED_BYTES = 1 << 14


class Operation(IntEnum):
    """What a data message asks for; a reply has `REPLY` added."""

    ATTACH = 0x01
    RESET = 0x02
    RUN = 0x03
    SNAPSHOT = 0x04
    RESTORE = 0x05
    TRANSITION = 0x06
    UPLOAD = 0x07
    READOUT = 0x08
    SET = 0x09
    GET = 0x0A


def name_of(operation: int) -> str:
    """A name for messages, also for a number that is not an operation."""
    try:
        return Operation(operation).name
    except ValueError:
        return f"operation {operation:#x}"


REPLY = 0x80
ERROR = 0xFF


class Flag(IntEnum):
    """Bits of a RUN. (Not an IntFlag, whose operators take a microsecond each.)"""

    MORE = 1
    OUTPUTS = 2


class Header(NamedTuple):
    """The fields in front of a payload, without magic, version and checksums."""

    operation: int
    session: int
    request: int
    flags: int = 0
    step: int = 0
    batch: int = 0
    steps: int = 0
    width: int = 0
    dtype: int = 0
    scale: float = 1.0
    time_ns: int = 0
    period_s: float = 0.0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(batch, steps, width)."""
        return self.batch, self.steps, self.width


_ARRAY_DTYPES = {
    name: np.dtype("?" if name == "b1" else f"<{name}")
    for name in ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
}


def checksum(payload: Any) -> int:
    """CRC-32C of bytes, a memoryview or an array, which must be C-contiguous; a large one is not copied."""
    if isinstance(payload, bytes):
        return google_crc32c.value(payload)
    if payload.nbytes < _COPIED_BYTES:
        return google_crc32c.value(payload.tobytes())
    # The library takes read-only memory alone.
    view = np.frombuffer(payload, np.uint8)
    view.flags.writeable = False
    return google_crc32c.value(view)


def pack_header(header: Header, payload: Any, *, checksums: bool = True) -> bytes:
    """80 bytes in front of `payload` (bytes, or a C-contiguous array), with its checksum or without."""
    operation, session, request, flags, step, batch, steps, width, dtype, scale, time_ns, period_s = header
    packed = HEADER.pack(
        DATA_MAGIC, VERSION, operation, flags, session, request, step, batch, steps, width, dtype, _UNUSED, scale,
        time_ns, period_s, checksum(payload) if checksums and len(payload) else 0,
    )  # fmt: skip
    return packed + _CHECKSUM.pack(google_crc32c.value(packed))


def unpack_header(data: bytes) -> tuple[Header, int]:
    """The header and the checksum that its payload must have, or `ProtocolError`."""
    if len(data) != HEADER_BYTES:
        raise ProtocolError(f"a header has {HEADER_BYTES} bytes, not {len(data)}")
    (magic, version, operation, flags, session, request, step, batch, steps, width, dtype, unused, scale, time_ns,
     period_s, crc) = HEADER.unpack_from(data)  # fmt: skip
    if google_crc32c.value(data[: HEADER.size]) != _CHECKSUM.unpack_from(data, HEADER.size)[0]:
        raise ProtocolError("the header was damaged on its way (its checksum is wrong)")
    if magic != DATA_MAGIC or version != VERSION or unused != _UNUSED:
        raise ProtocolError(
            f"the header begins with {magic!r}, version {version}, and bytes 45 to 47 are {unused!r}; this is version "
            f"{VERSION}"
        )
    return Header(operation, session, request, flags, step, batch, steps, width, dtype, scale, time_ns, period_s), crc


def check_payload(payload: memoryview, crc: int) -> None:
    """`ProtocolError` if the payload is not what was sent."""
    if (checksum(payload) if len(payload) else 0) != crc:
        raise ProtocolError("the payload was damaged on its way (its checksum is wrong)")


def array_of(header: Header, payload: memoryview) -> np.ndarray:
    """The numbers of an array payload (batch, steps, width), not copied; `ProtocolError` if the length is not right."""
    dtype, shape = DTYPES.get(header.dtype), header.shape
    if dtype is None:
        raise ProtocolError(f"there is no array dtype number {header.dtype}")
    expected = shape[0] * shape[1] * shape[2] * dtype.itemsize
    if len(payload) != expected:
        raise ProtocolError(f"{shape} of {dtype} are {expected} bytes, not {len(payload)}")
    if not expected:
        if math.prod(n or 1 for n in shape) > LARGEST_SHAPE:
            raise ProtocolError(f"{shape} is too large, even with nothing in it")
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, payload)


def pack_map(content: Mapping[str, Any]) -> bytes:
    """A msgpack map."""
    return cast(bytes, msgpack.packb(content))


def unpack_map(data: Any) -> dict[str, Any]:
    """A msgpack map with text keys, or `ProtocolError`."""
    try:
        content = msgpack.unpackb(data, strict_map_key=True, max_array_len=LARGEST_LIST, max_map_len=LARGEST_LIST)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ProtocolError(f"this is not msgpack: {str(error) or type(error).__name__}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ProtocolError("this is not a msgpack map with text keys")
    return content


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays."""
    content = {}
    for name, array in arrays.items():
        array = np.asarray(array)
        kind = f"{array.dtype.kind}{array.dtype.itemsize}"
        if kind not in _ARRAY_DTYPES:
            raise ConfigurationError(
                f"{name!r} is {array.dtype}, which does not travel: convert it (there are {', '.join(_ARRAY_DTYPES)})"
            )
        content[name] = [kind, list(array.shape), np.ascontiguousarray(array, _ARRAY_DTYPES[kind]).tobytes()]
    return pack_map(content)


def unpack_arrays(data: Any) -> dict[str, np.ndarray]:
    """Named arrays, or `ProtocolError`."""
    content = unpack_map(data)
    if len(content) > LARGEST_ARRAYS:
        raise ProtocolError(f"{len(content)} arrays are more than {LARGEST_ARRAYS}")
    if any(len(name) > LARGEST_NAME for name in content):
        raise ProtocolError(f"the name of an array has more than {LARGEST_NAME} characters")
    return {name: _array(name, entry) for name, entry in content.items()}


def _array(name: str, entry: Any) -> np.ndarray:
    match entry:
        case [str(kind), list(shape), bytes(raw)] if kind in _ARRAY_DTYPES:
            dtype = _ARRAY_DTYPES[kind]
        case _:
            raise ProtocolError(f"array {name!r} is not [dtype, shape, bytes] with a known dtype")
    if len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape):
        raise ProtocolError(f"the shape of array {name!r} is not a list of up to 8 lengths")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise ProtocolError(f"array {name!r}: {shape} of {kind} are not {len(raw)} bytes")
    if math.prod(n or 1 for n in shape) > LARGEST_SHAPE:
        raise ProtocolError(f"array {name!r}: {shape} is too large, even with nothing in it")
    if kind == "b1":
        return np.frombuffer(raw, np.uint8).reshape(shape).astype(np.bool_)
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def pack_control(message: Mapping[str, Any]) -> bytes:
    """One frame for the control socket."""
    body = pack_map(message)
    return _CONTROL.pack(_CONTROL_MAGIC, VERSION, bytes(3), google_crc32c.value(body)) + body


def unpack_control(frame: bytes) -> dict[str, Any]:
    """The map in a control frame, with `op` (text) and `id` (number); else `ProtocolError`."""
    if not _CONTROL.size < len(frame) <= LARGEST_CONTROL:
        raise ProtocolError(f"a control frame of {len(frame)} bytes")
    magic, version, unused, crc = _CONTROL.unpack_from(frame)
    body = frame[_CONTROL.size :]
    if magic != _CONTROL_MAGIC or version != VERSION or any(unused):
        raise ProtocolError(f"the control frame begins with {frame[:8]!r}; this is version {VERSION}")
    if google_crc32c.value(body) != crc:
        raise ProtocolError("the control frame was damaged on its way")
    message = unpack_map(body)
    if not isinstance(message.get("op"), str) or type(message.get("id")) is not int:
        raise ProtocolError("a control message needs op and id")
    return message
