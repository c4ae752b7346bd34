"""A film on the bench of a lab, as `kind: python` finds it in the current folder."""

import numpy as np

charge = np.zeros(3)


def settle() -> None:
    charge[:] = 0


def measure(u: np.ndarray) -> np.ndarray:
    states = np.empty((len(u), 3))
    for step, value in enumerate(u[:, 0]):
        charge[:] = 0.5 * charge + np.maximum(value - np.array([0.0, 0.2, 0.4]), 0)
        states[step] = charge
    return states
