"""Frames on a serial line: COBS with a byte 0 behind it, and the checks of the body."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterator


class Damaged(Exception):
    """A frame whose COBS or checks are wrong, or that is too short for them and a header."""


class TooLong(Exception):
    """A frame whose body is longer than the board's buffer."""


HEADER_BYTES, CRC16_BYTES, CRC32_BYTES = 6, 2, 4
CHECK_BYTES = CRC16_BYTES + CRC32_BYTES
# STEP, RUN, their answers, and NAK.
_WITH_CRC32 = (0x05, 0x06, 0x85, 0x86, 0xFF)
_FULL_BLOCK = 254


def framed(body: bytes) -> bytes:
    """A body without its checks -> what is on the line, with the byte 0 behind it."""
    if body[1] in _WITH_CRC32:
        body += zlib.crc32(body).to_bytes(CRC32_BYTES, "little")
    line, whole = bytearray(), body + binascii.crc_hqx(body, 0xFFFF).to_bytes(CRC16_BYTES, "little")
    blocks = whole.split(b"\0")
    for number, block in enumerate(blocks):
        is_last = number == len(blocks) - 1
        while len(block) >= _FULL_BLOCK:
            line += b"\xff" + block[:_FULL_BLOCK]
            block = block[_FULL_BLOCK:]
            if is_last and not block:
                return bytes(line) + b"\0"
        line.append(len(block) + 1)
        line += block
    return bytes(line) + b"\0"


def body_of(line: bytes, frame_bytes: int) -> bytes:
    """A frame without its byte 0 -> its body without the checks.

    Raises `TooLong` for a body of more than `frame_bytes` bytes with its checks, and `Damaged`.
    """
    body, at, has_zero = bytearray(), 0, False
    while at < len(line):
        if has_zero:
            body.append(0)
        code = line[at]
        block = line[at + 1 : at + code]
        body += block
        if len(body) > frame_bytes:
            raise TooLong
        if len(block) < code - 1:
            raise Damaged
        at, has_zero = at + code, code <= _FULL_BLOCK
    whole, crc16 = body[:-CRC16_BYTES], int.from_bytes(body[-CRC16_BYTES:], "little")
    if len(whole) < HEADER_BYTES or binascii.crc_hqx(whole, 0xFFFF) != crc16:
        raise Damaged
    if whole[1] not in _WITH_CRC32:
        return bytes(whole)
    whole, crc32 = whole[:-CRC32_BYTES], int.from_bytes(whole[-CRC32_BYTES:], "little")
    if len(whole) < HEADER_BYTES or zlib.crc32(whole) != crc32:
        raise Damaged
    return bytes(whole)


class Splitter:
    """Cuts what comes over a line into frames, each without its byte 0. Empty frames are left out.

    Of a frame that has no end only so much is kept as tells that it is longer than `frame_bytes`.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._most = frame_bytes + frame_bytes // _FULL_BLOCK + 3
        self._begun = bytearray()

    def take(self, data: bytes) -> Iterator[bytes]:
        """The frames that end in `data`."""
        *ended, begun = data.split(b"\0")
        for end in ended:
            self._keep(end)
            if self._begun:
                yield bytes(self._begun)
            self._begun.clear()
        self._keep(begun)

    def _keep(self, data: bytes) -> None:
        self._begun += data[: self._most - len(self._begun)]
