"""A film as a laboratory's functions would drive it: 16 leaky nodes behind one input."""

import numpy as np

_state = np.zeros(16)


def measure(u: np.ndarray, bias: float) -> np.ndarray:
    """The states (time, 16) for inputs (time, 1)."""
    global _state
    gains = np.linspace(0.5, 2.0, 16)
    states = np.empty((len(u), 16))
    for t, row in enumerate(u):
        _state = 0.6 * _state + np.tanh(gains * row[0] + bias + 0.3 * np.roll(_state, 1))
        states[t] = _state
    return states


def settle() -> None:
    """Rest."""
    global _state
    _state = np.zeros(16)
