"""What lies between an output of the generator and an input of the digitizer, followed in time."""

from __future__ import annotations

import math

import numpy as np

from reservoir_hw.emulators.physics.devices import STEPS_PER_SAMPLE, Array, Model
from reservoir_hw.emulators.physics.signals import Playback, Slope, at_rest, crossing

# Steps that are computed at a time: what they need stays in the caches.
_BLOCK = 1 << 16
# Steps in which a device comes to rest, at most.
_RESTING = 1 << 18


class Wire:
    """A cable: the volts at the terminals of the output.

    As of a device, `time_s` says until when a signal has been followed, since the last burst began.
    """

    margin_s = 0.0
    """What `begin` needs at least between `time_s` and the first moment that is recorded."""
    answer_s = 0.0
    """How long after the end of a burst its answer may still rise."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def advance(self, signal: Playback, until_s: float) -> None:
        """Go on to a time."""
        self.time_s = until_s

    def begin(self, signal: Playback, before_s: float) -> None:
        """Go on to `before_s` before 0, where the burst begins."""
        self.time_s = -before_s

    def record(self, signal: Playback, until_s: float, earlier: Trace | None = None) -> Trace:
        """Go on until at least a time, and return the volts since now (or since the begin of an earlier trace)."""
        self.time_s = until_s
        return signal


class DeviceChain:
    """A device under test, at rest for a long time when the bench begins."""

    def __init__(self, device: Model, seed: int) -> None:
        self._device = device
        self._dt_s = device.step_s(1e-6)
        self._state = device.start(self._dt_s)
        self._random = np.random.default_rng(seed)
        self.time_s = -device.settled_s
        self.margin_s = 2 * device.longest_step_s
        self.answer_s = 10 * device.tau_s + 2 * device.delay_s
        # Compile now: nobody waits for it in the first burst.
        device.respond(at_rest(0.0).at(np.zeros(2)), self._dt_s, device.start(self._dt_s))
        _Samples([np.zeros(2)], 0.0, self._dt_s, device, np.random.default_rng(0)).at(np.zeros(2))

    def advance(self, signal: Playback, until_s: float) -> None:
        """Go on to a time, rounded to whole steps. Of a long rest only the end is computed."""
        dt_s = self._dt_s
        if signal.constant or self.time_s >= signal.end_s:
            self.time_s = max(self.time_s, until_s - self._device.settled_s)
            # A slow device would take millions of steps of a fast generator.
            dt_s = max(dt_s, self._device.step_s((until_s - self.time_s) * STEPS_PER_SAMPLE / _RESTING))
        for count in _blocks(round((until_s - self.time_s) / dt_s)):
            self._step(signal, count, dt_s)
        self.time_s = until_s

    def begin(self, signal: Playback, before_s: float) -> None:
        """Go on to at least `before_s` before 0, where the burst begins; steps end where its samples do."""
        if not signal.constant:
            self._dt_s = self._device.step_s(1 / signal.rate_hz)
        start_s = -(math.ceil(before_s / self._dt_s) + 1) * self._dt_s
        if start_s > self.time_s:
            self.advance(at_rest(signal.rest_v) if signal.start_s == 0 else signal, start_s)

    def record(self, signal: Playback, until_s: float, earlier: Trace | None = None) -> Trace:
        """As `Wire.record`."""
        if isinstance(earlier, _Samples):
            blocks, start_s = earlier.blocks, earlier.start_s
        else:
            blocks, start_s = [np.array([self._state.amplifier_v])], self.time_s
        for count in _blocks(math.ceil((until_s - self.time_s) / self._dt_s)):
            blocks.append(self._step(signal, count, self._dt_s))
        return _Samples(blocks, start_s, self._dt_s, self._device, self._random)

    def _step(self, signal: Playback, count: int, dt_s: float) -> Array:
        # In the middle of a step the signal has the value that it has on average: both kinds of playback change at the
        # ends of steps.
        volts = signal.at(self.time_s + (np.arange(count, dtype=np.float64) + 0.5) * dt_s)
        out, self._state = self._device.respond(volts, dt_s, self._state)
        self.time_s += count * dt_s
        return out


Chain = Wire | DeviceChain
"""The way of a signal."""


class _Samples:
    """Samples at start_s + k dt_s, with straight lines between them. Noise comes when they are looked at."""

    def __init__(
        self, blocks: list[Array], start_s: float, dt_s: float, device: Model, random: np.random.Generator
    ) -> None:
        self.blocks, self.start_s, self._dt_s = blocks, start_s, dt_s
        self._device, self._random = device, random

    def at(self, times: Array) -> Array:
        """As `Playback.at`, at times (m,), m ≥ 2, equally far apart."""
        from reservoir_hw.emulators.physics import kernels

        out = np.empty(len(times))
        kernels.between(self._joined(), self.start_s, self._dt_s, times, out)
        return self._device.at_output(out, float(times[-1] - times[0]) / (len(times) - 1), self._random)

    def crossing(self, end_s: float, level_v: float, slope: Slope) -> float | None:
        """As `Playback.crossing`."""
        first = max(0, math.floor(-self.start_s / self._dt_s))
        last = math.ceil((end_s - self.start_s) / self._dt_s) + 1
        return crossing(self._joined()[first:last], self.start_s + first * self._dt_s, self._dt_s, level_v, slope)

    def _joined(self) -> Array:
        if len(self.blocks) > 1:
            self.blocks = [np.concatenate(self.blocks)]
        return self.blocks[0]


Trace = Playback | _Samples
"""Volts at an input over some time."""


def _blocks(steps: int) -> list[int]:
    steps = max(0, steps)
    return [_BLOCK] * (steps // _BLOCK) + [steps % _BLOCK] * (steps % _BLOCK > 0)
