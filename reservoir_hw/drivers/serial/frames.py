"""What travels on a serial line, byte by byte (docs/serial-protocol.md). Nothing is trusted before its checks hold."""

from __future__ import annotations

import math
import struct
from binascii import crc_hqx
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from reservoir_hw.core.errors import ProtocolError
from reservoir_hw.core.spec import Continuity
from reservoir_hw.drivers.codes import Encoding, checked_encoding, printable

VERSION = 1
ANSWER = 0x80
NAK = 0xFF
SHORTEST_BODY = 8
LEAST_FRAME_BYTES = 256
"""What every board takes and sends."""
LONGEST_S = 86400.0
"""Of a step and a reset: a longer time is no declaration."""
SHORTEST_LEASE_MS = 100
STEP_BYTES = SHORTEST_BODY + 4 + 4
"""A STEP without its numbers, and its answer."""
RUN_BYTES = SHORTEST_BODY + 6 + 4
"""A RUN without its numbers, and its answer."""

_HEADER = struct.Struct("<BBHH")
_CRC16 = struct.Struct("<H")
_CRC32 = struct.Struct("<I")
_STEP = struct.Struct("<I")
_RUN = struct.Struct("<IH")
_DECLARATION = struct.Struct("<BBHHHHHHBBBBffffff")
_STATUS = struct.Struct("<BHIIIIIII")
_NAK = struct.Struct("<BBIHB")
_LONGEST_GROUP = 254
_LONGEST_TEXT = 31
_CODES = [bytes((length + 1,)) for length in range(_LONGEST_GROUP + 1)]


class Operation(IntEnum):
    """What a request asks for."""

    PING = 0x01
    INFO = 0x02
    ATTACH = 0x03
    RESET = 0x04
    STEP = 0x05
    RUN = 0x06
    STATUS = 0x07
    DETACH = 0x08


_WITH_DATA = {Operation.STEP, Operation.RUN, Operation.STEP | ANSWER, Operation.RUN | ANSWER, NAK}
"""Frames with inputs, or with states: they have a second check."""


class Frame(NamedTuple):
    """A body, without version and checks."""

    operation: int
    session: int
    number: int
    content: bytes = b""


# ---- frames -------------------------------------------------------------------------------------


def crc16(data: bytes) -> int:
    """CRC-16/CCITT-FALSE."""
    return crc_hqx(data, 0xFFFF)


def checked(body: bytes) -> bytes:
    """A body with its checks."""
    if body[1] in _WITH_DATA:
        body += _CRC32.pack(crc32(body))
    return body + _CRC16.pack(crc16(body))


def stuffed(body: bytes) -> bytes:
    """COBS (Cheshire and Baker 1999): the same without zeros."""
    groups = []
    for part in body.split(b"\0"):
        while len(part) >= _LONGEST_GROUP:
            groups += _CODES[_LONGEST_GROUP], part[:_LONGEST_GROUP]
            part = part[_LONGEST_GROUP:]
        groups += _CODES[len(part)], part
    return b"".join(groups)


def unstuffed(data: bytes) -> bytes:
    """The body of `data`, which has no zeros; `ProtocolError` if it is not COBS."""
    body, at, end, behind_full = bytearray(data), 0, len(data), []
    while at < end:
        length = body[at]
        body[at] = 0
        at += length
        if length > _LONGEST_GROUP and at < end:
            behind_full.append(at)
    if at != end:
        raise ProtocolError("a frame was damaged on its way (its COBS is wrong)")
    # The zero of each group stands before it. There is none before the first one, and none behind a full one.
    for place in reversed(behind_full):
        del body[place]
    return bytes(body[1:])


def on_line(frame: Frame) -> bytes:
    """A request: a zero that ends what came before, the frame, and a zero."""
    body = _HEADER.pack(VERSION, frame.operation, frame.session, frame.number) + frame.content
    return b"\0" + stuffed(checked(body)) + b"\0"


def frame_of(data: bytes) -> Frame:
    """The frame that lay between two zeros, or `ProtocolError`."""
    body = unstuffed(data)
    if len(body) < SHORTEST_BODY:
        raise ProtocolError(f"a frame of {len(body)} bytes is too short")
    end = len(body) - _CRC16.size
    is_right = crc16(body[:end]) == _CRC16.unpack_from(body, end)[0]
    if is_right and body[1] in _WITH_DATA:
        end -= _CRC32.size
        is_right = crc32(body[:end]) == _CRC32.unpack_from(body, end)[0]
    if not is_right:
        raise ProtocolError("a frame was damaged on its way (its CRC is wrong)")
    version, operation, session, number = _HEADER.unpack_from(body)
    if version != VERSION:
        raise ProtocolError(f"a frame of version {version}; this is version {VERSION}")
    return Frame(operation, session, number, body[_HEADER.size : end])


def stuffed_bytes(body_bytes: int) -> int:
    """The most bytes on the line for a body of so many, with its two zeros."""
    return body_bytes + body_bytes // _LONGEST_GROUP + 3


# ---- what operations say ------------------------------------------------------------------------


def place_of(step: int, steps: int) -> tuple[Operation, bytes]:
    """What drives so many steps, and what is in it before its inputs, and in its answer before its states."""
    return (Operation.STEP, _STEP.pack(step)) if steps == 1 else (Operation.RUN, _RUN.pack(step, steps))


@dataclass(frozen=True)
class Declaration:
    """What a board says about itself in INFO. Times in seconds; None: not known, no limit."""

    inputs: int
    nodes: int
    frame_bytes: int
    run_steps: int
    lease_s: float
    memory_steps: int
    input_encoding: Encoding
    state_encoding: Encoding
    continuity: Continuity
    deterministic: bool
    simulated: bool
    input_range: tuple[float, float] | None
    step_period_s: float | None
    reset_time_s: float
    vendor: str
    model: str
    serial: str
    firmware: str
    content: str

    @property
    def input_bytes(self) -> int:
        """Of one step."""
        return self.inputs * self.input_encoding.number.itemsize

    @property
    def state_bytes(self) -> int:
        """Of one step."""
        return self.nodes * self.state_encoding.number.itemsize


_CONTINUITIES: tuple[Continuity, ...] = ("held", "replayed", "free_running")


def declaration_of(content: bytes) -> Declaration:
    """What is in the answer to INFO. `ProtocolError` for another version, or if it cannot be used."""
    if len(content) < 2 or not content[0] <= VERSION <= content[1]:
        versions = f"{content[0]} to {content[1]}" if len(content) > 1 else "none"
        raise ProtocolError(f"it speaks versions {versions} of the serial protocol, and this program version {VERSION}")
    if len(content) < _DECLARATION.size:
        raise ProtocolError(f"its INFO has {len(content)} bytes, at least {_DECLARATION.size} are needed")
    (_, _, inputs, nodes, frame_bytes, run_steps, lease_ms, memory_steps, input_format, state_format, continuity, flags,
     input_scale, state_scale, low, high, period_s, reset_s) = _DECLARATION.unpack_from(content)  # fmt: skip
    texts = content[_DECLARATION.size :].split(b"\0")
    if len(texts) != 6 or texts[5] or max(map(len, texts)) > _LONGEST_TEXT:
        raise ProtocolError(f"its INFO does not end with five texts of at most {_LONGEST_TEXT} bytes, each ended by 0")
    vendor, model, serial, firmware, text = map(_text, texts[:5])
    if continuity >= len(_CONTINUITIES):
        raise ProtocolError(f"it declares continuity {continuity}, which there is not")
    limited = (low, high) != (0, 0)
    if not all(map(math.isfinite, (low, high))) or (limited and not low < high):
        raise ProtocolError(f"it declares inputs from {low:g} to {high:g}")
    # Also refuses what is not a number.
    if not (0 <= period_s <= LONGEST_S and 0 <= reset_s <= LONGEST_S):
        raise ProtocolError(f"it declares {period_s:g} s a step and {reset_s:g} s a reset")
    declared = Declaration(
        inputs=inputs, nodes=nodes, frame_bytes=frame_bytes, run_steps=run_steps, lease_s=lease_ms / 1000,
        memory_steps=memory_steps, input_encoding=_encoding(input_format, input_scale),
        state_encoding=_encoding(state_format, state_scale), continuity=_CONTINUITIES[continuity],
        deterministic=bool(flags & 1), simulated=bool(flags & 2), input_range=(low, high) if limited else None,
        step_period_s=period_s or None, reset_time_s=reset_s, vendor=vendor, model=model, serial=serial,
        firmware=firmware, content=text,
    )  # fmt: skip
    _refuse_impossible(declared)
    return declared


def _encoding(number: int, scale: float) -> Encoding:
    # 2 is float64 in the numbering of `codes`, and nothing on a serial line.
    if number == 2:
        raise ProtocolError("it declares format 2, which there is not")
    return checked_encoding(number, scale)


def _text(raw: bytes) -> str:
    return printable(raw.decode(errors="replace"))


def _refuse_impossible(declared: Declaration) -> None:
    """Refuse what contradicts itself."""
    if not (declared.inputs and declared.nodes):
        raise ProtocolError(f"it declares {declared.inputs} inputs and {declared.nodes} nodes")
    if declared.frame_bytes < LEAST_FRAME_BYTES:
        raise ProtocolError(f"it declares frames of {declared.frame_bytes} bytes; {LEAST_FRAME_BYTES} is the least")
    if declared.lease_s * 1000 < SHORTEST_LEASE_MS:
        raise ProtocolError(f"it declares a lease of {declared.lease_s:g} s; {SHORTEST_LEASE_MS} ms is the least")
    widest = max(declared.input_bytes, declared.state_bytes)
    for steps, header in ((1, STEP_BYTES), (declared.run_steps, RUN_BYTES)):
        if steps and header + steps * widest > declared.frame_bytes:
            raise ProtocolError(
                f"it declares frames of {declared.frame_bytes} bytes, into which {steps} steps of {declared.inputs} "
                f"inputs or {declared.nodes} nodes do not go"
            )


_BOARD_STATES = ("safe", "at rest", "driven", "state lost", "fault")


@dataclass(frozen=True)
class Status:
    """What a board says in STATUS. Counts are those since it was switched on."""

    state: str
    session: int
    step: int
    uptime_s: float
    frames: int
    damaged: int
    too_long: int
    copies: int
    leases_ended: int
    problem: str


def status_of(content: bytes) -> Status:
    """What is in the answer to STATUS, or `ProtocolError`."""
    if len(content) <= _STATUS.size or content.find(b"\0", _STATUS.size) != len(content) - 1:
        raise ProtocolError("its STATUS does not have the right length, or does not end with a text")
    state, session, step, uptime_ms, *counts = _STATUS.unpack_from(content)
    if state >= len(_BOARD_STATES):
        raise ProtocolError(f"its STATUS says state {state}, which there is not")
    problem = _text(content[_STATUS.size : -1])
    return Status(_BOARD_STATES[state], session, step, uptime_ms / 1000, *counts, problem=problem)


class Nak(NamedTuple):
    """Why a board did not do what it was asked, and the states of the steps that it did."""

    code: int
    state_lost: bool
    step: int
    steps_done: int
    text: str
    states: bytes


def nak_of(content: bytes) -> Nak:
    """What is in a NAK, or `ProtocolError`."""
    if len(content) < _NAK.size or len(content) < _NAK.size + content[_NAK.size - 1]:
        raise ProtocolError(f"its NAK has {len(content)} bytes, fewer than it says")
    code, lost, step, done, length = _NAK.unpack_from(content)
    end = _NAK.size + length
    return Nak(code, bool(lost), step, done, _text(content[_NAK.size : end]), content[end:])
