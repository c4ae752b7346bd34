"""The line of an emulated board: a pty of this computer, with the board at its end."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.bench import EventLog
from reservoir_hw.emulators.board.board import Board, VirtualNodes
from reservoir_hw.emulators.board.faults import BoardFaultPlan, Direction, Faults, FaultyDevice
from reservoir_hw.emulators.board.text import TextBoard

_READ_BYTES = 1 << 16
# More bytes without a byte 0 are no frame of any board.
_MOST_BYTES = 1 << 17
# So long a host may leave an answer lie.
_PATIENCE_S = 0.5
_SPEED = 5
_RATES = {int(name[1:]): getattr(termios, name) for name in dir(termios) if name[0] == "B" and name[1:].isdigit()}


AnyBoard = TypeVar("AnyBoard", Board, TextBoard)
"""What lies at the end of a line."""
Cut = Callable[[bytes], tuple[list[bytes], bytes]]
"""From bytes to what is struck as a whole, and what has no end yet."""


def lines_of(data: bytes) -> tuple[list[bytes], bytes]:
    """Lines of text, each with its newline, and what has no end yet."""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines], rest


class Line(Generic[AnyBoard]):
    """A pty with a board at its end, served in a thread while the block runs.

    Clients come and go as at a serial port. One that sets another rate sends and gets garbage.

    Args:
        board: Only this line uses it from now on.
        faults: What goes wrong.
        cut: What comes as a whole: by default frames between zeros.
        baud: Rate of the board.
        link: Symbolic link to the pty, which is removed at the end. A link that is there is replaced.

    Raises `ConfigurationError` for a rate that a pty does not know, and for a link that cannot be made.
    """

    def __init__(
        self, board: AnyBoard, faults: Faults, *, baud: int = 115200, link: Path | None = None, cut: Cut | None = None
    ) -> None:
        if baud not in _RATES:
            known = ", ".join(str(rate) for rate in sorted(_RATES) if rate >= 1200)
            raise ConfigurationError(f"{baud} is no rate of a pty; there are: {known}")
        self.board, self.baud, self.faults = board, baud, faults
        self.port = ""
        """Where clients find it: the link, or the pty itself."""
        self._link = link
        self._cut = cut or _frames_of
        self._random = np.random.default_rng(0)
        # Of a frame that has no end yet.
        self._begun = b""
        self._is_full = False
        # What is on its way, each with the time at which it arrives.
        self._coming: deque[tuple[float, bytes]] = deque()
        self._going: deque[tuple[float, bytes]] = deque()

    def __enter__(self) -> Self:
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self._is_plugged = True
        settings = termios.tcgetattr(self._slave)
        settings[_SPEED - 1] = settings[_SPEED] = _RATES[self.baud]
        termios.tcsetattr(self._slave, termios.TCSANOW, settings)
        os.set_blocking(self._master, False)
        self._pty = os.ttyname(self._slave)
        self.port = self._pty if self._link is None else str(self._linked(self._link))
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._serve, name=f"board at {self._pty}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._ended)
        self._unplug()
        self.board.go_safe("the board has ended")

    def _linked(self, link: Path) -> Path:
        try:
            if link.is_symlink():
                link.unlink()
            link.symlink_to(self._pty)
        except OSError as error:
            os.close(self._master)
            os.close(self._slave)
            raise ConfigurationError(f"{link}: the link to the board cannot be made: {error.strerror}") from error
        return link.absolute()

    def _unplug(self) -> None:
        if not self._is_plugged:
            return
        self._is_plugged = False
        if self._link is not None and self._link.is_symlink() and os.readlink(self._link) == self._pty:
            self._link.unlink()
        os.close(self._master)
        os.close(self._slave)
        self._coming.clear()
        self._going.clear()

    # ---- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._ended] + [self._master] * self._is_plugged, [], [], self._until_next_s())
            if self._ended in ready:
                return
            if ready:
                self._take(self._read())
            while self._coming and self._coming[0][0] <= time.monotonic():
                answers, _ = self._cut(self._as_heard(self.board.take(self._coming.popleft()[1])))
                for answer in answers:
                    self._send(answer, "to_host", self._going)
            while self._going and self._going[0][0] <= time.monotonic():
                self._write(self._going.popleft()[1])
            self.board.look_at_lease()

    def _until_next_s(self) -> float | None:
        waits = [frames[0][0] - time.monotonic() for frames in (self._coming, self._going) if frames]
        if (lease_left_s := self.board.lease_left_s()) is not None:
            waits.append(lease_left_s)
        return max(0.0, min(waits)) if waits else None

    def _read(self) -> bytes:
        # A client that has gone in the middle of a byte leaves nothing to read.
        with contextlib.suppress(BlockingIOError):
            return self._as_heard(os.read(self._master, _READ_BYTES))
        return b""

    def _write(self, data: bytes) -> None:
        """What a host does not read is lost, as on a UART."""
        while data:
            try:
                data = data[os.write(self._master, data) :]
                self._is_full = False
            except BlockingIOError:
                if self._is_full or not select.select([], [self._master], [], _PATIENCE_S)[1]:
                    self._is_full = True
                    return

    def _as_heard(self, data: bytes) -> bytes:
        """Bytes that were sent at another rate are others."""
        is_same = termios.tcgetattr(self._slave)[_SPEED] == _RATES[self.baud]
        return data if is_same else self._random.bytes(len(data))

    # ---- frames on their way --------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        frames, self._begun = self._cut(self._begun + data)
        for frame in frames:
            if self.faults.strikes("unplug", frame):
                self._unplug()
                return
            if self.faults.strikes("reboot", frame):
                self.board.power_on()
            else:
                self._send(frame, "to_board", self._coming)

    def _send(self, frame: bytes, way: Direction, before: deque[tuple[float, bytes]]) -> None:
        arriving, delay_s = self.faults.pass_frame(frame, way)
        due = time.monotonic() + delay_s
        before.append((max(due, before[-1][0]) if before else due, arriving))


def _frames_of(data: bytes) -> tuple[list[bytes], bytes]:
    """Frames, each with the byte 0 at its end and one before it if there is one, and what has no end yet."""
    frames, at = [], 0
    while True:
        begin = at
        while data[begin : begin + 1] == b"\0":
            begin += 1
        if (end := data.find(b"\0", begin)) < 0:
            rest = data[max(at, begin - 1) :]
            return (frames, rest) if len(rest) < _MOST_BYTES else ([*frames, rest], b"")
        frames.append(data[max(at, begin - 1) : end + 1])
        at = end + 1


# ---- The whole of it: virtual nodes, a board, and its line.


@contextlib.contextmanager
def emulated_board(
    nodes: int = 50,
    inputs: int = 1,
    *,
    text: bool = False,
    baud: int = 115200,
    link: Path | None = None,
    log: Path | None = None,
    faults: BoardFaultPlan | None = None,
    **more: Any,
) -> Iterator[Line[Any]]:
    """A board that answers at `port` of the line while the block runs.

    Args:
        nodes, inputs: Widths of its virtual nodes.
        text: It is told lines of text, which faults strike as frames (see `TextBoard`).
        baud, link: See `Line`.
        log: Where the events of its drive are written to (see `EventLog`).
        faults: What goes wrong.
        more: frame_bytes, lease_ms and input_range, see `Board`.

    Raises `ConfigurationError`, see `Board` and `Line`, and for a log that cannot be written.
    """
    planned = Faults(faults or BoardFaultPlan())
    device = VirtualNodes(nodes, inputs)
    with contextlib.closing(_log_at(log)) as events:
        if text:
            served = Line(TextBoard(device, events), planned, baud=baud, link=link, cut=lines_of)
        else:
            board = Board(FaultyDevice(device, planned), content=device.content, log=events, **more)
            served = Line(board, planned, baud=baud, link=link)
        with served as line:
            yield line


def _log_at(path: Path | None) -> EventLog:
    try:
        return EventLog(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
