"""Definite-length blocks of binary data (IEEE 488.2, 7.7.6 and 8.7.9): `#`, digits, length, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.core.errors import ProtocolError

Buffer = bytearray | memoryview | bytes


def header_of(size: int) -> bytes:
    """What stands before `size` bytes."""
    digits = str(size)
    return f"#{len(digits)}{digits}".encode()


def payload_of(answer: Buffer) -> memoryview:
    """The data in an answer that is a block, without a copy. Raises `ProtocolError` for anything else."""
    view = memoryview(answer)
    digits = length_of_length(bytes(view[:2]))
    try:
        size = int(bytes(view[2 : 2 + digits]))
    except ValueError:
        raise ProtocolError(f"the length of a block is no number: {bytes(view[:12])!r}") from None
    begin = 2 + digits
    if len(view) < begin + size:
        raise ProtocolError(f"a block of {size} bytes ended after {len(view) - begin}")
    return view[begin : begin + size]


def length_of_length(first: bytes) -> int:
    """How many digits follow these two bytes. Raises `ProtocolError` if no block begins with them."""
    if len(first) != 2 or first[:1] != b"#" or not first[1:].isdigit():
        raise ProtocolError(f"binary data was expected (#...), the answer begins with {first!r}")
    if first == b"#0":
        raise ProtocolError(
            "the instrument sent a block without a length (#0), which cannot be read on this connection"
        )
    return int(first[1:])


def numbers_in(payload: Buffer, dtype: Any) -> np.ndarray:
    """The numbers of a block. Raises `ProtocolError` for a length that is no multiple of their size."""
    dtype = np.dtype(dtype)
    if len(payload) % dtype.itemsize:
        raise ProtocolError(f"a block of {len(payload)} bytes holds no whole number of {dtype.itemsize}-byte values")
    return np.frombuffer(payload, dtype)
