"""How numbers travel: as floats, or as integers with a scale. The protocols number them alike."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from reservoir_hw.core.errors import InputRangeError, ProtocolError

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
    number = _NUMBERS.get(np.dtype(dtype))
    if number is None:
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
