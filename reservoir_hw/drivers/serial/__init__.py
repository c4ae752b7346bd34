"""The serial protocol (docs/serial-protocol.md): frames, ports, and the host's session with a board."""

from reservoir_hw.drivers.serial.client import Connection, board_at
from reservoir_hw.drivers.serial.frames import Declaration

__all__ = ["Connection", "Declaration", "board_at"]
