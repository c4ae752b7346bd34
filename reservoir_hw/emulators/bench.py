"""The bench behind emulated instruments: outputs of a generator, cables, a device under test, inputs of a digitizer.

Emulated instruments drive it as Python calls. It knows volts and seconds, and no command.

**Time.** Seconds of the bench are those of the generator's clock, from the moment the bench began. Between bursts they
pass as on the wall, and devices relax meanwhile. A burst, and a record that it triggers, are computed at once: the
bench's time jumps to their end. They are computed in seconds since the burst began, so that a burst has the same bits
however old the bench is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.emulators.physics.chain import Chain, DeviceChain, Trace, Wire
from reservoir_hw.emulators.physics.devices import Array, Device, Ikeda
from reservoir_hw.emulators.physics.signals import Interpolation, Playback, Slope, at_rest

Event = dict[str, Any]


class EventLog:
    """Events in the order in which they happened, in memory and, if a path is given, as JSON lines in a file.

    An event has `event`, `channel`, `time_s` (of the bench) and `unix_s` (of this computer), and what belongs to its
    kind. A line is in the file before the call that wrote it returns. The file is appended to.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.events: list[Event] = []
        self._file = path.open("a", encoding="utf-8") if path else None

    def write(self, event: str, channel: int, time_s: float, **details: Any) -> None:
        """Add one event."""
        entry = {"event": event, "channel": channel, "time_s": time_s, "unix_s": time.time(), **details}
        self.events.append(entry)
        if self._file:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


def outputs_on(path: Path) -> list[int]:
    """The outputs that are on at the end of a log file.

    Raises `ConfigurationError` for a file that is none, or says nothing about outputs.
    """
    on: dict[int, bool] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if event["event"] in ("on", "off"):
                on[event["channel"]] = event["event"] == "on"
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError(f"{path}:{number}: this is no event of an emulated bench or board") from None
    if not on:
        raise ConfigurationError(
            f"{path} says nothing about outputs; was the bench or board started with --log {path}?"
        )
    return [channel for channel, is_on in on.items() if is_on]


SOURCE_OHM = 50.0
# Of a signal without end no more is computed ahead: a generator goes down to 1 µHz.
_LONGEST_PERIOD_S = 20.0
Source = int | Literal["external"]


class Cable(Config):
    """What comes to an input of the digitizer: an output, through a device if there is one."""

    output: PositiveInt
    device: Device | None = None
    amplification: PositiveFloat = Field(default=1.0, description="between the output and the device")

    @property
    def amplified(self) -> Device | None:
        """The device together with what amplifies its input."""
        if self.device is None:
            return None
        return self.device.model_copy(update={"gain_per_v": self.amplification * self.device.gain_per_v})


def _default_inputs() -> dict[int, Cable]:
    return {1: Cable(output=1, device=Ikeda()), 2: Cable(output=1), 3: Cable(output=2)}


class BenchConfig(Config):
    """The bench. By default a device lies between output 1 and input 1, input 2 monitors output 1, and 3 output 2."""

    inputs: dict[int, Cable] = Field(default_factory=_default_inputs)
    termination_ohm: PositiveFloat | None = Field(
        default=50.0, description="what really terminates each output; null: nothing"
    )
    digitizer_ppm: Annotated[float, Field(gt=-1e5, lt=1e5)] = Field(
        default=12.0, description="by how much the digitizer's clock is faster than the generator's"
    )
    trigger_jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        default=1.0, description="in sample periods of the digitizer, whose clock does not know of the trigger"
    )
    seed: Annotated[int, Field(ge=0)] = 0

    def with_device(self, device: Device) -> Self:
        """The same bench with another device wherever there is one."""
        inputs = {n: c.model_copy(update={"device": device}) if c.device else c for n, c in self.inputs.items()}
        return self.model_copy(update={"inputs": inputs})


@dataclass(frozen=True)
class Waveform:
    """What an output plays when it is started. `volts` (n,) are those that the instrument's settings promise.

    `cycles` is the number of repetitions; None: until the output is set or started again. The output holds each sample
    for its period, or goes straight to the next ("linear"): the coarse picture of a generator's reconstruction filter.
    """

    volts: Array
    rate_hz: float
    cycles: int | None = 1
    interpolation: Interpolation = "hold"


@dataclass(frozen=True)
class OutputSettings:
    """How an output is set. Volts are those that the instrument displays.

    `load_ohm` is the load that the instrument believes to drive (None: high impedance), `rest_v` the level while
    nothing is played. An output that is off is at 0 V.
    """

    on: bool = False
    load_ohm: float | None = 50.0
    rest_v: float = 0.0
    waveform: Waveform | None = None


@dataclass(frozen=True)
class Acquisition:
    """What the digitizer shall record. Sample 0 is the first one `first_s` after the trigger (negative: before it).

    `first_s` and `rate_hz` are in the digitizer's own clock. `source` is an input, whose volts cross `level_v`, or
    "external": the trigger output of the generator, which says when a burst begins. `channels` are the inputs recorded;
    one that is not connected reads 0 V. Each sample is the mean of `averaged` values that are taken within its period.
    """

    rate_hz: float
    samples: int
    first_s: float = 0.0
    source: Source = "external"
    level_v: float = 0.0
    slope: Slope = "rising"
    channels: Sequence[int] = (1,)
    averaged: int = 1


class VirtualBench:
    """Outputs 1 and 2, the inputs that `config` names, and the log of what the outputs did.

    All methods may be called from any thread. A burst is not interrupted: a call from another thread waits for its end.
    """

    def __init__(self, config: BenchConfig | None = None, log: Path | None = None) -> None:
        self.config = config or BenchConfig()
        self.log = EventLog(log)
        self.outputs = (1, 2)
        """Their numbers."""
        self._settings = {channel: OutputSettings() for channel in self.outputs}
        self._signals = {channel: at_rest(0.0) for channel in self._settings}
        self._chains: dict[int, Chain] = {
            number: DeviceChain(device, self.config.seed + number) if (device := cable.amplified) else Wire()
            for number, cable in self.config.inputs.items()
            if cable.output in self._settings
        }
        # Seconds of the digitizer's clock in a second of the bench.
        self._clock = 1 + 1e-6 * self.config.digitizer_ppm
        self._random = generator(self.config.seed, "trigger jitter")
        self._changed = threading.Condition(threading.RLock())
        self._armed: Acquisition | None = None
        self._record: dict[int, Array] | None = None
        # When the last burst began, and where the bench was after it (in seconds since then) at a time on the wall.
        self._origin_s, self._bench_s, self._wall_s = 0.0, 0.0, time.monotonic()

    def now(self) -> float:
        """Seconds of the bench since it began."""
        with self._changed:
            return self._origin_s + self._since()

    # The generator's side.

    def output(self, channel: int) -> OutputSettings:
        """How an output is set; change it by `set_output(channel, dataclasses.replace(output(channel), on=True))`."""
        return self._settings[channel]

    def set_output(self, channel: int, settings: OutputSettings) -> None:
        """Set an output. It rests at its level from now on, and what it may have played without end is over.

        A waveform alone changes nothing before `start`. Logs "on", "off", and "level" (the level of rest while on).
        """
        with self._changed:
            old, now = self._settings[channel], self._since()
            if replace(old, waveform=None) == replace(settings, waveform=None):
                self._settings[channel] = settings
                return
            self._stop_playing(channel, now)
            self._settings[channel] = settings
            volts = self._rest(channel)
            self._signals[channel] = at_rest(volts)
            if old.on != settings.on:
                self._log("on" if settings.on else "off", channel, now, volts=volts)
            elif settings.on:
                self._log("level", channel, now, volts=volts)

    def start(self, channels: Sequence[int]) -> None:
        """Trigger: these outputs play their waveforms from now on, all at the same time.

        Returns when their bursts are over and what they triggered is recorded. A waveform without end goes on. Outputs
        that are off play nothing but still trigger the digitizer. Logs "burst begins" (samples, rate_hz, cycles, and
        the lowest and highest volts at the terminals) and "burst ends" for those that are on.
        """
        with self._changed:
            self._begin()
            played = {channel: w for channel in channels if (w := self._settings[channel].waveform) is not None}
            for channel, waveform in played.items():
                on = self._settings[channel].on
                if not self._signals[channel].constant:
                    self._stop_playing(channel, 0.0)
                volts = np.asarray(waveform.volts, np.float64) * (self._factor(channel) if on else 0.0)
                signal = self._signals[channel] = Playback(
                    0.0, waveform.rate_hz, volts, waveform.cycles, self._rest(channel), waveform.interpolation
                )
                if on:
                    low_v, high_v = float(signal.volts.min()), float(signal.volts.max())
                    self._log(
                        "burst begins", channel, 0.0, samples=len(waveform.volts), rate_hz=waveform.rate_hz,
                        cycles=waveform.cycles, low_v=low_v, high_v=high_v,
                    )  # fmt: skip
            self._play(trigger_s=0.0 if self._armed and self._armed.source == "external" else None)
            for channel in played:
                signal = self._signals[channel]
                if self._settings[channel].on and signal.repeats is not None:
                    self._log("burst ends", channel, signal.end_s)
                    self._signals[channel] = at_rest(signal.rest_v)

    def stop(self, channels: Sequence[int]) -> None:
        """These outputs rest from now on: what they play without end is over. Logs "burst ends"."""
        with self._changed:
            now = self._since()
            for channel in channels:
                if not self._signals[channel].constant:
                    self._stop_playing(channel, now)
                    self._signals[channel] = at_rest(self._rest(channel))

    # The digitizer's side.

    def arm(self, acquisition: Acquisition) -> None:
        """Wait for a trigger from now on; an earlier record is forgotten.

        An output that plays without end may trigger at once.
        """
        with self._changed:
            self._armed, self._record = acquisition, None
            if any(not signal.constant for signal in self._signals.values()):
                self._begin()
                self._play(trigger_s=None)

    def force(self) -> None:
        """Trigger the armed digitizer now, whatever its source does."""
        with self._changed:
            if self._armed:
                self._begin()
                self._play(trigger_s=0.0)

    def disarm(self) -> None:
        """Stop waiting for a trigger; a `capture` that waits returns None."""
        with self._changed:
            self._armed = None
            self._changed.notify_all()

    @property
    def armed(self) -> bool:
        """Whether the digitizer waits for its trigger."""
        return self._armed is not None

    def capture(self, timeout_s: float) -> dict[int, Array] | None:
        """The last record, volts (samples,) by input: what the digitizer's converter sees, without its range and bits.

        Waits for at most `timeout_s` while the digitizer is armed. None: not triggered in time (it stays armed), or not
        armed and nothing recorded.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._armed is None, timeout_s)
            return self._record

    def close(self) -> None:
        """Close the file of the log."""
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # Signals.

    def _factor(self, channel: int) -> float:
        """Volts at the terminals for a volt that the instrument displays."""
        return _share(self.config.termination_ohm) / _share(self._settings[channel].load_ohm)

    def _rest(self, channel: int) -> float:
        settings = self._settings[channel]
        return settings.rest_v * self._factor(channel) if settings.on else 0.0

    def _stop_playing(self, channel: int, now: float) -> None:
        """Follow what hangs on an output up to now, before its settings or its signal change."""
        for number, chain in self._chains.items():
            if self.config.inputs[number].output == channel:
                chain.advance(self._signals[channel], now)
        if self._settings[channel].on and not self._signals[channel].constant:
            self._log("burst ends", channel, now)

    def _log(self, event: str, channel: int, since_s: float, **more: Any) -> None:
        self.log.write(event, channel, self._origin_s + since_s, **more)

    # Time, in seconds since the last burst began.

    def _since(self) -> float:
        return self._bench_s + time.monotonic() - self._wall_s

    def _before_s(self) -> float:
        """How long before its trigger the armed record begins."""
        return max(0.0, -self._armed.first_s / self._clock) if self._armed else 0.0

    def _begin(self) -> None:
        """A burst begins now, or when all that a record shows before its trigger still lies ahead."""
        followed = max((chain.time_s + chain.margin_s for chain in self._chains.values()), default=0.0)
        begin_s = max(self._since(), followed + self._before_s())
        self._origin_s += begin_s
        self._bench_s -= begin_s
        for chain in self._chains.values():
            chain.time_s -= begin_s
        for channel, signal in self._signals.items():
            self._signals[channel] = replace(signal, start_s=signal.start_s - begin_s)

    def _play(self, trigger_s: float | None) -> None:
        """Compute all that happens from 0 on, up to the end of bursts and of the record that they trigger.

        Without `trigger_s` the source of the trigger is watched.
        """
        armed = self._armed
        signals = {number: self._signals[self.config.inputs[number].output] for number in self._chains}
        # Of what has no end, one period, if anybody would wait for it.
        ends = (
            s.end_s if s.repeats else min(len(s.volts) / s.rate_hz, _LONGEST_PERIOD_S)
            for s in signals.values()
            if not s.constant
        )
        end_s = max(ends, default=0.0)
        for number, chain in self._chains.items():
            chain.begin(signals[number], self._before_s())
        traces: dict[int, Trace] = {}
        if armed and trigger_s is None and armed.source in self._chains:
            source = int(armed.source)
            until_s = end_s + self._chains[source].answer_s
            traces[source] = self._chains[source].record(signals[source], until_s)
            trigger_s = traces[source].crossing(until_s, armed.level_v, armed.slope)
        if armed and trigger_s is not None:
            first = self._random.random() * self.config.trigger_jitter
            taken = np.arange(armed.samples * armed.averaged, dtype=np.float64) / armed.averaged
            since_s = armed.first_s + (first + taken) / armed.rate_hz
            times = trigger_s + since_s / self._clock
            self._record = {channel: np.zeros(armed.samples) for channel in armed.channels}
            for channel in self._record.keys() & self._chains.keys():
                trace = self._chains[channel].record(signals[channel], times[-1], traces.get(channel))
                self._record[channel] = trace.at(times).reshape(-1, armed.averaged).mean(axis=1)
            self._armed = None
            self._changed.notify_all()
        for number, chain in self._chains.items():
            if not signals[number].constant and chain.time_s < end_s:
                chain.advance(signals[number], end_s)
        self._bench_s = max([end_s, *(chain.time_s for chain in self._chains.values())])
        self._wall_s = time.monotonic()


def _share(load_ohm: float | None) -> float:
    """Of the volts inside a generator, what is left at a load."""
    return 1.0 if load_ohm is None else load_ohm / (SOURCE_OHM + load_ohm)
