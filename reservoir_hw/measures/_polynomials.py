"""Polynomials that are orthonormal under the distribution of the inputs."""

from __future__ import annotations

from typing import Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, InputRangeError

Distribution = Literal["uniform", "normal", "empirical"]

# How many standard errors a mean may be off before the inputs are not what they were said to be.
_SUSPICIOUS = 6.0


def orthonormal(
    inputs: np.ndarray, degree: int, distribution: Distribution, input_range: tuple[float, float] | None
) -> np.ndarray:
    """The polynomials of the degrees 0 ... `degree` at each input: (sequences, time) -> (degree + 1, sequences, time).

    They follow p_(n+1) sqrt(b_(n+1)) = (x - a_n) p_n - sqrt(b_n) p_(n-1) (Gautschi 2004, theorem 1.29): Legendre
    polynomials for inputs uniform in `input_range`, Hermite polynomials for normal ones, and for "empirical" those that
    are orthonormal over the very values of `inputs` (the arbitrary polynomial chaos of Kubota et al. 2021).

    Raises `InputRangeError` where the inputs are not so distributed, or take too few values for the degree.
    """
    if distribution == "empirical":
        return _empirical(inputs, degree)
    if distribution == "uniform":
        low, high = input_range or (float(inputs.min()), float(inputs.max()))
        if inputs.min() < low or inputs.max() > high:
            raise InputRangeError(f"inputs lie outside the input_range [{low:g}, {high:g}] that was given")
        x = (2 * inputs - low - high) / (high - low)
        b = [1.0] + [n**2 / (4 * n**2 - 1) for n in range(1, degree + 1)]
    elif distribution == "normal":
        x = (inputs - inputs.mean()) / inputs.std()
        b = [1.0] + [float(n) for n in range(1, degree + 1)]
    else:
        raise ConfigurationError(f"distribution is {distribution!r}; choose uniform, normal or empirical")
    p = np.empty((degree + 1, *inputs.shape))
    p[0] = 1.0
    p[1] = x / b[1] ** 0.5
    for n in range(1, degree):
        p[n + 1] = (x * p[n] - b[n] ** 0.5 * p[n - 1]) / b[n + 1] ** 0.5
    _check(p, distribution)
    return p


def _empirical(inputs: np.ndarray, degree: int) -> np.ndarray:
    """The recurrence with coefficients from the sample itself (Stieltjes' procedure; Gautschi 2004, section 2.2.3)."""
    x = (inputs - inputs.mean()) / inputs.std()
    p = np.empty((degree + 1, *inputs.shape))
    p[0] = 1.0
    before, b = np.zeros_like(x), 0.0
    for n in range(degree):
        a = np.mean(x * p[n] ** 2)
        p[n + 1] = (x - a) * p[n] - b * before
        b = np.mean(p[n + 1] ** 2) ** 0.5
        if b < 1e-6:
            raise InputRangeError(
                f"the inputs take too few different values for degree {n + 1}: a drive with k levels has polynomials "
                "up to degree k - 1"
            )
        p[n + 1] /= b
        before = p[n]
    return p


def _check(p: np.ndarray, distribution: Distribution) -> None:
    """Raise unless means and products of the polynomials are what they are for such inputs, within their errors."""
    flat = p.reshape(len(p), -1)
    for n in range(1, len(flat)):
        for m in range(n + 1):
            product = flat[n] * flat[m]
            off = abs(product.mean() - (n == m))
            if off > _SUSPICIOUS * product.std() / flat.shape[1] ** 0.5 + 1e-9:
                raise InputRangeError(
                    f"the inputs are not {distribution}: their polynomials of degree {n} and {m} are off by {off:.2g}. "
                    'Check input_range, or say distribution="empirical"'
                )
