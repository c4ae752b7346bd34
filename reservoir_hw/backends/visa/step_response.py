"""How a device answers to a small step: a delay and one time constant, as long as nothing else shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from reservoir_hw.backends.visa.burst import Array

# The model holds as long as it leaves less than this of the step (rms).
_LEFT = 0.003
# Or less than so many times what noise leaves in the mean.
_UNCERTAIN = 1.5
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


def fit_steps(times: Array, volts: Array, earliest_s: float) -> tuple[StepResponse, list[StepResponse]]:
    """The mean of several records of one step, and what it is without each of them.

    Times (n,) after the step, volts (records, n) above those before it. No delay is below `earliest_s`. The answer is
    fitted up to the longest time, in steps of a factor of 2 / 3, in which it is one of this kind to 0.3 % or its noise.
    Later, what a device feeds back shows.
    """
    mean, until_s = volts.mean(axis=0), float(times[-1])
    noise = volts.std(axis=0, ddof=1) / np.sqrt(len(volts))
    while True:
        found, shown = _fit(times, mean, until_s, earliest_s), times <= until_s
        left, uncertain = (np.sqrt(np.mean(x[shown] ** 2)) for x in (mean - found.at(times), noise))
        shorter = until_s * 2 / 3
        good = left <= np.hypot(_LEFT * found.step_v, _UNCERTAIN * uncertain)
        if good or np.count_nonzero(times <= shorter) < _FEWEST_SAMPLES:
            break
        until_s = shorter
    others = [np.delete(volts, k, axis=0).mean(axis=0) for k in range(len(volts))]
    return found, [_fit(times, other, until_s, earliest_s) for other in others]


def _risen(times: Array, delay_s: float, tau_s: float) -> Array:
    return -np.expm1(-np.maximum(0.0, times - delay_s) / tau_s)


def _fit(times: Array, volts: Array, until_s: float, earliest_s: float) -> StepResponse:
    """The step follows from the other two by linear regression."""
    shown = (times >= 0) & (times <= until_s)
    t, y = times[shown], volts[shown]

    def step_v(risen: Array) -> float:
        return float(risen @ y / (risen @ risen))

    def left(delay_tau: Array) -> Array:
        risen = _risen(t, *(until_s * delay_tau))
        return y - step_v(risen) * risen

    lowest, highest = [earliest_s / until_s, 1e-4], [0.5, 3.0]
    starts = ([delay, tau] for delay in (0.0, 0.1) for tau in (0.02, 0.1, 0.4))
    start = min(starts, key=lambda one: float(np.sum(left(np.array(one)) ** 2)))
    best = least_squares(left, start, bounds=(lowest, highest), x_scale=[0.01, 0.1])
    delay_s, tau_s = (float(x) for x in until_s * best.x)
    return StepResponse(step_v(_risen(t, delay_s, tau_s)), delay_s, tau_s, until_s)
