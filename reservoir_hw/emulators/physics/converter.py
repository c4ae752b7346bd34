"""Analog to digital conversion, as every digitizer does it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def to_codes(volts: NDArray[np.float64], range_v: float, offset_v: float, bits: int) -> NDArray[np.int32]:
    """Codes 0 … 2^bits - 1 of volts (n,), rounded to the nearest.

    `range_v` is the full scale from peak to peak and `offset_v` its middle. One code is range_v / 2^bits, the code
    2^(bits - 1) means `offset_v`. What lies outside of the range becomes the first or the last code: it is clipped.
    The volts of a code are offset_v + (code - 2^(bits - 1)) · range_v / 2^bits.
    """
    codes = np.rint((volts - offset_v) * (2**bits / range_v)) + 2 ** (bits - 1)
    return np.clip(codes, 0, 2**bits - 1).astype(np.int32)
