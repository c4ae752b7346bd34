"""The whole of it: virtual nodes, a board, and its line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.board.board import Board
from reservoir_hw.emulators.board.faults import BoardFaultPlan, Faults, FaultyDevice
from reservoir_hw.emulators.board.line import Line, lines_of
from reservoir_hw.emulators.board.text import TextBoard
from reservoir_hw.emulators.event_log import EventLog
from reservoir_hw.emulators.virtual_nodes import VirtualNodes


@contextlib.contextmanager
def emulated_board(
    nodes: int = 50,
    inputs: int = 1,
    *,
    baud: int = 115200,
    link: Path | None = None,
    frame_bytes: int = 4095,
    lease_ms: int = 2000,
    input_range: tuple[int, int] = (-32768, 32767),
    log: Path | None = None,
    faults: BoardFaultPlan | None = None,
) -> Iterator[Line[Board]]:
    """A board that answers at `port` of the line while the block runs.

    Args:
        nodes, inputs: Widths of its virtual nodes.
        baud, link: See `Line`.
        frame_bytes, lease_ms, input_range: See `Board`.
        log: Where the events of its drive are written to (see `EventLog`).
        faults: What goes wrong.

    Raises `ConfigurationError`, see `Board` and `Line`, and for a log that cannot be written.
    """
    planned = Faults(faults or BoardFaultPlan())
    device = VirtualNodes(nodes, inputs)
    with contextlib.closing(_log_at(log)) as events:
        board = Board(
            FaultyDevice(device, planned),
            content=device.content,
            frame_bytes=frame_bytes,
            lease_ms=lease_ms,
            input_range=input_range,
            log=events,
        )
        with Line(board, planned, baud=baud, link=link) as line:
            yield line


@contextlib.contextmanager
def emulated_text_board(
    nodes: int = 50,
    inputs: int = 1,
    *,
    baud: int = 115200,
    link: Path | None = None,
    log: Path | None = None,
    faults: BoardFaultPlan | None = None,
) -> Iterator[Line[TextBoard]]:
    """A board that is told lines of text at `port` of the line while the block runs.

    Args and errors are those of `emulated_board`; faults strike lines.
    """
    planned = Faults(faults or BoardFaultPlan())
    with contextlib.closing(_log_at(log)) as events:
        board = TextBoard(VirtualNodes(nodes, inputs), events)
        with Line(board, planned, baud=baud, link=link, cut=lines_of) as line:
            yield line


def _log_at(path: Path | None) -> EventLog:
    try:
        return EventLog(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
