"""Measure a bench: how it answers to small steps, and what `reservoir-hw device calibrate` writes into its file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from reservoir_hw.backends.visa.bench import (
    FINE,
    Player,
    Progress,
    Shot,
    converter_step_v,
    marker_answer,
    noise_at_rest,
    opened,
)
from reservoir_hw.backends.visa.burst import Array, BurstLayout
from reservoir_hw.backends.visa.calibration import FILLED, Calibration, Estimate, MarkerAnswer
from reservoir_hw.backends.visa.configuration import BenchConfig
from reservoir_hw.core.errors import CalibrationError, ConfigurationError, DeviceFault
from reservoir_hw.core.statistics import jackknife_error
from reservoir_hw.drivers.visa.roles import Waveform

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
_STEP_SIZES = 16
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
    return SmallSteps.play(player, np.linspace(_SMALLEST, 1, _STEP_SIZES) * size)


class FirstAnswer(NamedTuple):
    """Delay and time constant of the first part of the answer, and the mean answer (n,) to 1 V at times (n,)."""

    delay_s: Estimate
    tau_s: Estimate
    times: Array
    volts: Array
    fit: StepResponse


def first_answer(player: Player) -> FirstAnswer:
    """Of larger steps: a device that is bent answers by the same time constant until it feeds back."""
    steps = SmallSteps.play(player, np.full(_STEP_SIZES, _largest(player, _LARGE)))
    times, answers = steps.answers()
    # The place of a burst is right to half a sample.
    half_s = 0.5 / steps.shots[0].answer.sample_rate_hz
    fit, without = fit_steps(times, answers, -2 * half_s)
    others = {name: np.array([getattr(other, name) for other in without]) for name in ("delay_s", "tau_s")}
    delay, tau = (
        _estimate(getattr(fit, name), jackknife_error(values), len(without) - 1) for name, values in others.items()
    )
    return FirstAnswer(_wider(delay, half_s), tau, times, answers.mean(axis=0), fit)


def _largest(player: Player, part: float) -> float:
    """A part of the range of the output, or the largest step that it may take."""
    config = player.config
    low, high = config.generator.outputs[config.channels.output].range_v
    return min(part * (high - low), config.largest_step_v)


def _wider(found: Estimate, by: float) -> Estimate:
    return Estimate(value=found.value, low=found.low - by, high=found.high + by)


def mean_of(values: Array) -> Estimate:
    """Of independent values."""
    return _estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values) - 1)


def _estimate(value: float, uncertain: float, degrees: int) -> Estimate:
    """By Student's t."""
    reach = float(student.ppf(0.975, degrees)) * uncertain
    return Estimate(value=value, low=value - reach, high=value + reach)


# ---- Measure a bench: what `reservoir-hw device calibrate` writes into its file.
#
# Everything is played as a burst between markers, so that its place in a record is known.


# Of the answer, what of the range of the digitizer is left free on each side of it.
_FREE = 0.08
_RANGES = 8
_RANDOM_STEPS = 200
_RANDOM_SHOTS = 3
_LEVELS = 41
_LEVEL_SHOTS = 4
_LINEAR = 0.05
# Of the range of the digitizer: nearer to its ends an answer may have been clipped.
_EDGE = 0.01
# Of a node: a delay that is less certain would do more harm than good.
_DELAY = 0.5
# Steps in a row that are below the noise: one alone may be by chance.
_FORGOTTEN = 5
# Of the inputs in which the past is forgotten, as parts of the whole range.
_SIZES = (1.0, 0.3, 0.1, 0.0)
_PAST_SHOTS = 12
# So many standard deviations of noise are no memory.
_SURE = 3
_FEWEST_PAST = 8


@dataclass(frozen=True)
class Calibrated:
    """A calibration, and the curves that it was taken from. Times are in s after the begin of what is shown."""

    calibration: Calibration
    answer: Waveform
    """To random inputs over the whole range."""
    first: FirstAnswer
    """The mean answer to a small step, above rest, for a step of 1 V."""
    levels_v: Array
    """Of the output (levels,)."""
    level_answers_v: Array
    """Settled (levels,); not a number where the digitizer may have clipped."""
    memory: Array
    """What is left of the past in a state (steps,), rms, as a part of its noise, by the steps that have come since."""


def calibrate(config: BenchConfig, progress: Progress = None) -> Calibrated:
    """Measure the bench of a configuration. What its calibration says so far does not matter.

    Raises `CalibrationError` if the device does not answer, or remembers for longer than twice `memory_steps`, and the
    errors of the instruments. The outputs are off afterwards.
    """
    if config.input_range is None:
        raise ConfigurationError("a calibration plays inputs over the whole input_range: say what it is")
    tried: list[str] = []
    while True:
        low, high = config.digitizer.inputs[config.channels.answer].range_v
        answer = None
        try:
            with opened(config) as bench:
                player = Player(config, bench, progress)
                # All inputs that will be played, before anything is.
                output = config.generator.outputs[config.channels.output]
                for driven in _pasts(player)[0]:
                    output.check(config.channels.output, player.layout.between_markers(driven), config.sample_rate_hz)
                shots = _answers_to_anything(player)
                # The record that went farthest; `clipped` is that of all of them.
                farthest = max((shot.answer for shot in shots), key=lambda one: float(np.ptp(one.volts)))
                answer = replace(farthest, clipped=sum(shot.answer.clipped for shot in shots))
                found = (float(answer.volts.min()), float(answer.volts.max()))
                if not answer.clipped and found[1] - found[0] >= FILLED * (high - low):
                    if config.channels.monitor is None:
                        player.known = _first_marker_answer(player, shots)
                    return _measured(player, answer)
        except DeviceFault as error:
            # Only what is said about another range.
            if not tried or answer is not None:
                raise
            raise _no_range(config, [*tried, f"[{low:g}, {high:g}]: {error}"]) from error
        tried.append(f"[{low:g}, {high:g}]: {found[0]:g} to {found[1]:g} V")
        if len(tried) == _RANGES:
            raise _no_range(config, tried)
        config = _with_range(config, answer, found)


def _no_range(config: BenchConfig, tried: list[str]) -> CalibrationError:
    return CalibrationError(
        f"no range of input {config.channels.answer} was filled to {FILLED:.0%} without clipping; is the device "
        f"connected? What was seen in each range: {'; '.join(tried)}"
    )


def _with_range(config: BenchConfig, answer: Waveform, found: tuple[float, float]) -> BenchConfig:
    """Another range of the answer's input: wider if it clipped, or else one that the answer fills."""
    number, digitizer = config.channels.answer, config.digitizer
    low, high = digitizer.inputs[number].range_v
    # Of a device that does not answer, noise is seen: it is looked at more closely in steps.
    free = (high - low) / 2 if answer.clipped else max(_FREE * (found[1] - found[0]), (high - low) / 100)
    first, last = (low, high) if answer.clipped else found
    chosen = digitizer.inputs[number].model_copy(update={"range_v": (first - free, last + free)})
    inputs = {**digitizer.inputs, number: chosen}
    return config.model_copy(update={"digitizer": digitizer.model_copy(update={"inputs": inputs})})


def _measured(player: Player, answer: Waveform) -> Calibrated:
    config, bench = player.config, player.bench
    steps = small_steps(player)
    gain, (offset, noise) = steps.gain_at_size_0(), steps.at_rest()
    if gain.low <= 0 <= gain.high:
        raise CalibrationError(
            f"the answer does not follow small steps of {steps.sizes_v[-1]:g} V around {config.rest_v:g} V: is the "
            "device connected, and does it answer at safe_v?"
        )
    first = first_answer(player)
    delay = first.delay_s
    if delay.high - delay.low > _DELAY * config.theta_s:
        raise CalibrationError(
            f"the delay is known to {1e6 * (delay.high - delay.low) / 2:.2g} µs only, and a node takes "
            f"{1e6 * config.theta_s:g} µs: the answer is too noisy, or is none of one time constant"
        )
    player.known = marker_answer(steps.shots, delay.value)
    levels, level_answers, uncertain = _settled_levels(player)
    memory = _memory(player)
    # Late in a burst its place is less certain: what was forgotten once does not come back.
    forgotten = np.convolve(memory <= 1, np.ones(_FORGOTTEN), "valid") == _FORGOTTEN
    memory_steps = max(1, int(np.argmax(forgotten)))
    if not forgotten.any():
        raise CalibrationError(
            f"after {len(memory)} steps the device still remembers what was before: take more memory_steps than "
            f"{config.memory_steps} (a burst has room for {player.layout.most_steps} steps behind them; fewer "
            "points_per_node or nodes give it more), or a device that forgets"
        )
    linear = gain.value * (levels - config.rest_v)
    away = np.maximum(0.0, abs(level_answers - offset.value - linear) - 3 * uncertain)
    bent = np.divide(away, abs(linear), out=np.zeros_like(away), where=linear != 0)
    calibration = Calibration(
        made=datetime.now(UTC).replace(microsecond=0),
        chain=bench.chain,
        gain=gain,
        offset_v=offset,
        delay_s=delay,
        tau_s=first.tau_s,
        noise_v=noise,
        linear_range_v=_around_rest(levels, bent, config.rest_v),
        answer_range_v=(float(answer.volts.min()), float(answer.volts.max())),
        vertical_range_v=config.digitizer.inputs[config.channels.answer].range_v,
        memory_steps=memory_steps,
        marker_answer_v=player.known.template.volts.tolist(),
        marker_answer_rate_hz=player.known.template.sample_rate_hz,
    )
    return Calibrated(calibration, answer, first, levels, level_answers, memory)


def _answers_to_anything(player: Player) -> list[Shot]:
    """To random inputs over the whole range."""
    config, layout = player.config, player.layout
    assert config.input_range is not None, "was checked"
    steps = min(layout.most_steps, _RANDOM_STEPS)
    u = np.random.default_rng(0).uniform(*config.input_range, (steps, config.required_inputs()))
    layout.check(u, config.generator.outputs[config.channels.output].range_v)
    return player.play("range of the answer", [layout.driven(u)], _RANDOM_SHOTS)[0]


def _first_marker_answer(player: Player, shots: list[Shot]) -> MarkerAnswer:
    """Where the trigger alone has told the place: what it takes to find it better."""
    config = player.config
    answer = marker_answer(shots, 0.0)
    size, noise_v = float(answer.template.volts.std()), noise_at_rest(shots[0], player.hold_s / 4)
    if size * config.max_residual < noise_v:
        raise CalibrationError(
            f"markers could not be found: the device answers to one of {config.highest_marker_v:g} V with {size:.2g} V "
            f"rms, and its noise is {noise_v:.2g} V; take a marker_v to which it answers more, or connect a monitor"
        )
    return answer


def _settled_levels(player: Player) -> tuple[Array, Array, float]:
    """Levels of the output from low to high, the settled answers to them, and how uncertain these are (rms).

    Random inputs have not reached all levels for long: the range of the digitizer need not hold their answers, which
    are then not a number.
    """
    config, hold_s = player.config, player.hold_s
    low, high = config.generator.outputs[config.channels.output].range_v
    lowest, highest = config.digitizer.inputs[config.channels.answer].range_v
    edge = _EDGE * (highest - lowest)
    every = np.linspace(low, high, _LEVELS)
    # Outwards from rest.
    ordered = [*every[every >= config.rest_v], *every[every < config.rest_v][::-1]]
    at_once = max(1, (player.layout.most_steps - 1) // player.hold)
    bursts = [ordered[first : first + at_once] for first in range(0, len(ordered), at_once)]
    played = player.play("settled levels", [player.staircase(levels) for levels in bursts], _LEVEL_SHOTS)
    answers, variances = [], []
    for levels, shots in zip(bursts, played, strict=True):
        middle = (np.arange(len(levels), dtype=np.float64) + 7 / 8) * hold_s
        found = np.array([shot.means(middle, hold_s / 4) for shot in shots])
        answers.append(found.mean(axis=0))
        variances.append(found.var(axis=0, ddof=1))
    levels, found = np.array(ordered), np.concatenate(answers)
    uncertain = np.sqrt(np.mean(np.concatenate(variances)) / _LEVEL_SHOTS)
    found[(found <= lowest + edge) | (found >= highest - edge)] = np.nan
    order = np.argsort(levels)
    return levels[order], found[order], float(uncertain)


def _around_rest(levels: Array, bent: Array, rest_v: float) -> tuple[float, float]:
    """How far below and above rest the answer is bent by less than `_LINEAR`, on straight lines between the levels."""
    up, down = levels > rest_v, levels < rest_v
    return _until_bent(rest_v, levels[down][::-1], bent[down][::-1]), _until_bent(rest_v, levels[up], bent[up])


def _until_bent(rest_v: float, levels: Array, bent: Array) -> float:
    levels, bent = np.append(rest_v, levels), np.append(0.0, bent)
    straight = bent <= _LINEAR
    if straight.all():
        return float(levels[-1])
    last = int(np.argmin(straight))
    if np.isnan(bent[last]):
        return float(levels[last - 1])
    return float(np.interp(_LINEAR, bent[last - 1 : last + 1], levels[last - 1 : last + 1]))


def _memory(player: Player) -> Array:
    """What is left in the states (steps,) of what was before, rms, as a part of their noise.

    Before were random inputs, or rest; then come the same inputs. A device may remember longer if they are small, so
    the step counts in which most is left.
    """
    config = player.config
    bursts, past, common = _pasts(player)
    played = player.play("memory", bursts, _PAST_SHOTS)
    read = partial(BurstLayout.states, steps=past + common, position=config.read_at, average=config.average)
    # Sizes, what was before, shots, steps, nodes.
    states = np.array([read(shot.layout, shot.answer, shot.found)[past:] for shots in played for shot in shots])
    states = states.reshape(len(_SIZES), 2, _PAST_SHOTS, common, config.nodes)
    # Where inputs change fast, the uncertain place of a burst makes more noise.
    variance = states.var(axis=2, ddof=1).mean(axis=(1, 2, 3))
    means = states.mean(axis=2)
    differ = np.mean((means[:, 0] - means[:, 1]) ** 2, axis=2)
    # All states of a burst are late alike, so that differences have few degrees of freedom.
    left = np.maximum(0.0, differ - _SURE**2 * 2 * variance[:, None] / _PAST_SHOTS)
    return np.sqrt(left / variance[:, None]).max(axis=0)


def _pasts(player: Player) -> tuple[list[Array], int, int]:
    """Bursts, for each size one of inputs and one of rest and inputs; how many steps differ, and how many do not."""
    config, layout = player.config, player.layout
    assert config.input_range is not None, "was checked"
    low, high = config.input_range
    zero = min(max(0.0, low), high)
    past = min(config.memory_steps, max(_FEWEST_PAST, layout.most_steps // 8))
    common = min(2 * config.memory_steps, layout.most_steps - past)
    random = np.random.default_rng(1)
    bursts = []
    for size in _SIZES:
        u = random.uniform(low, high, (past + common, config.required_inputs()))
        u[past:] = zero + size * (u[past:] - zero)
        driven = layout.driven(u)
        rested = driven.copy()
        rested[: past * layout.samples_per_step] = config.rest_v
        bursts += [driven, rested]
    return bursts, past, common
