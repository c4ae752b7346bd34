"""Answers that were changed at random on their way: the right states or an error, and the session goes on."""

from __future__ import annotations

import os
import pty
import random
import time
import tty
from collections.abc import Callable, Iterator

import pytest
from scripted_board import declared, line_of

from reservoir_hw.core.errors import ReservoirError
from reservoir_hw.drivers.serial import Connection, client
from reservoir_hw.drivers.serial.frames import ANSWER, Operation, frame_of
from reservoir_hw.drivers.serial.line import Line

SEED = 20
PATIENCE_S = 1.0
INPUTS = bytes(6)
STATES = bytes(random.Random(SEED).choices([0, 0, 1, 255, 7, 128], k=30))
Mutate = Callable[[random.Random, bytes], bytes]


def bits(draw: random.Random, line: bytes) -> bytes:
    """Up to three of them."""
    changed = int.from_bytes(line, "big")
    for _ in range(draw.randint(1, 3)):
        changed ^= 1 << draw.randrange(8 * len(line))
    return changed.to_bytes(len(line), "big")


def burst(draw: random.Random, line: bytes) -> bytes:
    """Up to 16 bits that are next to each other."""
    pattern = draw.getrandbits(16) | 1
    return (int.from_bytes(line, "big") ^ pattern << draw.randrange(8 * len(line) - 16)).to_bytes(len(line), "big")


def bytes_(draw: random.Random, line: bytes) -> bytes:
    """Several of them anew."""
    changed = bytearray(line)
    for _ in range(draw.randint(2, 8)):
        changed[draw.randrange(len(line))] = draw.randrange(256)
    return bytes(changed)


def lost(draw: random.Random, line: bytes) -> bytes:
    """Bytes from the middle."""
    first, size = draw.randrange(len(line) - 1), draw.randint(1, 4)
    return line[:first] + line[first + size :].rstrip(b"\0") + b"\0"


def inserted(draw: random.Random, line: bytes) -> bytes:
    """Noise within."""
    at = draw.randrange(len(line))
    return line[:at] + draw.randbytes(draw.randint(1, 8)) + line[at:]


def around(draw: random.Random, line: bytes) -> bytes:
    """Noise before or behind."""
    noise = draw.randbytes(draw.randint(1, 30))
    return noise + line if draw.random() < 0.5 else line + noise


def other(draw: random.Random, line: bytes) -> bytes:
    """An intact frame that is not the answer, alone or in front of it."""
    frame = frame_of(line[:-1])
    ahead = draw.choice([-2, -1, 0, 1])
    number = (frame.number + ahead) & 0xFFFF
    session = frame.session ^ draw.choice([0, 0, 1])
    content = draw.randbytes(draw.randint(0, 40)) if draw.random() < 0.5 else frame.content
    strange = line_of(draw.choice([0x06, 0x85, 0x86, 0x86, 0xFF, 0x81]), session, number, content)
    # Behind a copy time would pass.
    return strange + line if ahead < 0 or draw.random() < 0.5 else strange


def truncated(draw: random.Random, line: bytes) -> bytes:
    """Its end is missing, or all of it."""
    return line[: draw.randrange(len(line))]


MUTATIONS: tuple[Mutate, ...] = (bits, burst, bytes_, lost, inserted, around, other)


class Wire(Line):
    """A port on a pty whose other side answers within `send`."""

    master: int
    mutate: Callable[[bytes], bytes]

    def __init__(self, port: str, baud: int, patience_s: float) -> None:
        super().__init__(port, baud, patience_s)
        # Nothing is waited for: what comes is there.
        self.baud = 1 << 40

    def send(self, data: bytes) -> None:
        super().send(data)
        frame = frame_of(os.read(self.master, 4096).strip(b"\0"))
        content = {
            Operation.INFO: declared(),
            Operation.STATUS: bytes(32),
            Operation.RUN: frame.content[:6] + STATES,
        }.get(Operation(frame.operation), b"")
        answer = line_of(frame.operation | ANSWER, frame.session, frame.number, content)
        os.write(self.master, self.mutate(answer) if frame.operation == Operation.RUN else answer)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    monkeypatch.setattr(client, "Line", Wire)
    monkeypatch.setattr(Wire, "master", master, raising=False)
    session = Connection(os.ttyname(slave), timeout_s=PATIENCE_S)
    with session._lock:
        session._attach()
    yield session
    session._line.close()
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize("frames", [4_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_changed_answers(session: Connection, frames: int, capsys: pytest.CaptureFixture[str]) -> None:
    draw, wire = random.Random(SEED), session._line
    assert isinstance(wire, Wire)
    count = {"right": 0, "refused": 0, "wrong": 0}
    began = time.perf_counter()
    for number in range(frames):
        mutate = truncated if draw.random() < 0.001 else draw.choice(MUTATIONS)
        # Where the end of a frame is lost, time passes.
        end = b"" if mutate is truncated else b"\0"
        session.timeout_s = 0.001
        wire.mutate = lambda line, mutate=mutate, end=end: mutate(draw, line) + end
        try:
            states = session.drive(INPUTS, 3)
        except ReservoirError:
            count["refused"] += 1
            # A new session every time would take most of the time of this test.
            session._failure = None
        else:
            count["right" if states == STATES else "wrong"] += 1
        if number % 1000 == 999:
            wire.mutate, session.timeout_s = bytes, PATIENCE_S
            session._failure = session._interrupted
            session.reset()
            assert session.drive(INPUTS, 3) == STATES
    seconds = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n{frames} changed answers: {count}, {seconds:.1f} s", end="")  # noqa: T201
    assert count["wrong"] == 0
    assert count["refused"] > 0.5 * frames
    assert count["right"] > 0.05 * frames
