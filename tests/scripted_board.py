"""A board on a pty, in a thread of the test. It can be told to make errors that no honest board makes."""

from __future__ import annotations

import os
import pty
import select
import struct
import threading
import time
import tty
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from reservoir_hw.drivers.serial.frames import ANSWER, NAK, Frame, Operation, checked, frame_of, stuffed
from reservoir_hw.emulators.board.board import SCALE, VirtualNodes

Change = Callable[[bytes], bytes]
"""From what an honest board would put on the line to what is put there instead."""

INFO = struct.Struct("<BBHHHHHHBBBBffffff")
LEASE_MS = 1000


def line_of(operation: int, session: int, number: int, content: bytes = b"", version: int = 1) -> bytes:
    """A frame as a board sends it."""
    body = struct.pack("<BBHH", version, operation, session, number) + content
    return stuffed(checked(body)) + b"\0"


def declared(**changes: Any) -> bytes:
    """The content of INFO; `changes` are fields of the page's table, or `texts`."""
    fields = {
        "lowest": 1, "highest": 1, "inputs": 1, "nodes": 5, "frame_bytes": 256, "run_steps": 20, "lease_ms": LEASE_MS,
        "memory_steps": 100, "input_format": 3, "state_format": 3, "continuity": 0, "flags": 3, "input_scale": SCALE,
        "state_scale": SCALE, "low": -1.0, "high": 1.0, "step_period_s": 0.0, "reset_time_s": 0.0,
        "texts": ("Lab 5", "loop", "7", "1.2", "five nodes"),
    } | changes  # fmt: skip
    texts = fields.pop("texts")
    return INFO.pack(*fields.values()) + b"".join(text.encode() + b"\0" for text in texts)


def nak(code: int, *, text: str = "", step: int = 0, done: int = 0, states: bytes = b"", lost: int = 1) -> bytes:
    """The content of a NAK."""
    raw = text.encode()
    return struct.pack("<BBIHB", code, lost, step, done, len(raw)) + raw + states


class ScriptedBoard:
    """Answers as the page says, but what `change` alters."""

    def __init__(self, info: bytes | None = None, *, silent: bool = False) -> None:
        self.info = declared() if info is None else info
        self.silent = silent
        self.deaf = False
        self.problem = ""
        self.seen: list[Frame] = []
        self.damaged = 0
        self.session = 0
        inputs, nodes = INFO.unpack_from(self.info)[2:4]
        self._device = VirtualNodes(max(1, nodes), inputs)
        self._inputs = inputs
        self._step = 0
        self._changes: dict[int, list[Change]] = {}
        self._master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        self.port = os.ttyname(self.slave)
        self._stopping, self._thread = threading.Event(), threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.unplug()
        os.close(self.slave)

    def change(self, operation: Operation, change: Change, after: int = 0) -> None:
        """Alter the answer to the next request of this kind, or the one that comes `after` so many."""
        self._changes.setdefault(operation, []).extend([bytes] * after + [change])

    def answer_with(self, operation: Operation, kind: int, content: bytes, after: int = 0) -> None:
        """Answer the next request of this kind with something else, of the same session and number."""
        self.change(operation, lambda _: line_of(kind, self.seen[-1].session, self.seen[-1].number, content), after)

    def send(self, data: bytes) -> None:
        """Put bytes on the line that nobody asked for."""
        while data:
            data = data[os.write(self._master, data) :]

    def unplug(self) -> None:
        """End the thread and hang up."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join()
            os.close(self._master)

    def seen_operations(self) -> list[str]:
        """Names of the requests that came, without the heartbeat's."""
        return [Operation(frame.operation).name for frame in self.seen if frame.operation != Operation.PING]

    def _serve(self) -> None:
        buffer = b""
        while not self._stopping.is_set():
            if self.deaf or not select.select([self._master], [], [], 0.005)[0]:
                time.sleep(0.005 * self.deaf)
                continue
            *frames, buffer = (buffer + os.read(self._master, 65536)).split(b"\0")
            for data in filter(None, frames):
                try:
                    frame = frame_of(data)
                except Exception:
                    self.damaged += 1
                    self.send(line_of(NAK, 0, 0, nak(5, lost=0)))
                    continue
                self.seen.append(frame)
                answer = self._answer(frame)
                changes = self._changes.get(frame.operation, [])
                answer = changes.pop(0)(answer) if changes else answer
                if not self.silent:
                    self.send(answer)

    def _answer(self, frame: Frame) -> bytes:
        content = b""
        match frame.operation:
            case Operation.INFO:
                content = self.info
            case Operation.STATUS:
                problem = self.problem.encode() + b"\0"
                content = struct.pack("<BHIIIIIII", 1, self.session, self._step, 60000, 9, 0, 0, 0, 0) + problem
            case Operation.ATTACH | Operation.RESET:
                self.session, self._step = frame.session, 0
                self._device.reset()
            case Operation.STEP | Operation.RUN:
                head = 4 if frame.operation == Operation.STEP else 6
                counts = np.frombuffer(frame.content[head:], "<i2").reshape(-1, self._inputs)
                content = frame.content[:head] + self._device.run(counts).tobytes()
                self._step += len(counts)
            case Operation.DETACH:
                self.session = 0
        return line_of(frame.operation | ANSWER, frame.session, frame.number, content)
