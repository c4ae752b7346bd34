"""What a lab has on its disk: a function that drives the device and returns what was measured.

Here the device is arithmetic: 100 leaky capacitors behind diodes, fed through fixed resistors.
"""

from __future__ import annotations

import numpy as np

NODES = 100

_voltage = np.zeros(NODES)


def measure(u: np.ndarray) -> np.ndarray:
    """Apply one row of `u` (time, inputs) after the other; return the voltages (time, nodes)."""
    global _voltage
    resistors = np.random.default_rng(7).uniform(-1, 1, (NODES, u.shape[1]))
    coupling = 0.6 * np.roll(np.eye(NODES), 1, axis=0)
    states = np.empty((len(u), NODES))
    for t, row in enumerate(u):
        _voltage = np.clip(0.3 * _voltage + coupling @ _voltage + resistors @ row, 0, 1)
        states[t] = _voltage
    return states


def settle() -> None:
    """Discharge the capacitors."""
    global _voltage
    _voltage = np.zeros(NODES)


def safe() -> None:
    """Leave the board without a voltage."""
    settle()
