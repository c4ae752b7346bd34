"""The emulated board in the conversation of the page's examples. What both boards do is in tests/hardware."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from serial_host import on_line
from serial_page import examples

from reservoir_hw.emulators.board.board import Board, Code, DeviceProblem


class Scripted:
    """Answers as the board of the page."""

    nodes, inputs = 3, 1

    def __init__(self) -> None:
        self._states = iter([[4096, 0, -1], [1, 2, 3], [4, 5, 6], [7, 8, 9]])
        self.driven: list[int] = []

    def reset(self) -> None:
        pass

    def step(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        self.driven += counts.tolist()
        states = next(self._states, None)
        if states is None:
            raise DeviceProblem(Code.DEVICE_FAULT, "no light")
        return np.array(states, np.int16)


def test_the_conversation_of_the_page() -> None:
    device, now = Scripted(), [0.0]
    board = Board(device, frame_bytes=256, lease_ms=1000, input_range=(-16384, 16384), clock=lambda: now[0])
    now[0] = 60.0
    line = {(example.body[1], example.body[4]): example.line for example in examples()}
    # PING three times more: nine frames have come with STATUS.
    for operation, number in ((1, 7), (1, 7), (1, 7), (1, 7), (3, 0), (4, 1), (5, 2), (6, 3), (7, 9)):
        assert board.take(b"\0" + line[operation, number]) == line[operation | 0x80, number]
    assert device.driven == [8192, 0, -8192]
    failing = on_line(b"\1\6\x34\x12\4\0" + b"\3\0\0\0" + b"\2\0" + bytes(4))
    assert board.take(failing) == line[0xFF, 4]
    assert board.take(line[8, 5]) == line[0x88, 5]
    assert board.take(b"damaged\0") == line[0xFF, 0]
