"""What both halves of the board share: how it answers, and its status (scpi-server of Red Pitaya OS 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.scpi.arguments import Keyword, definite_block
from reservoir_hw.emulators.scpi.errors import ScpiError
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.tree import command, query

BASE_RATE_HZ = 125e6
BUFFER_SAMPLES = 16384
BITS = 14


class Board(ScpiDevice):
    """A board on a bench."""

    identity = "REDPITAYA,INSTR2024,0,01-16"

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__()
        self.bench = bench
        self.binary = False

    def reset(self) -> None:
        """`*RST` changes nothing: `GEN:RST` and `ACQ:RST` do."""

    def trigger(self) -> None:
        """There is no `*TRG`."""
        raise ScpiError(-113)

    def answer(self, value: Any) -> bytes:
        """Six digits; arrays as the format says."""
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, bool):
            return b"ON" if value else b"OFF"
        if isinstance(value, float):
            return f"{value:g}".encode()
        return super().answer(value)

    def _array(self, values: np.ndarray) -> bytes:
        if self.binary:
            # The most significant byte first.
            return definite_block(values.astype(values.dtype.newbyteorder(">")).data)
        digits = "%d" if values.dtype.kind == "i" else "%f"
        return ("{" + ",".join([digits % value for value in values.tolist()]) + "}").encode()

    @command("ACQ:DATA:FORMAT", Keyword("BIN", "ASCII"))
    def set_format(self, name: str) -> None:
        """`ACQ:DATA:FORMAT`: of all arrays, also those of the generator."""
        self.binary = name == "BIN"

    @query("ACQ:DATA:FORMAT")
    def format(self) -> str:
        """`ACQ:DATA:FORMAT?`."""
        return "BIN" if self.binary else "ASCII"

    @query("SYSTem:ERRor:COUNt")
    def error_count(self) -> int:
        """`SYSTem:ERRor:COUNt?`."""
        return len(self._errors)

    @query("SYSTem:BRD:ID")
    def board_id(self) -> int:
        """`SYSTem:BRD:ID?`."""
        return 1

    @query("SYSTem:BRD:Name")
    def board_name(self) -> str:
        """`SYSTem:BRD:Name?`."""
        return "STEMlab 125-14 v1.0"
