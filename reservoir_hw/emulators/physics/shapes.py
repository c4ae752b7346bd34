"""One cycle of the functions that every generator has."""

from __future__ import annotations

import numpy as np

CYCLE_SAMPLES = 1000

_PHASE = np.arange(CYCLE_SAMPLES) / CYCLE_SAMPLES
SHAPES = {
    "SIN": np.sin(2 * np.pi * _PHASE),
    "SQU": np.where(_PHASE < 0.5, 1.0, -1.0),
    "RAMP": 2 * ((_PHASE + 0.5) % 1) - 1,
    "TRI": 2 * np.abs(2 * ((_PHASE + 0.75) % 1) - 1) - 1,
}
"""Within ±1, (CYCLE_SAMPLES,), by the short form of their names."""
