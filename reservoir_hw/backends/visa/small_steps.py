"""How a device answers to small steps around rest: gain, delay, time constant, offset, noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import t as student

from reservoir_hw.backends.visa.burst import Array
from reservoir_hw.backends.visa.calibration import Estimate
from reservoir_hw.backends.visa.player import FINE, Player, Shot, noise_at_rest
from reservoir_hw.backends.visa.step_response import StepResponse, fit_steps

# Of the range of the output, what is tried first.
_LARGEST = 0.03
_HALVINGS = 6
# So much may the gain change when the size is halved.
_SMALL = 0.02
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

    @property
    def noise(self) -> Array:
        """Volts (shots,) at rest, rms of the samples, without that of the converter's steps."""
        return np.array([noise_at_rest(shot, self.rest_s) for shot in self.shots])

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

    def at_size_0(self, values: Array) -> Estimate:
        """What values (sizes,) come to: they change with the square of the size, and noise with one over it."""
        return self._at_size_0(values, 1)

    def mean(self, values: Array) -> Estimate:
        """Of values (sizes,), whose noise changes with one over the size."""
        return self._at_size_0(values, 0)

    def _at_size_0(self, values: Array, degree: int) -> Estimate:
        squares = (self.sizes_v / self.sizes_v.max()) ** 2
        found, covariance = np.polyfit(squares, values, degree, w=self.sizes_v, cov=True)
        return _estimate(float(found[-1]), float(np.sqrt(covariance[-1, -1])), len(values) - 1 - degree)

    def _per_volt(self, volts: Array) -> Array:
        above = (volts - self.offset[:, None]).reshape(len(self.signs), len(self.sizes_v), -1)
        return (above / np.outer(self.signs, self.sizes_v)[..., None]).mean(axis=0)


def small_steps(player: Player) -> SmallSteps:
    """Steps of many sizes, so that the steps of the converters show as what they are: uncertain."""
    config = player.config
    low, high = config.generator.outputs[config.channels.output].range_v
    size = min(_LARGEST * (high - low), config.largest_step_v)
    for _ in range(_HALVINGS):
        half, whole = SmallSteps.play(player, np.array([size / 2, size])).gain
        if abs(whole - half) <= _SMALL * abs(half):
            break
        size /= 2
    return SmallSteps.play(player, np.linspace(_SMALLEST, 1, _SIZES) * size)


def fitted(steps: SmallSteps) -> tuple[Array, Array, Array, Array, StepResponse]:
    """Delays and time constants (sizes,), and of the mean answer to 1 V: times (n,), volts (n,), fit."""
    times, answers = steps.answers()
    fits, mean = fit_steps(times, answers), answers.mean(axis=0)
    delays, taus = (np.array([getattr(fit, name) for fit in fits]) for name in ("delay_s", "tau_s"))
    return delays, taus, times, mean, fit_steps(times, mean[None])[0]


def mean_of(values: Array) -> Estimate:
    """Of independent values."""
    return _estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values) - 1)


def _estimate(value: float, uncertain: float, degrees: int) -> Estimate:
    """By Student's t."""
    reach = float(student.ppf(0.975, degrees)) * uncertain
    return Estimate(value=value, low=value - reach, high=value + reach)
