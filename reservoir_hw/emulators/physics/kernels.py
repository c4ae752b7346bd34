"""The time loops of the devices under test, compiled by numba.

All equations are relaxations, tau dx/dt = -x + f(t), where f at time t depends on x and u of earlier times alone. Over
one step f is replaced by a straight line, and the equation of the line is solved exactly (exponential time
differencing of second order, Cox & Matthews 2002). That is stable at every step, and of second order as Heun's method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reservoir_hw.core.errors import MissingExtra

try:
    import numba
except ImportError as error:  # pragma: no cover
    raise MissingExtra("the emulated devices need numba: pip install 'reservoir-hw[sim]'") from error

# The numbers by which the kernel knows the equations.
IKEDA, MACKEY_GLASS = range(2)


class Weights(NamedTuple):
    """x after a step = keep · x + before · f(at its begin) + after · f(at its end)."""

    keep: float
    before: float
    after: float


def weights(step: float) -> Weights:
    """The weights of a step, given in time constants."""
    rise = -math.expm1(-step)
    after = 1 - rise / step
    return Weights(1 - rise, rise - after, after)


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # No folder for the cache can be written to.
        return numba.njit(**options)(function)


@_jit
def _nonlinearity(code, z, feedback_gain, shape):
    if code == IKEDA:
        s = math.sin(z + shape)
        return feedback_gain * s * s
    return feedback_gain * z / (1.0 + abs(z) ** shape)


@_jit
def delayed_feedback(code, line, drive, whole, part, keep, before, after, feedback_gain, shape):
    """x driven by f(x(t - T) + drive(t)), written to `line` behind its first whole + 2 values.

    T = (whole + part) steps with whole ≥ 1, 0 ≤ part ≤ 1. `line` (whole + 2 + n,) begins with x on the grid up to now,
    `drive` (n,) is constant during each step. `shape` is the phase (Ikeda) or the exponent (Mackey-Glass).
    """
    x = line[whole + 1]
    # The delayed value at the begin of step k lies between line[k] and line[k + 1].
    begin = (1.0 - part) * line[1] + part * line[0]
    f_end, driven = 0.0, np.nan
    for k in range(drive.shape[0]):
        end = (1.0 - part) * line[k + 2] + part * line[k + 1]
        u = drive[k]
        f_begin = f_end if u == driven else _nonlinearity(code, begin + u, feedback_gain, shape)
        f_end = _nonlinearity(code, end + u, feedback_gain, shape)
        x = keep * x + before * f_begin + after * f_end
        line[whole + 2 + k] = x
        begin, driven = end, u


@_jit
def delayed_input(x, line, whole, part, keep, out):
    """x driven by u(t - T), T = (whole + part) steps; out (n,) receives x at the end of each step.

    `line` (whole + 1 + n,) has the means of u over each step, the first whole + 1 of them before now.
    """
    for k in range(out.shape[0]):
        u = (1.0 - part) * line[k + 1] + part * line[k]
        x = keep * x + (1.0 - keep) * u
        out[k] = x


@_jit
def low_pass(value, before_x, x, scale, offset, keep, before, after):
    """A first-order low-pass of scale · x + offset, in place. `value` and `before_x` belong to the time before x[0]."""
    old = scale * before_x + offset
    for k in range(x.shape[0]):
        new = scale * x[k] + offset
        value = keep * value + before * old + after * new
        x[k] = value
        old = new


@_jit
def noise(value, normal, size, keep):
    """Noise (n,) of rms `size` after a value, correlated by `keep` from one to the next (Ornstein-Uhlenbeck, exact)."""
    out = np.empty(normal.shape[0])
    fresh = size * math.sqrt(1.0 - keep * keep)
    for k in range(out.shape[0]):
        value = keep * value + fresh * normal[k]
        out[k] = value
    return out


@_jit
def _sample(volts, index, last, rest_v):
    if index < 0 or index >= last:
        return rest_v
    return volts[index % volts.shape[0]]


@_jit
def play(volts, last, rest_v, linear, start_s, rate_hz, times, out):
    """Samples in turn up to sample number `last`, at times (m,); `rest_v` before and after."""
    for i in range(times.shape[0]):
        position = (times[i] - start_s) * rate_hz
        index = np.int64(np.floor(position))
        value = _sample(volts, index, last, rest_v)
        # The first sample begins with a step.
        if linear and index >= 0:
            value += (position - index) * (_sample(volts, index + 1, last, rest_v) - value)
        out[i] = value


@_jit
def between(volts, start_s, dt_s, times, out):
    """Straight lines between samples at start_s + k dt_s, at times (m,); the first and the last value beyond."""
    for i in range(times.shape[0]):
        position = min(max((times[i] - start_s) / dt_s, 0.0), volts.shape[0] - 1.0)
        k = min(np.int64(position), volts.shape[0] - 2)
        out[i] = volts[k] + (position - k) * (volts[k + 1] - volts[k])
