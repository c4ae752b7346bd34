"""The fast inputs of the board."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import Acquisition, VirtualBench
from reservoir_hw.emulators.physics.signals import to_codes
from reservoir_hw.emulators.red_pitaya.language import BASE_RATE_HZ, BITS, BUFFER_SAMPLES, Board
from reservoir_hw.emulators.scope import settings_of
from reservoir_hw.emulators.scpi.arguments import Boolean, Integer, Keyword, Number
from reservoir_hw.emulators.scpi.messages import ScpiError
from reservoir_hw.emulators.scpi.tree import command, constant, query, reading, setting

INPUT = "ACQ:SOUR{channel:1-2}"
RANGES_V = {"LV": 1.0, "HV": 20.0}
TRIGGER_SAMPLE = BUFFER_SAMPLES // 2
COARSEST = 65536
# Any factor from here on, and powers of two below.
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
    """What takes down."""

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__(bench)
        self._state = threading.RLock()
        self._set = _Settings()
        self._started, self._waiting_for = False, ""
        self._codes: dict[int, NDArray[np.int16]] | None = None

    def _look(self) -> None:
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
        self._look()
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
    """Samples are means of what decimation leaves out."""

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
        self._look()
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
        self._look()

    @query("ACQ:TRig:STAT")
    def trigger_state(self) -> str:
        """`ACQ:TRig:STAT?`."""
        self._look()
        return "WAIT" if self._waiting_for else "TD"

    @query("ACQ:TRig:FILL")
    def filled(self) -> int:
        """`ACQ:TRig:FILL?`: whether the record is complete."""
        self._look()
        return int(self._codes is not None)

    @command("ACQ:TRig:DLY", Integer((), -(2**31), 2**31 - 1))
    def set_delay(self, samples: int) -> None:
        """`ACQ:TRig:DLY`: so many samples after the trigger stands the middle of the buffer."""
        self._set.delay = max(samples, -TRIGGER_SAMPLE)

    delay = reading("ACQ:TRig:DLY", "delay", of=settings_of)
    level = acquisition_setting("ACQ:TRig:LEV", Number("V", -RANGES_V["HV"], RANGES_V["HV"]), "level_v")

    trigger_position = query("ACQ:TPOS")(lambda self: TRIGGER_SAMPLE - self._set.delay)
    """In the ring, of which the oldest sample is the first here."""

    # ---- records --------------------------------------------------------------------------------

    units = acquisition_setting("ACQ:DATA:Units", Keyword("RAW", "VOLTS"), "units")

    @query(INPUT + ":DATA")
    def data(self, number: int) -> NDArray[np.generic]:
        """`ACQ:SOUR<n>:DATA?`: the whole record. Without one, the board would send what is in its buffer."""
        self._look()
        if self._codes is None:
            raise ScpiError(-230)
        codes = self._codes[number]
        if self._set.units == "RAW":
            return codes
        return (codes * (RANGES_V[self._set.gains[number]] / _HALF)).astype(np.float32)

    @query(INPUT + ":DATA:Old:N", Integer((), 1, BUFFER_SAMPLES))
    def oldest(self, number: int, samples: int) -> NDArray[np.generic]:
        """`ACQ:SOUR<n>:DATA:Old:N?`."""
        return self.data(number)[:samples]

    @query(INPUT + ":DATA:LATest:N", Integer((), 1, BUFFER_SAMPLES))
    def latest(self, number: int, samples: int) -> NDArray[np.generic]:
        """`ACQ:SOUR<n>:DATA:LATest:N?`."""
        return self.data(number)[-samples:]
