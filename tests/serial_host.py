"""The host's side of docs/serial-protocol.md, written from the page alone: for tests of boards."""

from __future__ import annotations

import random
import struct
import zlib
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import serial

PING, INFO, ATTACH, RESET, STEP, RUN, STATUS, DETACH, NAK = 1, 2, 3, 4, 5, 6, 7, 8, 0xFF


def _remainder(crc: int) -> int:
    for _ in range(8):
        crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


_TABLE = [_remainder(byte << 8) for byte in range(256)]


def crc16(data: bytes) -> int:
    crc = 0xFFFF
    for byte in data:
        crc = (crc << 8 & 0xFF00) ^ _TABLE[crc >> 8 ^ byte]
    return crc


def on_line(body: bytes) -> bytes:
    """A body without its checks, as it is sent."""
    if has_crc32(body):
        body += struct.pack("<I", zlib.crc32(body))
    return stuffed(body + struct.pack("<H", crc16(body)))


def has_crc32(body: bytes) -> bool:
    """STEP, RUN, their answers, and NAK."""
    return body[1] in (STEP, RUN, STEP | 0x80, RUN | 0x80, NAK)


def stuffed(body: bytes) -> bytes:
    line, block, is_open = bytearray(), bytearray(), True
    for byte in body:
        is_open = True
        if byte:
            block.append(byte)
        if not byte or len(block) == 254:
            is_open = not byte
            line += bytes([len(block) + 1]) + block
            block.clear()
    if is_open:
        line += bytes([len(block) + 1]) + block
    return bytes(line) + b"\0"


def unstuffed(line: bytes) -> bytes:
    """What is on the line, without the byte 0 -> the body without its checks. An AssertionError says what is wrong."""
    body, at = b"", 0
    while at < len(line):
        block = line[at + 1 : at + line[at]]
        assert len(block) == line[at] - 1, f"COBS: {line.hex(' ')}"
        at += line[at]
        body += block + (b"\0" if at < len(line) and len(block) < 254 else b"")
    body, crc = body[:-2], body[-2:]
    assert crc16(body) == int.from_bytes(crc, "little"), f"CRC-16: {body.hex(' ')} {crc.hex(' ')}"
    if has_crc32(body):
        body, crc = body[:-4], body[-4:]
        assert zlib.crc32(body) == int.from_bytes(crc, "little"), f"CRC-32: {body.hex(' ')} {crc.hex(' ')}"
    return body


class Answer(NamedTuple):
    """A body, taken apart."""

    operation: int
    session: int
    number: int
    rest: bytes


class Refusal(NamedTuple):
    """What follows in a NAK."""

    code: int
    lost: int
    step: int
    done: int
    text: str
    states: bytes


class Declared(NamedTuple):
    """Fields of INFO."""

    lowest_version: int
    highest_version: int
    inputs: int
    nodes: int
    frame_bytes: int
    run_steps: int
    lease_ms: int
    memory_steps: int
    input_format: int
    state_format: int
    continuity: int
    flags: int
    input_scale: float
    state_scale: float
    input_low: float
    input_high: float
    step_period_s: float
    reset_time_s: float
    texts: tuple[str, ...]


class Status(NamedTuple):
    """Fields of STATUS."""

    state: int
    session: int
    step: int
    uptime_ms: int
    frames: int
    damaged: int
    too_long: int
    copies: int
    leases_ended: int
    problem: str


class Host:
    """A host that says what it is told to, right or wrong."""

    def __init__(self, port: str, wait_s: float = 5.0, baud: int = 115200) -> None:
        self.port, self.wait_s = port, wait_s
        self.session, self.number = 0, 0
        self._serial = serial.Serial(port, baud, timeout=wait_s, write_timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serial.close()

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self._serial.write(data)

    def read(self, wait_s: float | None = None) -> Answer | None:
        """The next answer, or None if none comes."""
        self._serial.timeout = self.wait_s if wait_s is None else wait_s
        line = self._serial.read_until(b"\0")
        while line == b"\0":
            line = self._serial.read_until(b"\0")
        if not line:
            return None
        assert line.endswith(b"\0"), f"half an answer: {line.hex(' ')}"
        body = unstuffed(line[:-1])
        assert body[0] == 1
        return Answer(*struct.unpack_from("<BHH", body, 1), body[6:])

    def expect_line(self, line: bytes) -> None:
        """The next bytes are these."""
        self._serial.timeout = self.wait_s
        assert self._serial.read(len(line)) == line

    def send(self, operation: int, rest: bytes = b"", *, session: int | None = None, number: int = 0) -> bytes:
        """A request as the page wants it, with a byte 0 before it; what was sent."""
        header = struct.pack("<BBHH", 1, operation, self.session if session is None else session, number)
        sent = b"\0" + on_line(header + rest)
        self.write(sent)
        return sent

    def ask(self, operation: int, rest: bytes = b"", *, session: int | None = None, number: int = 0) -> bytes:
        """What follows in the answer, which must be one to this request."""
        self.send(operation, rest, session=session, number=number)
        answer = self.read()
        expected = (operation | 0x80, self.session if session is None else session, number)
        assert answer is not None
        assert answer[:3] == expected, f"{answer} where {expected} was expected"
        return answer.rest

    def refused(
        self, operation: int, rest: bytes = b"", *, session: int | None = None, number: int | None = None
    ) -> Refusal:
        """The NAK to a request: the next one if `number` is not given."""
        number = self._next() if number is None else number
        self.send(operation, rest, session=session, number=number)
        answer = self.read()
        assert answer is not None
        assert answer[:3] == (NAK, self.session if session is None else session, number), answer
        return refusal(answer.rest)

    def attach(self, session: int | None = None) -> None:
        """Begin a session."""
        self.session, self.number = session or random.randint(1, 65535), 0
        assert self.ask(ATTACH) == b""

    def counted(self, operation: int, rest: bytes = b"") -> bytes:
        """The next request of the session; what follows in its answer."""
        return self.ask(operation, rest, number=self._next())

    def run(self, first: int, counts: np.ndarray) -> np.ndarray:
        """int16 inputs (time, inputs) -> int16 states (time, nodes) by one RUN."""
        head = struct.pack("<IH", first, len(counts))
        rest = self.counted(RUN, head + counts.astype("<i2").tobytes())
        assert rest[:6] == head
        return np.frombuffer(rest[6:], "<i2").reshape(len(counts), -1)

    def info(self) -> Declared:
        """What the board declares."""
        rest = self.ask(INFO)
        texts = rest[42:].split(b"\0")
        assert len(texts) == 6
        assert texts[-1] == b""
        numbers = struct.unpack("<BBHHHHHHBBBBffffff", rest[:42])
        return Declared(*numbers, tuple(text.decode() for text in texts[:5]))

    def status(self) -> Status:
        """What the board says of itself."""
        rest = self.ask(STATUS)
        assert rest.endswith(b"\0")
        return Status(*struct.unpack_from("<BHIIIIIII", rest), rest[31:-1].decode())

    def _next(self) -> int:
        self.number = (self.number + 1) % (1 << 16)
        return self.number


def refusal(rest: bytes) -> Refusal:
    """What follows the header of a NAK."""
    code, lost, step, done, length = struct.unpack_from("<BBIHB", rest)
    return Refusal(code, lost, step, done, rest[9 : 9 + length].decode(), rest[9 + length :])
