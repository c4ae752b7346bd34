"""A board that is told lines of text, as a student would write one: it knows four words.

    ID                  who it is
    S 0.25              a step with this input: the states, with commas between them
    S 0.25,-0.5 17      with two inputs, and a number that it sends back behind the states
    R                   back to rest
    OFF                 its drive is switched off

Everything else is answered by `ERR`.
"""

from __future__ import annotations

import re

import numpy as np

from reservoir_hw.emulators.bench import EventLog
from reservoir_hw.emulators.board.board import ONE, SCALE, VirtualNodes

_STEP = re.compile(r"S (?P<inputs>[-+.,\d]+)(?P<number> \d+)?")
_ERROR, _DONE = "ERR", "OK"
_LARGEST = 2.0


class TextBoard:
    """Virtual nodes behind lines of text. See `Line` for what carries them.

    Args:
        device: What it drives. Inputs from -2 to 2 fit.
        log: What its drive does: "on" with the first step, "level" (the first input) with each, "off".
    """

    def __init__(self, device: VirtualNodes, log: EventLog) -> None:
        self.lines = 0
        """That it has understood."""
        self._device, self._log = device, log
        self._begun = b""
        self._is_on = False
        # A log may say that an earlier board was left on.
        self._log.write("off", 1, 0.0, volts=0.0)

    @property
    def said(self) -> str:
        """What became of it, in a word."""
        return f"Lines: {self.lines}"

    def take(self, data: bytes) -> bytes:
        """Bytes from its host -> the lines that it answers."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        return b"".join(self._answer(line.decode("latin-1").strip()).encode() + b"\n" for line in lines)

    def power_on(self) -> None:
        """It begins anew."""
        self._begun = b""
        self._rest()

    def go_safe(self, why: str) -> None:
        """Switch off what is on."""
        self._switch_off()

    def look_at_lease(self) -> None:
        """It has none: it stays as it is when its host is gone."""

    def lease_left_s(self) -> float | None:
        """None."""

    def _answer(self, line: str) -> str:
        if (step := _STEP.fullmatch(line)) is not None:
            return self._step(step["inputs"], step["number"] or "")
        if line == "R":
            self._rest()
        elif line == "OFF":
            self._switch_off()
        elif line != "ID":
            return _ERROR
        self.lines += 1
        return f"text board,{self._device.nodes} nodes,{self._device.content}" if line == "ID" else _DONE

    def _step(self, given: str, number: str) -> str:
        try:
            inputs = [float(text) for text in given.split(",")]
        except ValueError:
            return _ERROR
        if len(inputs) != self._device.inputs or max(map(abs, inputs)) >= _LARGEST:
            return _ERROR
        self.lines += 1
        if not self._is_on:
            self._is_on = True
            self._log.write("on", 1, 0.0)
        self._log.write("level", 1, 0.0, volts=inputs[0])
        states = self._device.step(np.rint(np.array(inputs) * ONE).astype(np.int64))
        return ",".join(repr(float(state * SCALE)) for state in states.tolist()) + number

    def _rest(self) -> None:
        self._device.reset()
        if self._is_on:
            self._log.write("level", 1, 0.0, volts=0.0)

    def _switch_off(self) -> None:
        self._device.reset()
        if self._is_on:
            self._is_on = False
            self._log.write("off", 1, 0.0, volts=0.0)
