"""An emulated Red Pitaya."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import Acquisition, OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.function_generator import channel_setting
from reservoir_hw.emulators.physics.signals import CYCLE_SAMPLES, SHAPES, to_codes
from reservoir_hw.emulators.scope import looked, settings_of
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.messages import (
    Boolean,
    Integer,
    Keyword,
    Limit,
    Number,
    Numbers,
    ScpiError,
    definite_block,
)
from reservoir_hw.emulators.scpi.tree import channel_of, command, constant, query, reading, setting

# ---- What both halves of the board share: how it answers, and its status (scpi-server of Red Pitaya OS 2).


BASE_RATE_HZ = 125e6
BUFFER_SAMPLES = 16384
BITS = 14


class Board(ScpiDevice):
    """A board on a bench."""

    identity = "REDPITAYA,INSTR2024,0,01-16"
    number_format = "g"

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__()
        self.bench = bench
        self.array_format = "ASCII"

    def reset(self) -> None:
        """`*RST` changes nothing: `GEN:RST` and `ACQ:RST` do."""

    def trigger(self) -> None:
        """There is no `*TRG`."""
        raise ScpiError(-113)

    def answer(self, value: Any) -> bytes:
        """Arrays as the format says, truth as a word."""
        if isinstance(value, np.ndarray) and self.array_format == "BIN":
            # The most significant byte first.
            return definite_block(value.astype(value.dtype.newbyteorder(">")).data)
        if isinstance(value, np.ndarray):
            digits = "%d" if value.dtype.kind == "i" else "%f"
            return ("{" + ",".join([digits % number for number in value.tolist()]) + "}").encode()
        if isinstance(value, bool):
            return b"ON" if value else b"OFF"
        return super().answer(value)

    format = setting("ACQ:DATA:FORMAT", Keyword("BIN", "ASCII"), "array_format")
    """Of all arrays, also those of the generator."""

    error_count = query("SYSTem:ERRor:COUNt")(lambda self: len(self._errors))

    board_id = constant("SYSTem:BRD:ID", 1)
    board_name = constant("SYSTem:BRD:Name", "STEMlab 125-14 v1.0")


# ---- The fast inputs of the board.


INPUT = "ACQ:SOUR{channel:1-2}"
SAMPLES = Integer((), 1, BUFFER_SAMPLES)
RANGES_V = {"LV": 1.0, "HV": 20.0}
TRIGGER_SAMPLE = BUFFER_SAMPLES // 2
COARSEST = 65536
# From 16 on, any factor is allowed. Below, only powers of two.
FREE_FACTORS = 16
# More than these would make no difference to a mean.
MOST_AVERAGED = 8
_HALF = 2 ** (BITS - 1)
_INPUTS = {f"CH{number}_{edge}": number for number in (1, 2) for edge in ("PE", "NE")}
# Nothing is connected to the external trigger.
_NEVER = ("EXT_PE", "EXT_NE")


@dataclass
class _Settings:
    """As after `ACQ:RST`."""

    factor: int = 1
    averages: bool = True
    units: str = "VOLTS"
    delay: int = 0
    level_v: float = 0.0
    gains: dict[int, str] = field(default_factory=lambda: {1: "LV", 2: "LV"})


acquisition_setting = partial(setting, of=settings_of)


class Digitizer(Board):
    """The inputs of the board: they record."""

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__(bench)
        self._state = threading.RLock()
        self._set = _Settings()
        self._started, self._waiting_for = False, ""
        self._codes: dict[int, NDArray[np.int16]] | None = None

    def look(self) -> None:
        """Take the record if the trigger has come."""
        with self._state:
            if not self._waiting_for or self._waiting_for in _NEVER or self.bench.armed:
                return
            record = self.bench.capture(0)
            assert record is not None, "what is not armed any more has triggered"
            self._started, self._waiting_for = False, ""
            self._codes = {
                number: (to_codes(volts, 2 * RANGES_V[self._set.gains[number]], 0.0, BITS) - _HALF).astype(np.int16)
                for number, volts in record.items()
            }

    def _arm(self, source: str) -> None:
        factor = self._set.factor
        self.bench.arm(
            Acquisition(
                rate_hz=BASE_RATE_HZ / factor,
                samples=BUFFER_SAMPLES,
                first_s=(self._set.delay - TRIGGER_SAMPLE) * factor / BASE_RATE_HZ,
                source=_INPUTS.get(source, "external"),
                level_v=self._set.level_v,
                slope="falling" if source.endswith("NE") else "rising",
                channels=tuple(self._set.gains),
                averaged=min(factor, MOST_AVERAGED) if self._set.averages else 1,
            )
        )
        if source == "NOW":
            self.bench.force()

    # ---- acquisition ----------------------------------------------------------------------------

    @command("ACQ:START")
    def start_acquisition(self) -> None:
        """`ACQ:START`: the buffer is filled, and an earlier record forgotten."""
        with self._state:
            self.bench.disarm()
            self._started, self._waiting_for, self._codes = True, "", None

    @command("ACQ:STOP")
    def stop_acquisition(self) -> None:
        """`ACQ:STOP`."""
        self.look()
        with self._state:
            self._started, self._waiting_for = False, ""
            self.bench.disarm()

    @command("ACQ:RST")
    def reset_acquisition(self) -> None:
        """`ACQ:RST`."""
        self.stop_acquisition()
        with self._state:
            self._set, self._codes, self.array_format = _Settings(), None, "ASCII"

    @command("ACQ:DEC:Factor", Integer((), 1, COARSEST))
    def set_factor(self, factor: int) -> None:
        """`ACQ:DEC:Factor`: 1, 2, 4, 8, and all from 16 on."""
        if factor < FREE_FACTORS and factor & (factor - 1):
            raise ScpiError(-222)
        self._set.factor = factor

    @command("ACQ:DEC", Integer((), 1, COARSEST))
    def set_decimation(self, factor: int) -> None:
        """`ACQ:DEC`: powers of two."""
        if factor & (factor - 1):
            raise ScpiError(-222)
        self._set.factor = factor

    factor = reading("ACQ:DEC[:Factor]", "factor", of=settings_of)

    sample_rate = query("ACQ:SRATe")(lambda self: f"{BASE_RATE_HZ / self._set.factor:9.0f} Hz")

    averaging = acquisition_setting("ACQ:AVG", Boolean(), "averages")
    """If on, each sample is the mean of up to 8 values within its period."""

    @command(INPUT + ":GAIN", Keyword(*RANGES_V))
    def set_gain(self, number: int, gain: str) -> None:
        """`ACQ:SOUR<n>:GAIN`. The jumper of the emulated board is always where it should be."""
        self._set.gains[number] = gain

    gain = query(INPUT + ":GAIN")(lambda self, number: self._set.gains[number])

    buffer_size = constant("ACQ:BUF:SIZE", BUFFER_SAMPLES)

    # ---- trigger --------------------------------------------------------------------------------

    @command("ACQ:TRig", Keyword("DISABLED", "NOW", *_INPUTS, *_NEVER, "AWG_PE"))
    def set_trigger(self, source: str) -> None:
        """`ACQ:TRig`: wait for it from now on. Before `ACQ:START` there would be nothing to take down."""
        self.look()
        with self._state:
            if source == "DISABLED":
                self._waiting_for = ""
                self.bench.disarm()
                return
            if not self._started:
                raise ScpiError(-221)
            self._waiting_for = source
            if source not in _NEVER:
                self._arm(source)
        self.look()

    trigger_state = query("ACQ:TRig:STAT")(lambda self: "WAIT" if looked(self)._waiting_for else "TD")
    filled = query("ACQ:TRig:FILL")(lambda self: int(looked(self)._codes is not None))
    """Whether the record is complete."""

    delay = acquisition_setting(
        "ACQ:TRig:DLY", Integer((), -(2**31), 2**31 - 1), "delay", kept=lambda samples: max(samples, -TRIGGER_SAMPLE)
    )
    """The middle of the buffer lies this many samples after the trigger."""
    level = acquisition_setting("ACQ:TRig:LEV", Number("V", -RANGES_V["HV"], RANGES_V["HV"]), "level_v")

    trigger_position = query("ACQ:TPOS")(lambda self: TRIGGER_SAMPLE - self._set.delay)
    """Index of the trigger in the buffer; index 0 is the oldest sample."""

    # ---- records --------------------------------------------------------------------------------

    units = acquisition_setting("ACQ:DATA:Units", Keyword("RAW", "VOLTS"), "units")

    @query(INPUT + ":DATA")
    def data(self, number: int) -> NDArray[np.generic]:
        """`ACQ:SOUR<n>:DATA?`: returns the whole record.

        Without a record it raises -230; the real board would send whatever its buffer holds.
        """
        self.look()
        if self._codes is None:
            raise ScpiError(-230)
        codes = self._codes[number]
        if self._set.units == "RAW":
            return codes
        return (codes * (RANGES_V[self._set.gains[number]] / _HALF)).astype(np.float32)

    oldest = query(INPUT + ":DATA:Old:N", SAMPLES)(lambda self, number, samples: self.data(number)[:samples])
    latest = query(INPUT + ":DATA:LATest:N", SAMPLES)(lambda self, number, samples: self.data(number)[-samples:])


# ---- The fast outputs of the board.


SOURCE, OUTPUT = "SOUR{channel:1-2}", "OUTPUT{channel:1-2}"
FULL_SCALE_V = 1.0
_SHAPES = {"SINE": "SIN", "SQUARE": "SQU", "TRIANGLE": "TRI"}


def _left(name: str, sign: int = 1) -> Limit:
    """A limit: the full scale less the absolute value of another setting."""
    return lambda board, channel: sign * (FULL_SCALE_V - abs(getattr(board.channels[channel], name)))


LEVEL = Number("V", -FULL_SCALE_V, FULL_SCALE_V)
AMPLITUDE = Number("V", _left("offset_v", -1), _left("offset_v"))
OFFSET = Number("V", _left("amplitude_v", -1), _left("amplitude_v"))


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
        return OutputSettings(True, None, self.last_v if self.triggered else self.first_v, self._waveform())

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
    """The outputs of the board: they play."""

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__(bench)
        self.channels = {number: Channel() for number in (1, 2)}

    def apply(self, number: int) -> None:
        """Send a channel's changed settings to the bench.

        An endless signal that was triggered starts again. A finished burst does not.
        """
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
    amplitude = channel_setting(SOURCE + ":VOLT", AMPLITUDE, "amplitude_v")
    """Volts of a sample of 1."""
    offset = channel_setting(SOURCE + ":VOLT:OFFS", OFFSET, "offset_v")

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


# ---- A Red Pitaya STEMlab 125-14 with its SCPI server (RedPitaya/RedPitaya, scpi-server, and its list of commands).
#
# One instrument at one address has two outputs and two inputs. Messages and answers end with CR LF. What the server
# leaves open, or what is simpler here:
#
# - Samples beyond ±1 are refused, as the server does, and so are amplitude and offset together beyond ±1 V. More than
#   16384 samples overrun a buffer of the server; here they are -223.
# - The real server accepts some commands at a wrong time, and then returns arbitrary values. Here they are errors: a
#   trigger before `ACQ:START` (-221), data without a record (-230).
# - The format of arrays and the error queue belong to the board, not to a connection.
# - Samples taken with averaging are means of 8 values at most. Nothing is calibrated, so raw codes and volts agree.
# - Not emulated, and so errors: digital and slow analog pins, LEDs, buses, sweeps, `PHAS`, `DCYC`, `SOUR:LOAD`,
#   repeated bursts, noise, PWM, sawtooth, hysteresis, delays in ns, deep memory, split triggers, filters,
#   little-endian data.


class RedPitaya(Generator, Digitizer):
    """The board on a bench: its outputs are those of the bench, its inputs the inputs 1 and 2."""
