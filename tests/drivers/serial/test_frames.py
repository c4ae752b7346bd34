"""The frames of the serial protocol: the page's examples, what was packed is unpacked, and nothing else gets past."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_board import declared, line_of, nak
from serial_page import PAGE, Example, examples

from reservoir_hw.core.errors import ProtocolError
from reservoir_hw.drivers.codes import Encoding
from reservoir_hw.drivers.serial import frames
from reservoir_hw.drivers.serial.frames import Frame, stuffed

unhurried = settings(deadline=None)
u8, u16, u32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32))


EXAMPLES = examples()
by_example = pytest.mark.parametrize("example", EXAMPLES, ids=[one.title[:30] for one in EXAMPLES])


def test_the_page_has_all_its_examples() -> None:
    assert len(EXAMPLES) == PAGE.read_text(encoding="utf-8").count("    checks ") == 18


@by_example
def test_examples_of_the_page(example: Example) -> None:
    body, line = example.body, example.line
    assert frames.checked(body) == body + example.checks
    frame = frames.frame_of(line[:-1])
    assert frame == (body[1], *struct.unpack_from("<HH", body, 2), body[6:])
    assert frames.on_line(frame) == b"\0" + line


def test_what_the_page_says_in_info_status_and_nak() -> None:
    said = {one.body[1]: frames.frame_of(one.line[:-1]).content for one in EXAMPLES}
    board = frames.declaration_of(said[0x82])
    number = Encoding(3, 2**-14)
    assert (board.vendor, board.model, board.serial, board.firmware) == ("Lab 5", "loop", "7", "1.2")
    assert (board.content, board.inputs, board.nodes, board.run_steps) == ("three nodes", 1, 3, 30)
    assert (board.lease_s, board.memory_steps, board.input_range) == (1.0, 12, (-1, 1))
    assert board.input_encoding == board.state_encoding == number
    assert (board.deterministic, board.simulated, board.continuity) == (True, False, "held")
    assert board.step_period_s == pytest.approx(1e-3)
    assert frames.status_of(said[0x87]) == frames.Status("driven", 0x1234, 3, 60.0, 9, 0, 0, 0, 0, "")
    told = frames.nak_of(next(one.body[6:] for one in EXAMPLES if b"no light" in one.body))
    assert told == (13, True, 4, 1, "no light", struct.pack("<hhh", 7, 8, 9))


def test_the_crc() -> None:
    assert (frames.crc16(b"123456789"), frames.crc32(b"123456789")) == (0x29B1, 0xCBF43926)


def test_a_frame_with_data_has_two_checks() -> None:
    """A wrong CRC-32 below a right CRC-16; no other frame has one."""
    for operation in range(256):
        body = struct.pack("<BBHH", 1, operation, 1, 1) + bytes(4)
        line = stuffed(body + struct.pack("<H", frames.crc16(body)))
        if operation in (0x05, 0x06, 0x85, 0x86, 0xFF):
            with pytest.raises(ProtocolError, match="CRC"):
                frames.frame_of(line)
        else:
            assert frames.frame_of(line).content == bytes(4)


@unhurried
@given(st.binary(max_size=600) | st.lists(u8.map(lambda n: n % 3), max_size=600).map(bytes))
def test_cobs(body: bytes) -> None:
    line = frames.stuffed(body)
    assert 0 not in line
    assert len(line) <= frames.stuffed_bytes(len(body)) - 2
    assert frames.unstuffed(line) == body


@pytest.mark.parametrize("size", [253, 254, 255, 508, 509])
def test_full_groups_end_with_or_without_another_one(size: int) -> None:
    body, line = b"x" * size, frames.stuffed(b"x" * size)
    assert frames.unstuffed(line) == body
    assert (line[-1] == 1) == (size % 254 == 0)
    if size % 254 == 0:
        assert frames.unstuffed(line[:-1]) == body


@unhurried
@given(u8, u16, u16, st.binary(max_size=600))
def test_frames(operation: int, session: int, number: int, content: bytes) -> None:
    frame = Frame(operation, session, number, content)
    line = frames.on_line(frame)
    assert line[0] == line[-1] == 0
    assert frames.frame_of(line[1:-1]) == frame


@unhurried
@given(st.binary(max_size=100))
def test_any_bytes(data: bytes) -> None:
    for part in filter(None, data.split(b"\0")):
        with pytest.raises(ProtocolError):
            frames.frame_of(part)


def test_another_version() -> None:
    with pytest.raises(ProtocolError, match="a frame of version 2"):
        frames.frame_of(line_of(0x81, 1, 1, version=2)[:-1])


def flipped(line: bytes, bits: int) -> bytes:
    return (int.from_bytes(line, "big") ^ bits).to_bytes(len(line), "big")


@by_example
def test_no_burst_of_two_flipped_bits_gets_past(example: Example) -> None:
    """Each single bit, and each two that are next to each other, of what is on the line."""
    line = example.line
    for bit in range(8 * len(line)):
        for pattern in (1, 3):
            for part in filter(None, flipped(line, pattern << bit & (1 << 8 * len(line)) - 1).split(b"\0")):
                try:
                    assert frames.frame_of(part) == frames.frame_of(line[:-1]), f"bit {bit}"
                except ProtocolError:
                    continue


# ---- declarations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (declared(lowest=2, highest=3), "it speaks versions 2 to 3 of the serial protocol, and this program version 1"),
        (declared()[:40], "its INFO has 40 bytes, at least 42 are needed"),
        (declared()[:-1], "five texts"),
        (declared(texts=("v", "m", "s", "f", "c" * 32)), "five texts of at most 31 bytes"),
        (declared(texts=("v", "m", "s", "f", "c", "x")), "five texts"),
        (declared(inputs=0), "it declares 0 inputs and 5 nodes"),
        (declared(nodes=0), "it declares 1 inputs and 0 nodes"),
        (declared(frame_bytes=255), "256 is the least"),
        (declared(lease_ms=99), "a lease of 0.099 s; 100 ms is the least"),
        (declared(nodes=123), "into which 1 steps of 1 inputs or 123 nodes do not go"),
        (declared(run_steps=25), "into which 25 steps of 1 inputs or 5 nodes do not go"),
        (declared(input_format=2), "it declares format 2, which there is not"),
        (declared(state_format=9), "there is no dtype number 9"),
        (declared(input_scale=0.0), "a scale of 0.0 is not a positive number"),
        (declared(state_scale=float("nan")), "a scale of nan"),
        (declared(state_format=1), "floating point numbers have no scale"),
        (declared(continuity=3), "it declares continuity 3, which there is not"),
        (declared(low=1.0, high=1.0), "it declares inputs from 1 to 1"),
        (declared(low=float("nan")), "it declares inputs from nan to 1"),
        (declared(high=float("inf")), "it declares inputs from -1 to inf"),
        (declared(step_period_s=-1.0), "it declares -1 s a step and 0 s a reset"),
        (declared(reset_time_s=float("inf")), "it declares 0 s a step and inf s a reset"),
    ],
)
def test_declarations_that_cannot_be_used(content: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(said)):
        frames.declaration_of(content)


def test_texts_that_a_terminal_would_obey() -> None:
    board = frames.declaration_of(declared(texts=("\x1b[31mred", "m", "", "", "c\xfc")))
    assert (board.vendor, board.content) == ("?[31mred", "c\xfc")


@unhurried
@given(st.sampled_from([frames.declaration_of, frames.status_of, frames.nak_of]), st.data())
def test_changed_contents(decode: Callable[[bytes], object], data: st.DataObject) -> None:
    content = bytearray(declared() if decode is frames.declaration_of else nak(13, text="no light", done=1))
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(u8)
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(ProtocolError):
        decode(cut)
