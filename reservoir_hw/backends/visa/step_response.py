"""How a device answers to a small step: a delay and one time constant, as long as nothing else shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from reservoir_hw.backends.visa.burst import Array

# The model holds as long as it leaves less than this of the step (rms).
_LEFT = 0.01
_FEWEST_SAMPLES = 20


@dataclass(frozen=True)
class StepResponse:
    """volts(t) = step_v (1 - exp(-(t - delay_s) / tau_s)) after the delay, for times up to `until_s` after the step."""

    step_v: float
    delay_s: float
    tau_s: float
    until_s: float

    def at(self, times: Array) -> Array:
        """Volts (n,) above those before the step, at times (n,) after it."""
        return self.step_v * _risen(times, self.delay_s, self.tau_s)


def fit_steps(times: Array, volts: Array) -> list[StepResponse]:
    """Each of several records of one step: times (n,) after it, volts (records, n) above those before it.

    All are fitted up to the same time: the longest, in steps of a factor of 2 / 3, in which the mean of all is an
    answer of this kind. Later, what a device feeds back shows.
    """
    mean, until_s = volts.mean(axis=0), float(times[-1])
    while True:
        found, shown = _fit(times, mean, until_s), times <= until_s
        left = np.sqrt(np.mean((mean - found.at(times))[shown] ** 2))
        shorter = until_s * 2 / 3
        if left <= _LEFT * abs(found.step_v) or np.count_nonzero(times <= shorter) < _FEWEST_SAMPLES:
            return [_fit(times, one, until_s) for one in volts]
        until_s = shorter


def _risen(times: Array, delay_s: float, tau_s: float) -> Array:
    return -np.expm1(-np.maximum(0.0, times - delay_s) / tau_s)


def _fit(times: Array, volts: Array, until_s: float) -> StepResponse:
    """The step follows from the other two by linear regression."""
    shown = (times >= 0) & (times <= until_s)
    t, y = times[shown], volts[shown]

    def step_v(risen: Array) -> float:
        return float(risen @ y / (risen @ risen))

    def left(delay_tau: Array) -> Array:
        risen = _risen(t, *(until_s * delay_tau))
        return y - step_v(risen) * risen

    lowest, highest = [-0.1, 1e-4], [0.5, 3.0]
    starts = ([delay, tau] for delay in (0.0, 0.1) for tau in (0.02, 0.1, 0.4))
    start = min(starts, key=lambda one: float(np.sum(left(np.array(one)) ** 2)))
    best = least_squares(left, start, bounds=(lowest, highest), x_scale=[0.01, 0.1])
    delay_s, tau_s = (float(x) for x in until_s * best.x)
    return StepResponse(step_v(_risen(t, delay_s, tau_s)), delay_s, tau_s, until_s)
