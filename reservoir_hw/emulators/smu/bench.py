"""The bench behind them: the film, what is connected to it, and its clock.

**Time.** On the clock of steps the film lives for `STEP_S` each time that the source is set while its output is on, and
when the output goes off it is at rest at once. So its states depend on the lines alone, to the last digit. On the clock
of the wall, time passes as it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from reservoir_hw.emulators.bench import EventLog
from reservoir_hw.emulators.physics.film import Film, FilmConfig

Clock = Literal["steps", "wall"]
STEP_S = 0.05
SOURCE, GATE = 1, 2
"""Their channels in the log."""


class FilmBench:
    """Source, switch and gate on a film. Methods may be called from any thread.

    The log has "on" and "off" of the source, and "level" with the volts of source and gate, whenever they are set.
    """

    def __init__(self, config: FilmConfig, clock: Clock = "steps", log: Path | None = None) -> None:
        self.log = EventLog(log)
        self.film = Film(config)
        self.closed: list[int] = []
        """The electrodes that are connected, counted from 0."""
        self.gate_v = 0.0
        self._clock: Clock = clock
        self._volts, self._is_on = 0.0, False
        self._changed_s = self._began_s = time.monotonic()
        self._lock = threading.RLock()
        # The file may say that an earlier process left it on.
        self._write("off", SOURCE, 0.0)

    @property
    def source(self) -> tuple[bool, float]:
        """Whether the output is on, and the volts that it is set to."""
        return self._is_on, self._volts

    def set_source(self, volts: float) -> None:
        """The source is set to these volts. On the clock of steps, a step passes if it is on."""
        with self._lock:
            self._live()
            self._volts = volts
            if self._is_on:
                self._write("level", SOURCE, volts)
                if self._clock == "steps":
                    self.film.advance(volts, STEP_S)

    def switch(self, on: bool) -> None:
        """The output of the source is on, or off."""
        with self._lock:
            self._live()
            # What is switched off twice says so twice: the log shows what came last.
            if on != self._is_on or not on:
                self._is_on = on
                self._write("on" if on else "off", SOURCE, self._volts if on else 0.0)
                if self._clock == "steps" and not on:
                    self.film.rest()

    def set_gate(self, volts: float) -> None:
        """The gate is at these volts."""
        with self._lock:
            self._live()
            self.gate_v = volts
            self._write("level", GATE, volts)
            self.film.set_gate(volts)

    def connect(self, electrodes: Sequence[int]) -> None:
        """These electrodes and no others are connected to the source."""
        with self._lock:
            self._live()
            self.closed = [*electrodes]

    def measure(self) -> tuple[float, float]:
        """The current through the connected electrodes now, with the noise of a reading, and their conductance."""
        with self._lock:
            self._live()
            conductance_s = sum(self.film.conductance_s(electrode) for electrode in self.closed)
            volts = self._volts if self._is_on else 0.0
            return volts * conductance_s + self.film.noise_a(), conductance_s

    def seconds(self) -> float:
        """Of the film's clock."""
        return self.film.age_s if self._clock == "steps" else time.monotonic() - self._began_s

    def _live(self) -> None:
        """What has passed on the wall since the last change."""
        now = time.monotonic()
        if self._clock == "wall":
            self.film.advance(self._volts if self._is_on else 0.0, now - self._changed_s)
        self._changed_s = now

    def _write(self, event: str, channel: int, volts: float) -> None:
        self.log.write(event, channel, self.seconds(), volts=volts)
