"""The fast outputs of the board."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.function_generator import channel_setting
from reservoir_hw.emulators.physics.signals import CYCLE_SAMPLES, SHAPES, to_codes
from reservoir_hw.emulators.red_pitaya.language import BASE_RATE_HZ, BITS, BUFFER_SAMPLES, Board
from reservoir_hw.emulators.scpi.arguments import Boolean, Integer, Keyword, Number, Numbers
from reservoir_hw.emulators.scpi.messages import ScpiError
from reservoir_hw.emulators.scpi.tree import channel_of, command, constant, reading, setting

SOURCE, OUTPUT = "SOUR{channel:1-2}", "OUTPUT{channel:1-2}"
FULL_SCALE_V = 1.0
_HALF = 2 ** (BITS - 1)
_SHAPES = {"SINE": "SIN", "SQUARE": "SQU", "TRIANGLE": "TRI"}


def _left(name: str) -> Any:
    """Of the full scale, what another setting leaves."""
    return lambda board, channel: FULL_SCALE_V - abs(getattr(board.channels[channel], name))


def _minus(name: str) -> Any:
    return lambda board, channel: -_left(name)(board, channel)


LEVEL = Number("V", -FULL_SCALE_V, FULL_SCALE_V)


@dataclass
class Channel:
    """Settings as after `GEN:RST`. Volts are those into a high impedance."""

    function: str = "SINE"
    frequency_hz: float = 1e3
    amplitude_v: float = 0.8
    offset_v: float = 0.0
    samples: NDArray[np.float32] = field(default_factory=lambda: np.zeros(BUFFER_SAMPLES, np.float32))
    mode: str = "CONTINUOUS"
    cycles: int = 1
    first_v: float = 0.0
    last_v: float = 0.0
    source: str = "INT"
    on: bool = False
    triggered: bool = False

    @property
    def output(self) -> OutputSettings:
        """For the bench. Nothing is computed for an output that is off."""
        if not self.on:
            return OutputSettings(load_ohm=None)
        # Before the first trigger, and after it.
        rest_v = self.last_v if self.triggered else self.first_v
        return OutputSettings(True, None, rest_v, self._waveform())

    def _waveform(self) -> Waveform:
        if self.function == "ARBITRARY":
            # The phase advances by the frequency as if the whole buffer was one period.
            data, rate_hz = self.samples, self.frequency_hz * BUFFER_SAMPLES
            if rate_hz > BASE_RATE_HZ:
                # Samples are left out.
                kept = max(1, int(len(data) * BASE_RATE_HZ / rate_hz))
                data, rate_hz = data[np.arange(kept) * len(data) // kept], rate_hz * kept / len(data)
        elif self.function == "DC":
            data, rate_hz = np.ones(1), self.frequency_hz
        else:
            data, rate_hz = SHAPES[_SHAPES[self.function]], self.frequency_hz * CYCLE_SAMPLES
        codes = to_codes(np.asarray(data, np.float64), 2 * FULL_SCALE_V, 0.0, BITS) - _HALF
        volts = self.offset_v + self.amplitude_v * codes / _HALF
        return Waveform(volts, rate_hz, self.cycles if self.mode == "BURST" else None)


class Generator(Board):
    """What plays."""

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__(bench)
        self.channels = {number: Channel() for number in (1, 2)}

    def apply(self, number: int) -> None:
        """Bring a changed channel to its output. A burst that was played is over, a signal without end goes on."""
        channel = self.channels[number]
        self.bench.set_output(number, channel.output)
        if channel.on and channel.triggered and channel.mode == "CONTINUOUS":
            self.bench.start([number])

    def _start(self, numbers: list[int]) -> None:
        for number in numbers:
            channel = self.channels[number]
            channel.triggered = True
            self.bench.set_output(number, channel.output)
        self.bench.start(numbers)

    @command("GEN:RST")
    def reset_generator(self) -> None:
        """`GEN:RST`: outputs off, and all settings to their defaults. Uploaded waveforms stay."""
        for number, channel in self.channels.items():
            self.channels[number] = Channel(samples=channel.samples)
            self.apply(number)

    @command("OUTPUT:STATE", Boolean())
    def set_outputs(self, on: bool) -> None:
        """`OUTPUT:STATE`: both."""
        for number in self.channels:
            self.channels[number].on = on
            self.apply(number)

    output = channel_setting(OUTPUT + ":STATE", Boolean(), "on")
    function = channel_setting(SOURCE + ":FUNC", Keyword("ARBITRARY", "DC", *_SHAPES), "function")

    @command(SOURCE + ":FREQ:FIX", Number("HZ", 0.0, BASE_RATE_HZ / 2))
    def set_frequency(self, number: int, value: float) -> None:
        """`SOUR<n>:FREQ:FIX`, kept in single precision. 0 would play one sample for ever."""
        if value == 0:
            raise ScpiError(-222)
        self.channels[number].frequency_hz = float(np.float32(value))
        self.apply(number)

    frequency = reading(SOURCE + ":FREQ:FIX", "frequency_hz", of=channel_of)
    amplitude = channel_setting(SOURCE + ":VOLT", Number("V", _minus("offset_v"), _left("offset_v")), "amplitude_v")
    """Volts of a sample of 1."""
    offset = channel_setting(
        SOURCE + ":VOLT:OFFS", Number("V", _minus("amplitude_v"), _left("amplitude_v")), "offset_v"
    )

    @command(SOURCE + ":TRAC:DATA:DATA", Numbers(-1.0, 1.0))
    def load(self, number: int, samples: NDArray[np.float64]) -> None:
        """`SOUR<n>:TRAC:DATA:DATA`: samples within ±1. The buffer of the board ends after 16384."""
        if len(samples) > BUFFER_SAMPLES:
            raise ScpiError(-223)
        self.channels[number].samples = samples.astype(np.float32)
        self.apply(number)

    loaded = reading(SOURCE + ":TRAC:DATA:DATA", "samples", of=channel_of)
    burst = channel_setting(SOURCE + ":BURS:STAT", Keyword("BURST", "CONTINUOUS"), "mode")
    cycles = channel_setting(SOURCE + ":BURS:NCYC", Integer((), 1, 65536), "cycles")
    repetitions = constant(SOURCE + ":BURS:NOR", 1, Integer((), 1, 1))
    """One burst for each trigger."""
    first_level = channel_setting(SOURCE + ":BURS:INITValue", LEVEL, "first_v")
    """Before the first trigger."""
    last_level = channel_setting(SOURCE + ":BURS:LASTValue", LEVEL, "last_v")
    """After a burst."""
    source = setting(SOURCE + ":TRig:SOUR", Keyword("INT", "EXT_PE", "EXT_NE"), "source", of=channel_of)
    """Nothing is connected to the external trigger."""

    @command("SOUR:TRig:INT")
    def trigger_both(self) -> None:
        """`SOUR:TRig:INT`: the outputs that are on."""
        self._start([number for number, channel in self.channels.items() if channel.on])

    @command(SOURCE + ":TRig:INT")
    def trigger_one(self, number: int) -> None:
        """`SOUR<n>:TRig:INT`."""
        if self.channels[number].source != "INT":
            raise ScpiError(-211)
        self._start([number])
