"""What an oscilloscope has acquired."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.physics.converter import to_codes
from reservoir_hw.emulators.tektronix.inputs import Input

CONVERTER_DIVISIONS = 10.24
# Codes in a division, by the bytes of a code.
DIVISION_CODES = {1: 25, 2: 6400}
# Rates up to which the converter has so many bits, the last ones in all modes.
_HIGH_RESOLUTION_BITS = ((125e6, 16), (312.5e6, 15), (625e6, 14), (1.25e9, 13))
_BITS = ((3.125e9, 12), (math.inf, 8))


@dataclass(frozen=True)
class Record:
    """Codes of 16 bits, (points,) by channel, and how to read them."""

    rate_hz: float
    first_s: float
    codes: dict[int, NDArray[np.int16]]
    scales: dict[int, tuple[float, float]]
    """Volts of a division and of the middle, by channel."""
    clipped: dict[int, bool]

    @property
    def trigger_point(self) -> int:
        """The first point that is not before the trigger."""
        return math.ceil(-self.first_s * self.rate_hz - 1e-6)


def converted(
    volts: Mapping[int, NDArray[np.float64]],
    inputs: Mapping[int, Input],
    rate_hz: float,
    first_s: float,
    high_resolution: bool,
) -> Record:
    """The record of volts (points,) by channel. Codes of fewer bits are filled up with zeros."""
    steps = (*_HIGH_RESOLUTION_BITS, *_BITS) if high_resolution else _BITS
    bits = next(bits for highest_hz, bits in steps if rate_hz <= highest_hz)
    codes, scales, clipped = {}, {}, {}
    for number, seen in volts.items():
        channel = inputs[number]
        taken = to_codes(seen, CONVERTER_DIVISIONS * channel.scale_v, channel.middle_v, bits)
        clipped[number] = bool(taken.min() == 0 or taken.max() == 2**bits - 1)
        codes[number] = ((taken - 2 ** (bits - 1)) << 16 - bits).astype(np.int16)
        scales[number] = channel.scale_v, channel.middle_v
    return Record(rate_hz, first_s, codes, scales, clipped)
