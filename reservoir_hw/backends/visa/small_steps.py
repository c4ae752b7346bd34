"""How a device answers to small steps around rest: gain, delay, time constant, offset, noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from reservoir_hw.backends.visa.bench import FINE, Player, Shot, converter_step_v, noise_at_rest
from reservoir_hw.backends.visa.burst import Array
from reservoir_hw.backends.visa.calibration import Estimate
from reservoir_hw.core.statistics import jackknife_error

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


# Of the range of the output: what is tried first, and what the first part of the answer is taken from.
_SMALL, _LARGE = 0.03, 0.1
# The size is halved until the gain changes by less than this.
_CHANGE = 0.02
_HALVINGS, _TRIES = 6, 3
# Sizes of a series, and its smallest as a part of its largest.
_SIZES = 16
_SMALLEST = 0.25


@dataclass(frozen=True)
class SmallSteps:
    """Records of steps up and down around rest. What is not linear cancels in the first order where there are both."""

    player: Player
    sizes_v: Array
    signs: tuple[int, ...]
    shots: list[Shot]

    @classmethod
    def play(cls, player: Player, sizes_v: Array) -> SmallSteps:
        """One burst for each size (sizes,) and sign that the output can play."""
        config = player.config
        low, high = config.generator.outputs[config.channels.output].range_v
        signs = tuple(sign for sign in (1, -1) if low <= config.rest_v + sign * sizes_v.max() <= high)
        bursts = [player.staircase([config.rest_v + sign * size]) for sign in signs for size in sizes_v]
        return cls(player, sizes_v, signs, [shot for (shot,) in player.play("small steps", bursts, 1)])

    @property
    def rest_s(self) -> float:
        """The part of the rest before a step that is looked at."""
        return self.player.config.memory_steps * self.player.config.step_period_s / 4

    @cached_property
    def offset(self) -> Array:
        """Volts (shots,) at rest."""
        return np.array([shot.means(np.array([-self.rest_s / 2]), self.rest_s)[0] for shot in self.shots])

    def at_rest(self) -> tuple[Estimate, Estimate]:
        """Offset, and noise: rms of the samples without that of the converter's steps.

        Noise below half a step does not show, and does not make a mean finer than the steps.
        """
        offset, noise, half = mean_of(self.offset), self._noise(), self._hidden_v()
        if not half:
            return offset, noise
        return _wider(offset, half), Estimate(value=noise.value, low=0.0, high=half)

    @property
    def gain(self) -> Array:
        """Of the settled answer (sizes,)."""
        hold_s = self.player.hold_s
        settled = np.array([shot.means(np.array([hold_s * 7 / 8]), hold_s / 4) for shot in self.shots])
        return self._per_volt(settled)[:, 0]

    def answers(self) -> tuple[Array, Array]:
        """Times (n,) after the step, and volts above rest per volt of the step (sizes, n)."""
        rate = self.player.config.sample_rate_hz
        width_s = max(1 / (FINE * rate), 1 / self.shots[0].answer.sample_rate_hz)
        times = (np.arange(int(self.player.hold_s / width_s), dtype=np.float64) + 0.5) * width_s
        return times, self._per_volt(np.array([shot.means(times, width_s) for shot in self.shots]))

    def gain_at_size_0(self) -> Estimate:
        """What the gain comes to: it changes with the square of the size, and its noise with one over it."""
        squares = (self.sizes_v / self.sizes_v.max()) ** 2
        found, covariance = np.polyfit(squares, self.gain, 1, w=self.sizes_v, cov=True)
        gain = _estimate(float(found[1]), float(np.sqrt(covariance[1, 1])), len(squares) - 2)
        # Of the level at rest, which all sizes share.
        return _wider(gain, self._hidden_v() / float(self.sizes_v.max()))

    def _noise(self) -> Estimate:
        return mean_of(np.array([noise_at_rest(shot, self.rest_s) for shot in self.shots]))

    def _hidden_v(self) -> float:
        """Half a step of the converter where noise does not reach it, or else 0."""
        half = converter_step_v(self.shots) / 2
        return half if self._noise().value <= half else 0.0

    def _per_volt(self, volts: Array) -> Array:
        above = (volts - self.offset[:, None]).reshape(len(self.signs), len(self.sizes_v), -1)
        return (above / np.outer(self.signs, self.sizes_v)[..., None]).mean(axis=0)


def small_steps(player: Player) -> SmallSteps:
    """Steps of many sizes, so that the steps of the converters show as what they are: uncertain.

    They are so small that the gain does not change with the size, or noise hides it.
    """
    size = _largest(player, _SMALL)
    for _ in range(_HALVINGS):
        gains = SmallSteps.play(player, np.repeat([size / 2, size], _TRIES)).gain.reshape(2, _TRIES)
        change, uncertain = np.ptp(gains.mean(axis=1)), np.sqrt(gains.var(axis=1, ddof=1).sum() / _TRIES)
        if change <= max(_CHANGE * abs(gains[0].mean()), 3 * uncertain):
            break
        size /= 2
    return SmallSteps.play(player, np.linspace(_SMALLEST, 1, _SIZES) * size)


class FirstAnswer(NamedTuple):
    """Delay and time constant of the first part of the answer, and the mean answer (n,) to 1 V at times (n,)."""

    delay_s: Estimate
    tau_s: Estimate
    times: Array
    volts: Array
    fit: StepResponse


def first_answer(player: Player) -> FirstAnswer:
    """Of larger steps: a device that is bent answers by the same time constant until it feeds back."""
    steps = SmallSteps.play(player, np.full(_SIZES, _largest(player, _LARGE)))
    times, answers = steps.answers()
    # The place of a burst is right to half a sample.
    half_s = 0.5 / steps.shots[0].answer.sample_rate_hz
    fit, without = fit_steps(times, answers, -2 * half_s)
    delay, tau = (
        _jackknifed(getattr(fit, name), np.array([getattr(other, name) for other in without]))
        for name in ("delay_s", "tau_s")
    )
    return FirstAnswer(_wider(delay, half_s), tau, times, answers.mean(axis=0), fit)


def _largest(player: Player, part: float) -> float:
    """A part of the range of the output, or the largest step that it may take."""
    config = player.config
    low, high = config.generator.outputs[config.channels.output].range_v
    return min(part * (high - low), config.largest_step_v)


def _jackknifed(value: float, without: Array) -> Estimate:
    """What was found in a mean, and in the means without each of its values."""
    return _estimate(value, jackknife_error(without), len(without) - 1)


def _wider(found: Estimate, by: float) -> Estimate:
    return Estimate(value=found.value, low=found.low - by, high=found.high + by)


def mean_of(values: Array) -> Estimate:
    """Of independent values."""
    return _estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values) - 1)


def _estimate(value: float, uncertain: float, degrees: int) -> Estimate:
    """By Student's t."""
    reach = float(student.ppf(0.975, degrees)) * uncertain
    return Estimate(value=value, low=value - reach, high=value + reach)
