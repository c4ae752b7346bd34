"""The instruments of a bench as one: a burst is played, and what the digitizer took down meanwhile comes back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from reservoir_hw.backends.visa.burst import TAIL, Array, BurstLayout, means
from reservoir_hw.backends.visa.calibration import Chain, MarkerAnswer
from reservoir_hw.backends.visa.configuration import Auxiliaries, BenchConfig
from reservoir_hw.core import arrays
from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.core.knobs import closed
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.reservoir_config import perform
from reservoir_hw.core.signal import Alignment, Template, align, marker
from reservoir_hw.drivers.guard import Guard
from reservoir_hw.drivers.visa.roles import Trigger, Waveform
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

_INTERLOCK_S = 30.0
# A generator that rounds its sample rate by more than this plays another theta.
_RATE = 1e-3
# The longest difference of two clocks, for the length of a record.
_CLOCKS = 1e-3
# Of a marker, recorded before the burst and after it.
_MARGIN = 0.25


class Bench:
    """Generator, digitizer, what has knobs and monitors, interlock and guard, which holds the locks of `resources`."""

    def __init__(self, config: BenchConfig) -> None:
        self._config = config
        self.generator, self.digitizer = config.generator.build(), config.digitizer.build()
        if (
            config.generator.address == config.digitizer.address
            and isinstance(self.generator, ScpiInstrument)
            and isinstance(self.digitizer, ScpiInstrument)
        ):
            # One connection for both roles. Instruments of other libraries have connections of their own.
            self.digitizer.share(self.generator)
        self.auxiliaries = Auxiliaries(config.knobs, config.monitors)
        self.resources = {
            config.generator.locked,
            config.digitizer.locked,
            *self.auxiliaries.resources,
        }
        self.settle_s = config.memory_steps * config.step_period_s if config.settle_s is None else config.settle_s
        self.margin_s = _MARGIN * len(marker(1)) * config.theta_s
        """What is recorded before the trigger, and again after the burst."""
        self._nominal_hz = config.sample_rate_hz
        self._record_hz = config.samples_per_node / config.theta_s
        closing = [one.safe_state for one in config.knobs.values()]
        watched = [self.generator.safe_state, *(one for one in closing if one is not None)]
        self.guard = Guard(watched, sorted(self.resources))
        """Has connections of its own: it switches the outputs off beside a call that hangs."""
        self._guarded = self._on = False
        self._burst_s = 0.0
        self._configured: tuple[tuple[int, ...], float, int] | None = None

    @property
    def longest_burst(self) -> int:
        """In samples of the generator: what it can play and the digitizer take down."""
        seconds = (self.digitizer.longest_record / self._record_hz - 2 * self.margin_s) / (1 + _CLOCKS)
        return min(self.generator.longest_waveform, int(seconds * self._nominal_hz))

    @property
    def chain(self) -> Chain:
        """What a calibration of this bench is true of. It must be open."""
        config = self._config
        return Chain(
            device_name=config.device_name,
            generator=self.generator.idn,
            digitizer=self.digitizer.idn,
            output=config.channels.output,
            answer=config.channels.answer,
            theta_s=config.theta_s,
            points_per_node=config.points_per_node,
            rest_v=config.rest_v,
            marker_v=config.highest_marker_v,
        )

    def open(self) -> None:
        """Connect; nothing is switched on before somebody watches over it."""
        self._on, self._configured = False, None
        self.generator.open()
        self.digitizer.open()
        self.guard.start()
        self._guarded = True

    def close(self) -> None:
        """Connections closed, after `make_safe`."""
        self.generator.close()
        self.digitizer.close()
        self.auxiliaries.close()

    def make_safe(self) -> None:
        """Outputs off, then knobs at their closing values. Idempotent."""
        if not self._guarded:
            return
        self._guarded = False
        try:
            self.switch_off()
            closed(self.auxiliaries.knobs)
        except BaseException:
            # What could not be done here is left to the guard.
            self.guard.abandon()
            raise
        self.guard.stop()

    def switch_off(self) -> None:
        """The outputs are off. The next burst switches them on again."""
        self._on = False
        self.generator.stop()

    def load(self, volts: Array) -> float:
        """Make ready for bursts of `volts` (samples,); returns the sample rate of the generator, as read back."""
        config = self._config
        self.guard.expect_alive()
        self._on = False
        rate = self.generator.load({config.channels.output: volts}, self._nominal_hz)
        if abs(rate / self._nominal_hz - 1) > _RATE:
            raise ConfigurationError(
                f"the generator plays {rate:g} samples/s and not {self._nominal_hz:g} = points_per_node / theta_s: "
                f"take a theta_s near {config.points_per_node / rate:g}"
            )
        self._burst_s = len(volts) / rate
        self._configure(int(np.ceil((2 * self.margin_s + self._burst_s * (1 + _CLOCKS)) * self._record_hz)))
        return rate

    def shot(self) -> dict[int, Waveform]:
        """Play the burst from rest; what the answer's input took down, and the monitor's if there is one.

        Raises `DeviceFault` for samples that are no numbers.
        """
        self.guard.expect_alive()
        interlock = self._config.interlock
        if interlock is not None and perform(interlock, self._config, ".", _INTERLOCK_S, "interlock") is not True:
            name = interlock if isinstance(interlock, str) else " ".join(interlock)
            raise DeviceFault(f"the interlock {name} does not permit a burst; nothing was played")
        if not self._on:
            self.generator.arm()
            self._on = True
        time.sleep(self.settle_s)
        self.digitizer.arm()
        self.generator.trigger()
        self.digitizer.wait(self._burst_s + self._config.digitizer.timeout_s)
        records = self.digitizer.fetch()
        for number, record in records.items():
            bad = arrays.not_finite(record.volts, arrays.NO_NUMBER)
            if bad.any():
                first = bad.argmax()
                # Behind it no mean of the record would be right.
                raise DeviceFault(
                    f"{self._config.digitizer.address}: sample {first} of input {number} is {record.volts[first]:g}, "
                    "by which instruments say that there is no number: set a wider range_v"
                )
        return records

    def locate(
        self, layout: BurstLayout, record: dict[int, Waveform], steps: int, answer: MarkerAnswer | None
    ) -> Alignment:
        """Where in a record the answer to a burst of so many steps lies.

        Without a monitor it needs to know how the device answers to a marker. Raises `DeviceFault` if the markers are
        not found.
        """
        channels = self._config.channels
        if channels.monitor is None:
            assert answer is not None, "the configuration has refused this"
            markers, template = record[channels.answer], answer.template
        else:
            markers, template = record[channels.monitor], layout.template
        found = align(
            markers.volts,
            markers.sample_rate_hz,
            template,
            layout.marker_distance_s(steps),
            latest_s=max(0.0, -markers.start_s) + self.margin_s,
            max_residual=self._config.max_residual,
        )
        if channels.monitor is None or answer is None:
            return found
        return replace(found, start_s=found.start_s + answer.delay_s * found.clock_ratio)

    def settings(self) -> dict[str, Any]:
        """For the provenance."""
        return {
            "instruments": {"generator": self.generator.idn, "digitizer": self.digitizer.idn},
            "knobs": {knob.name: knob.read() for knob in self.auxiliaries.knobs},
        }

    def _configure(self, samples: int) -> None:
        channels = self._config.channels
        inputs = tuple(n for n in (channels.answer, channels.monitor) if n is not None)
        if (inputs, self._record_hz, samples) == self._configured:
            return
        self._configured = None
        self.digitizer.configure(inputs, self._trigger(), self._record_hz, samples)
        self._configured = (inputs, self._record_hz, samples)

    def _trigger(self) -> Trigger:
        config = self._config
        given = config.trigger or Trigger(source="external")
        monitor, rest_v = config.channels.monitor, config.rest_v
        if config.trigger is None and monitor is not None:
            slope = "rising" if config.highest_marker_v > rest_v else "falling"
            given = Trigger(source=monitor, level_v=(rest_v + config.highest_marker_v) / 2, slope=slope)
        return given.model_copy(update={"before_s": self.margin_s})


# ---- Bursts of any volts on a bench, and where in their records what they played is found.


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
    with contextlib.ExitStack() as undone:
        undone.callback(locks.release)
        undone.callback(bench.close)
        undone.callback(bench.make_safe)
        bench.open()
        for knob in bench.auxiliaries.knobs:
            knob.turn(knob.config.value)
        yield bench


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
            layout = self.layout.at_rate(self.bench.load(self.layout.between_markers(driven)))
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
