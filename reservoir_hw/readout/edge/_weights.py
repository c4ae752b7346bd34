"""Safetensors files, parsed without copying: which arrays there are and where they lie.

Format: eight bytes with the length of a JSON object, the object (name -> dtype, shape, data_offsets), the numbers.
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.readout.edge.manifest import Refused, shown, strict_json

HEADER_LIMIT = 4 << 20
RANK_LIMIT = 8
_NAME_LIMIT = 256
DTYPES = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}


@dataclass(frozen=True)
class Extent:
    """An array in a file: `start` and `length` are bytes, from the beginning of the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    length: int


def parse_header(take: Callable[[int, int], bytes], size: int) -> dict[str, Extent]:
    """The arrays of a file of `size` bytes; `take` returns the bytes at (start, length).

    Raises `Refused` unless the arrays lie one behind the other and fill the file exactly.
    """
    if size < 8:
        raise Refused("is too short for a safetensors file")
    length = int.from_bytes(take(0, 8), "little")
    if length > HEADER_LIMIT:
        raise Refused(f"has a header of {length} bytes, more than the {HEADER_LIMIT} of a safetensors file")
    if 8 + length > size:
        raise Refused(f"has a header of {length} bytes, but only {size} bytes in all: it is cut off or damaged")
    described = strict_json(take(8, length), "has a header that ")
    at = 8 + length
    extents = {name: _extent(name, about, at) for name, about in described.items() if name != "__metadata__"}
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].start, item[1].length)):
        if extent.start != at:
            raise Refused(f"array {shown(name)} overlaps with another, or does not begin where the one before it ends")
        if extent.start % extent.dtype.itemsize:
            raise Refused(f"array {shown(name)} does not begin at a multiple of {extent.dtype.itemsize} bytes")
        at += extent.length
    if at != size:
        raise Refused(f"has {size} bytes, but its arrays end at {at}: it is cut off or damaged")
    return extents


def views(data: np.ndarray, extents: Mapping[str, Extent]) -> dict[str, np.ndarray]:
    """Read-only arrays that share the memory of the file's bytes `data` (size,)."""
    found = {}
    for name, extent in extents.items():
        part = data[extent.start : extent.start + extent.length]
        if not part.view(extent.dtype).flags.aligned:
            # Other programs' zip files begin their entries anywhere.
            part = part.copy()
        array = part.view(extent.dtype).reshape(extent.shape)
        array.flags.writeable = False
        found[name] = array
    return found


def _extent(name: str, about: Any, first: int) -> Extent:
    if not name or len(name) > _NAME_LIMIT or not name.isprintable():
        raise Refused(f"has an array called {shown(name)}")
    if not isinstance(about, dict) or about.keys() != {"dtype", "shape", "data_offsets"}:
        raise Refused(f"array {shown(name)} is not described by dtype, shape and data_offsets")
    kind, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    dtype = DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise Refused(f"array {shown(name)} has the dtype {shown(str(kind))}; known are {', '.join(DTYPES)}")
    if not _counts(shape) or len(shape) > RANK_LIMIT or math.prod(max(1, axis) for axis in shape) >= 1 << 48:
        raise Refused(f"array {shown(name)} has no valid shape of at most {RANK_LIMIT} axes")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Refused(f"array {shown(name)} has no valid data_offsets")
    length = offsets[1] - offsets[0]
    if math.prod(shape) * dtype.itemsize != length:
        raise Refused(f"array {shown(name)} of {kind} {shape} does not fit into its {length} bytes")
    return Extent(dtype, tuple(shape), first + offsets[0], length)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 62 for value in values)
