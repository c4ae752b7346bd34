"""Devices under test, in volts and seconds: an equation in time, a memristive film, and the amplifier at the output."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator

if TYPE_CHECKING:
    from reservoir_hw.emulators.physics.kernels import Weights


Array = NDArray[np.float64]

# Steps of the integration for each sample of the generator, and for each time constant.
STEPS_PER_SAMPLE = 8
STEPS_PER_TAU = 20
# After so many times tau + delay a device has forgotten what was before.
SETTLED = 50


@dataclass
class DeviceState:
    """Where a device is: x, and the past of what acts with a delay, (m,) on a grid of `dt_s` that ends now.

    `amplifier_v` is the output without noise and saturation.
    """

    dt_s: float
    past: Array
    x: float
    amplifier_v: float


class _Device(Config):
    """Parameters that all devices have. Defaults are for 50 virtual nodes of 10 µs each, tau = 10 µs / 0.2."""

    kind: Any
    tau_s: PositiveFloat = Field(default=50e-6, description="response time")
    output_v: float = Field(default=1.0, description="volts at the output for x = 1")
    offset_v: float = Field(default=0.0, description="volts at the output for x = 0")
    saturation_v: PositiveFloat = Field(default=2.0, description="the output never exceeds ± this")
    bandwidth_hz: PositiveFloat = Field(default=2e6, description="of the output amplifier (-3 dB), and of its noise")
    noise_v: NonNegativeFloat = Field(default=2e-4, description="rms of the noise at the output, in that bandwidth")

    if TYPE_CHECKING:
        delay_s: float

    @property
    def settled_s(self) -> float:
        """After this time with a constant input the past has been forgotten."""
        return SETTLED * (self.tau_s + self.delay_s)

    @property
    def longest_step_s(self) -> float:
        """No step of the integration is longer."""
        return self.tau_s / STEPS_PER_TAU

    def step_s(self, sample_s: float) -> float:
        """The step of the integration for a generator with this sample period: a whole part of it."""
        steps = max(STEPS_PER_SAMPLE, math.ceil(sample_s / self.longest_step_s))
        return sample_s / max(steps, self._steps_of_delay(sample_s))

    def start(self, dt_s: float) -> DeviceState:
        """The device after a long time without input at x = 0."""
        return DeviceState(dt_s, np.zeros(self._past(dt_s)), 0.0, self.offset_v)

    def respond(self, volts: Array, dt_s: float, state: DeviceState) -> tuple[Array, DeviceState]:
        """The output (n,) without noise and saturation at the end of each of n steps of `dt_s`, and the state there.

        `volts` (n,) is the input during each step. The step may differ from that of the state: the past is then
        interpolated.
        """
        from reservoir_hw.emulators.physics import kernels

        past = _on_grid(state.past, state.dt_s, dt_s, self._past(dt_s))
        out, past = self._evolve(volts, dt_s, state.x, past, kernels.weights(dt_s / self.tau_s))
        x = float(out[-1])
        amplifier = kernels.weights(2 * math.pi * self.bandwidth_hz * dt_s)
        kernels.low_pass(state.amplifier_v, state.x, out, self.output_v, self.offset_v, *amplifier)
        return out, DeviceState(dt_s, past, x, float(out[-1]))

    def at_output(self, volts: Array, sample_s: float, random: np.random.Generator | None = None) -> Array:
        """What of volts (n,), so far apart, comes out: with noise, if `random` decides it, and saturated."""
        from reservoir_hw.emulators.physics import kernels

        if random is not None and self.noise_v:
            keep = math.exp(-2 * math.pi * self.bandwidth_hz * sample_s)
            begin, normal = random.normal(0.0, self.noise_v), random.standard_normal(len(volts))
            volts = volts + kernels.noise(begin, normal, self.noise_v, keep)
        return np.clip(volts, -self.saturation_v, self.saturation_v)

    @abstractmethod
    def _past(self, dt_s: float) -> int:
        """How many values of the past the equation needs."""

    @abstractmethod
    def _steps_of_delay(self, sample_s: float) -> int:
        """Steps in a sample period that the delay asks for at least."""

    @abstractmethod
    def _evolve(self, volts: Array, dt_s: float, x: float, past: Array, weights: Weights) -> tuple[Array, Array]:
        """x (n,) at the end of each step, and the past there."""


class _DelayedFeedback(_Device):
    """A node whose own output acts on it again after the delay."""

    delay_s: PositiveFloat = Field(default=500e-6, description="T, of the feedback")
    feedback_gain: float

    def _past(self, dt_s: float) -> int:
        return int(self.delay_s / dt_s) + 2

    def _steps_of_delay(self, sample_s: float) -> int:
        return math.ceil(sample_s / self.delay_s)

    @abstractmethod
    def _equation(self) -> tuple[int, float, float]:
        """The number of the equation, the gain of the input in 1/V, and its phase or exponent."""

    def _evolve(self, volts: Array, dt_s: float, x: float, past: Array, weights: Weights) -> tuple[Array, Array]:
        from reservoir_hw.emulators.physics import kernels

        code, gain_per_v, shape = self._equation()
        begun = len(past)
        line = np.concatenate([past, np.empty(len(volts))])
        part = self.delay_s / dt_s - (begun - 2)
        kernels.delayed_feedback(code, line, gain_per_v * volts, begun - 2, part, *weights, self.feedback_gain, shape)
        return line[begun:].copy(), line[-begun:].copy()


class Ikeda(_DelayedFeedback):
    """An opto-electronic delay loop: f = feedback_gain · sin²(x(t - T) + gain · u(t) + phase).

    Larger et al., Optics Express 20, 3241 (2012), and Paquot et al., Scientific Reports 2, 287 (2012).
    """

    kind: Literal["ikeda"] = "ikeda"
    feedback_gain: float = Field(default=0.8, description="β")
    gain_per_v: float = Field(default=0.5, description="phase of the modulator per volt at the input, ρ")
    phase_rad: float = Field(default=0.2, description="working point of the modulator, Φ")

    def _equation(self) -> tuple[int, float, float]:
        from reservoir_hw.emulators.physics import kernels

        return kernels.IKEDA, self.gain_per_v, self.phase_rad


class MackeyGlass(_DelayedFeedback):
    """An electronic delay loop: f = feedback_gain · z / (1 + |z|^exponent), z = x(t - T) + gain · u(t).

    Appeltant et al., Nature Communications 2, 468 (2011).
    """

    kind: Literal["mackey_glass"] = "mackey_glass"
    feedback_gain: float = Field(default=0.8, description="η")
    gain_per_v: float = Field(default=0.05, description="γ, per volt at the input")
    exponent: PositiveFloat = Field(default=1.0, description="p")
    output_v: float = Field(default=10.0, description="volts at the output for x = 1")

    def _equation(self) -> tuple[int, float, float]:
        from reservoir_hw.emulators.physics import kernels

        return kernels.MACKEY_GLASS, self.gain_per_v, self.exponent


class Linear(_Device):
    """A first-order low-pass behind a line: f = gain · u(t - T). Nothing feeds back."""

    kind: Literal["linear"] = "linear"
    delay_s: NonNegativeFloat = Field(default=2e-6, description="T, of the input")
    gain_per_v: float = Field(default=1.0, description="x per volt at the input")

    def _past(self, dt_s: float) -> int:
        return int(self.delay_s / dt_s) + 1

    def _steps_of_delay(self, sample_s: float) -> int:
        return 1

    def _evolve(self, volts: Array, dt_s: float, x: float, past: Array, weights: Weights) -> tuple[Array, Array]:
        from reservoir_hw.emulators.physics import kernels

        begun = len(past)
        line = np.concatenate([past, self.gain_per_v * volts])
        out = np.empty(len(volts))
        kernels.delayed_input(x, line, begun - 1, self.delay_s / dt_s - (begun - 1), weights.keep, out)
        return out, line[-begun:].copy()


def _on_grid(past: Array, old_s: float, new_s: float, points: int) -> Array:
    """The past on another grid that also ends now."""
    if old_s == new_s:
        return past
    age = np.arange(len(past) - 1, -1, -1) * old_s
    wanted = np.arange(points - 1, -1, -1) * new_s
    return np.interp(-wanted, -age, past)


def _by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Model: TypeAlias = Ikeda | MackeyGlass | Linear

Device = Annotated[
    Model,
    Field(discriminator="kind"),
    BeforeValidator(_by_name, json_schema_input_type=Model | Literal["ikeda", "mackey_glass", "linear"]),
]


# ---- What a device under test does, as one would try it out on a bench before one measures.


# Levels that are played, and how long one waits at most until the past is forgotten, in levels, too.
_LEVELS = 5000
_LONGEST_MEMORY = 20_000


@dataclass(frozen=True)
class Behaviour:
    """`range_v` is what the output reaches; after `memory_s` it makes no difference above the noise what was before."""

    range_v: tuple[float, float]
    memory_s: float


def behaviour(device: Model, low_v: float, rest_v: float, high_v: float, level_s: float) -> Behaviour:
    """Of a device that is driven with random levels from `low_v` to `high_v`, each for `level_s`, or rests at `rest_v`.

    What was before are such levels, or 0 V.
    Raises `ConfigurationError` for a device that does not forget.
    """
    dt_s = level_s / max(10, round(STEPS_PER_TAU * level_s / device.tau_s))
    held = round(level_s / dt_s)
    random = generator(0, "behaviour of a device")

    def follow(levels: Array) -> Array:
        volts = np.repeat(np.concatenate([levels, np.full(_LONGEST_MEMORY, rest_v)]), held)
        return device.at_output(device.respond(volts, dt_s, device.start(dt_s))[0], dt_s)

    first, *others = (follow(levels) for levels in (*random.uniform(low_v, high_v, (2, _LEVELS)), np.zeros(_LEVELS)))
    answer = first[: _LEVELS * held]
    range_v = float(answer.min()), float(answer.max())
    smallest = max(device.noise_v, 1e-4 * (range_v[1] - range_v[0]))
    differs = np.any([np.abs(first - other)[_LEVELS * held :] > smallest for other in others], axis=0)
    if differs[-1]:
        raise ConfigurationError(
            f"the device under test ({device.kind}) does not forget its past within {_LONGEST_MEMORY * level_s:g} s "
            "of rest: it cannot be a reservoir; reduce its feedback_gain"
        )
    return Behaviour(range_v, float(np.flatnonzero(differs)[-1] + 1) * dt_s if differs.any() else 0.0)


# ---- A memristive film: electrodes whose conductance remembers the volts that were applied.
#
# For electrode k, with volts V at the common electrode,
#
#     dw_k/dt = (1 - w_k) g_k - w_k / tau_k        g_k = (v_k / v0)^2 / tau_k,   v_k = V (1 + coupling w_(k-1))
#     I_k     = V (G_off + (G_on - G_off) w_k) (1 + gate_gain p) (1 + drift t)
#
# p is the polarisation of the gate. It follows the gate volts by a play of ± hysteresis_v. The film knows nothing of
# masks, steps and nodes.


# No step of the integration is longer, as a part of the shortest time constant.
_LARGEST_STEP = 0.25


class FilmConfig(Config):
    """Parameters of the film, and how it departs from its equations."""

    electrodes: PositiveInt = Field(default=8, description="channels 101, 102, ... of the switch matrix")
    fastest_s: PositiveFloat = Field(default=0.05, description="tau of the first electrode")
    slowest_s: PositiveFloat = Field(default=0.6, description="tau of the last; between them a geometric series")
    volts: PositiveFloat = Field(default=0.5, description="v0: the scale of the nonlinearity")
    off_s: PositiveFloat = Field(default=2e-5, description="conductance of an electrode at rest, siemens")
    on_s: PositiveFloat = Field(default=2e-4, description="the highest conductance, siemens")
    coupling: NonNegativeFloat = Field(default=0.6, description="how much the electrode before drives the next")
    gate_gain: float = Field(
        default=0.5, description="change of the conductance by a volt at the gate, as a part of it"
    )
    hysteresis_v: NonNegativeFloat = Field(default=0.0, description="the gate turns back only after so many volts")
    noise_a: NonNegativeFloat = Field(default=0.0, description="rms of a reading of the current")
    drift: float = Field(default=0.0, description="change of the conductance in a second, as a part of it")
    temperature_c: float = Field(default=22.5, description="of the film")
    seed: NonNegativeInt = Field(default=0, description="of the noise")


class Film:
    """The film with its state."""

    def __init__(self, config: FilmConfig) -> None:
        self.config = config
        self.age_s = 0.0
        """Since it was made."""
        self._tau_s = np.geomspace(config.fastest_s, config.slowest_s, config.electrodes)
        self._w = np.zeros(config.electrodes)
        self._gate = 0.0
        self._random = generator(config.seed, "film")

    def rest(self) -> None:
        """As after a long time without volts."""
        self._w[:] = 0.0

    def set_gate(self, volts: float) -> None:
        """The gate is at so many volts."""
        play = self.config.hysteresis_v
        self._gate = min(max(self._gate, volts - play), volts + play)

    def advance(self, volts: float, seconds: float) -> None:
        """So long with these volts at the common electrode."""
        if seconds <= 0:
            return
        pieces = max(1, math.ceil(seconds / (_LARGEST_STEP * self.config.fastest_s)))
        dt_s = seconds / pieces
        for _ in range(pieces):
            before = np.concatenate([[0.0], self._w[:-1]])
            driven = (volts * (1 + self.config.coupling * before) / self.config.volts) ** 2
            rate = (1 + driven) / self._tau_s
            held = driven / (1 + driven)
            self._w = held + (self._w - held) * np.exp(-rate * dt_s)
        self.age_s += seconds

    def conductance_s(self, electrode: int) -> float:
        """Of an electrode, counted from 0."""
        config = self.config
        remembered = config.off_s + (config.on_s - config.off_s) * float(self._w[electrode])
        return remembered * (1 + config.gate_gain * self._gate) * (1 + config.drift * self.age_s)

    def noise_a(self) -> float:
        """Of one reading."""
        return float(self._random.normal(0.0, self.config.noise_a)) if self.config.noise_a else 0.0
