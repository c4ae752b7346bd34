"""What every board of these examples computes, as the function of a lab: virtual nodes in integers."""

from __future__ import annotations

import numpy as np

from reservoir_hw.emulators.board.board import SCALE, VirtualNodes

_device: VirtualNodes | None = None


def run(u: np.ndarray, size: int) -> np.ndarray:
    """Inputs (time, inputs) -> states (time, size). Inputs are rounded to the nearest count, halves to the even one."""
    global _device
    if _device is None:
        _device = VirtualNodes(size, u.shape[1])
    return _device.run(np.rint(u / SCALE).astype(np.int16)) * SCALE


def rest() -> None:
    """All nodes are 0. The next drive says how many inputs there are."""
    global _device
    _device = None
