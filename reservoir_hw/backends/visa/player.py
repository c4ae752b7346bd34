"""Bursts of any volts on a bench, and where in their records what they played is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from reservoir_hw.backends.visa.bench import Bench
from reservoir_hw.backends.visa.burst import TAIL, Array, BurstLayout, means
from reservoir_hw.backends.visa.calibration import MarkerAnswer
from reservoir_hw.backends.visa.configuration import BenchConfig
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.hostlock import HostLocks
from reservoir_hw.core.signal import Alignment, Template
from reservoir_hw.drivers.visa.roles import Waveform

Progress = Callable[[str, int, int], None] | None
"""Called with what is being measured, the steps played for it, and those that it takes."""

FINE = 4
"""Points of a mean answer for each sample of the generator."""


@contextlib.contextmanager
def opened(config: BenchConfig) -> Iterator[Bench]:
    """The bench of a configuration, which nobody else uses meanwhile. Its outputs are off afterwards."""
    bench = Bench(config)
    locks = HostLocks(bench.resources)
    locks.acquire(honour_reservations=True)
    try:
        try:
            bench.open()
            for knob in bench.auxiliaries.knobs:
                knob.turn(knob.config.value)
            yield bench
        finally:
            try:
                bench.make_safe()
            finally:
                bench.close()
    finally:
        locks.release()


class Shot(NamedTuple):
    """The record of a burst, and where the burst lies in it."""

    answer: Waveform
    found: Alignment
    layout: BurstLayout

    def means(self, times: Array, width_s: float) -> Array:
        """Mean volts (n,) over a width around times (n,) after the begin of what lies between the markers."""
        return means(self.answer, self.found, self.layout.payload_s + times, width_s)


class Player:
    """Plays bursts on a bench."""

    def __init__(self, config: BenchConfig, bench: Bench, progress: Progress) -> None:
        self.config, self.bench, self._progress = config, bench, progress
        self.layout = config.layout(bench.longest_burst)
        self.known: MarkerAnswer | None = None
        """How the device answers to a marker, once it was measured."""
        # As long as a device needs to forget, if there is room.
        self.hold = max(1, min(config.memory_steps, self.layout.most_steps - 1))
        self.hold_s = self.hold * config.step_period_s

    def play(self, what: str, bursts: Sequence[Array], shots: int) -> list[list[Shot]]:
        """Each burst (samples,) of whole steps `shots` times."""
        played: list[list[Shot]] = []
        lengths = [len(driven) // self.layout.samples_per_step for driven in bursts]
        done, total = 0, shots * sum(lengths)
        for driven, steps in zip(bursts, lengths, strict=True):
            rate = self.bench.load(self.layout.between_markers(driven))
            layout = self.layout.at_rate(rate)
            played.append([])
            for _ in range(shots):
                played[-1].append(self._shot(layout, steps))
                done += steps
                if self._progress is not None:
                    self._progress(what, done, total)
        return played

    def staircase(self, levels: Sequence[float]) -> Array:
        """Levels, each for `hold` steps, and steps of rest; from one to the next as gently as the output must go.

        Raises `ConfigurationError` where a level is over before it is reached.
        """
        rest, volts, each = self.config.rest_v, [], self.layout.samples_per_step
        for before, level, hold in zip(
            [rest, *levels], [*levels, rest], [*(self.hold for _ in levels), 0], strict=True
        ):
            ramp = int(np.ceil(abs(level - before) / self.config.largest_step_v)) + 1
            steps = hold or max(1, -(-(ramp - 1) // each))
            if ramp - 1 > steps * each:
                raise ConfigurationError(
                    f"from {before:.3g} to {level:.3g} V the output may go in {ramp - 1} samples, but a level is held "
                    f"for {steps * each}: allow larger steps (highest_step_v, highest_slew_v_per_s), or give more "
                    "memory_steps"
                )
            samples = np.full(steps * each, level)
            samples[: ramp - 1] = np.linspace(before, level, ramp)[1:]
            volts.append(samples)
        return np.concatenate(volts)

    def _shot(self, layout: BurstLayout, steps: int) -> Shot:
        record = self.bench.shot()
        answer = record[self.config.channels.answer]
        if self.config.channels.monitor is None and self.known is None:
            # The trigger alone tells.
            return Shot(answer, Alignment(-answer.start_s, 1.0, 0.0), layout)
        return Shot(answer, self.bench.locate(layout, record, steps, self.known), layout)


def marker_answer(shots: Sequence[Shot], delay_s: float) -> MarkerAnswer:
    """The mean answer to the first marker and some rest, from a delay on."""
    layout = shots[0].layout
    rate = FINE * layout.hold.sample_rate_hz
    points = FINE * (len(layout.marker) + int(TAIL * len(layout.marker)))
    times = delay_s - layout.payload_s + (np.arange(points, dtype=np.float64) + 0.5) / rate
    return MarkerAnswer(delay_s, Template(np.mean([shot.means(times, 1 / rate) for shot in shots], axis=0), rate))


def noise_at_rest(shot: Shot, rest_s: float) -> float:
    """Of the samples before what was played, rms, without that of the converter's steps (Sheppard's correction)."""
    rate, found = shot.answer.sample_rate_hz, shot.found
    last = int((found.start_s + shot.layout.payload_s * found.clock_ratio) * rate)
    volts = shot.answer.volts[last - int(rest_s * rate) : last]
    return float(np.sqrt(max(0.0, volts.var() - converter_step_v([shot]) ** 2 / 12)))


def converter_step_v(shots: Sequence[Shot]) -> float:
    """Between two volts that the digitizer tells apart."""
    codes = np.unique(np.concatenate([shot.answer.volts for shot in shots]))
    return float(np.diff(codes).min()) if len(codes) > 1 else 0.0
