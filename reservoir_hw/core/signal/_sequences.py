"""The deterministic signals that masks are cut from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError

# Taps of shift registers of maximum length, by their number of bits (Golomb 1967; Alfke 1996, XAPP052).
_TAPS = {
    2: (2, 1), 3: (3, 2), 4: (4, 3), 5: (5, 3), 6: (6, 5), 7: (7, 6), 8: (8, 6, 5, 4), 9: (9, 5), 10: (10, 7),
    11: (11, 9), 12: (12, 6, 4, 1), 13: (13, 4, 3, 1), 14: (14, 5, 3, 1), 15: (15, 14), 16: (16, 15, 13, 4),
    17: (17, 14), 18: (18, 11), 19: (19, 6, 2, 1), 20: (20, 17), 21: (21, 19), 22: (22, 21), 23: (23, 18),
    24: (24, 23, 22, 17),
}  # fmt: skip


def maximum_length_sequence(length: int, start: float) -> NDArray[np.float64]:
    """±1 from the shortest linear feedback shift register whose period 2^m - 1 is at least `length`.

    `start` in [0, 1) chooses where in the period the sequence begins.
    Raises `ConfigurationError` beyond 2^24 - 1 values.
    """
    bits = next((m for m in _TAPS if 2**m - 1 >= length), None)
    if bits is None:
        raise ConfigurationError(f"a maximum-length sequence of {length} values needs more than 24 bits")
    # Every nonzero content of the register is one place in the period.
    content = 1 + int(start * (2**bits - 1))
    register = [content >> k & 1 for k in range(bits)]
    for n in range(bits, length):
        bit = 0
        for tap in _TAPS[bits]:
            bit ^= register[n - tap]
        register.append(bit)
    return 2.0 * np.array(register[:length]) - 1.0


def chirp(length: int, cycles: tuple[float, float], start: float) -> NDArray[np.float64]:
    """A sine whose frequency, in cycles per `length`, goes linearly from one value to another; `start` is its phase."""
    x = (np.arange(length) + 0.5) / length
    low, high = cycles
    return np.sin(2 * np.pi * (start + low * x + (high - low) * x**2 / 2))
