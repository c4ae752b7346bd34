"""Frames of the serial protocol: two codecs that were written apart, on the page's examples and on all lengths."""

from __future__ import annotations

import numpy as np
import pytest
from serial_host import crc16, has_crc32, on_line, stuffed, unstuffed
from serial_page import Example, examples

from reservoir_hw.emulators.board.board import Damaged, Splitter, TooLong, body_of, framed


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.title[:30])
def test_the_examples_of_the_page(example: Example) -> None:
    assert framed(example.body) == on_line(example.body) == example.line
    assert body_of(example.line[:-1], 256) == example.body
    assert stuffed(example.body + example.checks) == example.line
    assert unstuffed(example.line[:-1]) == example.body


@pytest.mark.parametrize("zeros", [0.0, 0.003, 0.5])
def test_bodies_of_all_lengths_and_blocks(zeros: float) -> None:
    random = np.random.default_rng(0)
    for length in (*range(6, 20), *range(240, 270), *range(500, 520), 1000):
        numbers = random.integers(1, 256, length)
        body = np.where(random.random(length) < zeros, 0, numbers).astype(np.uint8).tobytes()
        line = framed(body)
        assert line == on_line(body)
        assert line.index(0) == len(line) - 1
        whole = length + (6 if has_crc32(body) else 2)
        assert body_of(line[:-1], whole) == body
        with pytest.raises(TooLong):
            body_of(line[:-1], whole - 1)
        with pytest.raises(Damaged):
            body_of(line[:-2], whole)


def test_what_is_damaged() -> None:
    for body in (b"\1\2", b"\1\2\3\4\5"):
        with pytest.raises(Damaged):
            body_of(on_line(body)[:-1], 256)
    # A right CRC-16, and a wrong CRC-32 below it.
    for operation in (0x05, 0x06, 0x85, 0x86, 0xFF):
        body = bytes([1, operation, 0, 0, 7, 0, 1, 2, 3, 4])
        with pytest.raises(Damaged):
            body_of(stuffed(body + crc16(body).to_bytes(2, "little"))[:-1], 256)
    with pytest.raises(Damaged):
        body_of(stuffed(b"\1\1\0\0\7\0\0\0")[:-1], 256)


def test_a_line_is_cut_into_frames_however_it_comes() -> None:
    for size in (1, 3, 100):
        splitter, sent = Splitter(256), b"\0\0ab\0\0c\0" + b"x" * 5000 + b"\0d\0e"
        frames = [frame for at in range(0, len(sent), size) for frame in splitter.take(sent[at : at + size])]
        assert [frames[n] for n in (0, 1, 3)] == [b"ab", b"c", b"d"]
        assert 256 < len(frames[2]) < 300
