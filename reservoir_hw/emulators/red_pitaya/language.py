"""What both halves of the board share: how it answers, and its status (scpi-server of Red Pitaya OS 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.scpi.arguments import Keyword, definite_block
from reservoir_hw.emulators.scpi.instrument import ScpiDevice
from reservoir_hw.emulators.scpi.messages import ScpiError
from reservoir_hw.emulators.scpi.tree import constant, query, setting

BASE_RATE_HZ = 125e6
BUFFER_SAMPLES = 16384
BITS = 14


class Board(ScpiDevice):
    """A board on a bench."""

    identity = "REDPITAYA,INSTR2024,0,01-16"

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
        """Six digits; arrays as the format says."""
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, bool):
            return b"ON" if value else b"OFF"
        if isinstance(value, float):
            return f"{value:g}".encode()
        return super().answer(value)

    def _array(self, values: np.ndarray) -> bytes:
        if self.array_format == "BIN":
            # The most significant byte first.
            return definite_block(values.astype(values.dtype.newbyteorder(">")).data)
        digits = "%d" if values.dtype.kind == "i" else "%f"
        return ("{" + ",".join([digits % value for value in values.tolist()]) + "}").encode()

    format = setting("ACQ:DATA:FORMAT", Keyword("BIN", "ASCII"), "array_format")
    """Of all arrays, also those of the generator."""

    error_count = query("SYSTem:ERRor:COUNt")(lambda self: len(self._errors))

    board_id = constant("SYSTem:BRD:ID", 1)
    board_name = constant("SYSTem:BRD:Name", "STEMlab 125-14 v1.0")
