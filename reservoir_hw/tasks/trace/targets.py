"""What can be asked of the inputs of a recording: recall, and standard nonlinear functions of them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.polynomial.legendre import legval

Target: TypeAlias = Literal["recall", "narma2", "product", "parity", "legendre"]


def target_series(u: np.ndarray, target: Target, delay: int, degree: int, steps: int) -> np.ndarray:
    """The target of one delay k for inputs u(0) to u(T), (time,) -> (steps,); NaN where it asks for what came before.

    - recall: u(t - k)
    - product: u(t) u(t - k)
    - parity: the product of the signs of u(t) ... u(t - k), where 0 counts as positive
    - legendre: P_d(v(t - k)), d the degree and v the input over the recorded range from -1 to 1 (Dambre et al. 2012)
    - narma2: y(t + 1 - k), y(t + 1) = 0.4 y(t) + 0.4 y(t) y(t - 1) + 0.6 w(t)^3 + 0.1 from rest, w the input over the
      recorded range from 0 to 0.5 (Fujii & Nakajima 2017)

    A negative delay asks for what comes.
    """
    if target == "product":
        return u[:steps] * shifted(u, delay, steps)
    if target == "parity":
        signs = np.where(u < 0, -1.0, 1.0)
        return np.prod([shifted(signs, each, steps) for each in range(delay + 1)], axis=0)
    if target == "legendre":
        return shifted(legval(2 * _over_range(u) - 1, [*[0] * degree, 1]), delay, steps)
    if target == "narma2":
        return shifted(_narma2(0.5 * _over_range(u)), delay, steps)
    return shifted(u, delay, steps)


def shifted(series: np.ndarray, delay: int, steps: int) -> np.ndarray:
    """The series at t - delay for t from 0 on: (steps,), NaN before its first value."""
    if delay <= 0:
        return series[-delay : steps - delay]
    return np.concatenate([np.full(delay, np.nan), series])[:steps]


def _over_range(u: np.ndarray) -> np.ndarray:
    """From 0 at the lowest input to 1 at the highest."""
    low, high = float(u.min()), float(u.max())
    return (u - low) / (high - low) if high > low else np.zeros(len(u))


def _narma2(w: np.ndarray) -> np.ndarray:
    y = [0.0, 0.0]
    for value in w.tolist():
        y.append(0.4 * y[-1] + 0.4 * y[-1] * y[-2] + 0.6 * value**3 + 0.1)
    return np.array(y[2:])
