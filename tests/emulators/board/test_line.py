"""The line of an emulated board: planned faults, a link, another rate, and clients that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serial
from serial_host import ATTACH, NAK, PING, RESET, RUN, Answer, Host, refusal

from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.board.board import VirtualNodes
from reservoir_hw.emulators.board.faults import BoardFaultPlan
from reservoir_hw.emulators.board.line import Line, emulated_board


@contextlib.contextmanager
def faulty(*faults: dict[str, Any], **settings: Any) -> Iterator[tuple[Line, Host]]:
    """A board with planned faults, and a host that waits for half a second."""
    plan = validate(BoardFaultPlan, Document.from_mapping({"seed": 1, "faults": list(faults)}, "a test"))
    with emulated_board(faults=plan, **settings) as line, Host(line.port, wait_s=0.5) as host:
        yield line, host


def pinged(host: Host, count: int) -> list[Any]:
    """The answers to PING 0, 1, ...: their numbers, None where none came, the words of a check that failed."""
    found: list[Any] = []
    for number in range(count):
        host.send(PING, number=number)
        try:
            answer = host.read(0.1)
        except AssertionError as error:
            found.append(str(error).split(":")[0])
        else:
            found.append(answer and (answer.number if answer.operation != NAK else -refusal(answer.rest).code))
    return found


@pytest.mark.parametrize(
    ("kind", "to_board", "to_host"),
    [
        ("drop", [0, None, None, 3, 4], [0, None, None, 3, 4]),
        ("flip", [0, -5, -5, 3, 4], [0, "COBS", "half an answer", 3, 4]),
        # The byte 0 before the next request ends what is left of the last one.
        ("cut", [0, None, -5, -5, 3], [0, "half an answer", "half an answer", 3, 4]),
        ("noise", [0, -5, 1, -5, 2], [0, "COBS", "COBS", 3, 4]),
    ],
)
def test_what_strikes_a_frame(kind: str, to_board: list[Any], to_host: list[Any]) -> None:
    for direction, expected in (("to_board", to_board), ("to_host", to_host)):
        with faulty({"kind": kind, "direction": direction, "occurrence": 2, "times": 2}) as (line, host):
            assert pinged(host, 5) == expected
            assert line.faults.struck == {kind: 2}


def test_what_arrives_twice_and_what_is_late() -> None:
    stall = {"kind": "stall", "direction": "to_host", "operation": "run", "seconds": 0.2}
    with faulty({"kind": "repeat", "direction": "to_board", "operation": "reset"}, stall) as (line, host):
        host.attach()
        host.counted(RESET)
        assert host.status().copies == 1
        began = time.monotonic()
        host.run(0, np.zeros((2, 1), int))
        assert time.monotonic() - began > 0.2
        # What is behind it is late, too, and nothing overtakes it.
        host.send(RUN, b"\2\0\0\0\1\0\0\0", number=3)
        host.send(PING, number=4)
        assert [answer and answer.number for answer in (host.read(), host.read())] == [3, 4]
        assert line.faults.struck == {"repeat": 1, "stall": 1}


def test_a_board_that_begins_anew_and_one_whose_cable_falls_out(tmp_path: Path) -> None:
    log, link = tmp_path / "log", tmp_path / "board"
    reboot = {"kind": "reboot", "operation": "ping"}
    with faulty(reboot, {"kind": "unplug", "operation": "ping", "occurrence": 2}, lease_ms=200, log=log, link=link) as (
        _,
        host,
    ):
        host.attach(5)
        assert host.status().frames == 2
        assert pinged(host, 1) == [None]
        status = host.status()
        assert (status.session, status.frames) == (0, 1)
        host.attach(5)
        with pytest.raises(serial.SerialException):
            host.ask(PING)
        assert not link.is_symlink()
        time.sleep(0.4)
    why = [event.get("why", "attached") for event in map(json.loads, log.read_text().splitlines())]
    assert why == ["power on", "attached", "power on", "attached", "lease", "the board has ended"]


def test_another_rate_is_garbage() -> None:
    with emulated_board(baud=9600) as line:
        with Host(line.port, wait_s=0.2) as host:
            assert not {*range(5)} & {*pinged(host, 5)}
        with Host(line.port, baud=9600) as host:
            host.write(b"\0")
            host.read(0.1)
            assert host.ask(PING, number=1) == b""


def test_the_link(tmp_path: Path) -> None:
    link = tmp_path / "board"
    link.symlink_to("/dev/of-an-emulator-that-was-killed")
    with emulated_board(link=link) as line:
        assert line.port == str(link)
        assert os.readlink(link).startswith("/dev/")
        with Host(line.port) as host:
            host.attach()
    assert not link.is_symlink()
    link.write_text("of somebody else")
    with (
        pytest.raises(ConfigurationError, match="the link to the board cannot be made: File exists"),
        emulated_board(link=link),
    ):
        pass
    with (
        pytest.raises(ConfigurationError, match="12345 is no rate of a pty; there are: 1200"),
        emulated_board(baud=12345),
    ):
        pass


def test_plans_are_checked(tmp_path: Path) -> None:
    for fault, said in (
        ({"kind": "drop"}, "direction"),
        ({"kind": "drop", "direction": "to_client"}, "to_board"),
        ({"kind": "flip", "direction": "to_host", "rate": 2}, "less than or equal to 1"),
        ({"kind": "explode"}, "explode"),
        ({"kind": "stall", "direction": "to_host"}, "seconds"),
        ({"kind": "drop", "direction": "to_host", "rate": 0.1, "occurrence": 3}, "either"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            validate(BoardFaultPlan, Document.from_mapping({"faults": [fault]}, "a test"))


def exchange(host: Host, operation: int, rest: bytes, number: int) -> list[Answer]:
    """All that comes to a request, until a PING behind it is answered."""
    found: list[Answer] = []
    host.send(operation, rest, number=number)
    for mark in range(100):
        host.send(PING, session=0, number=mark)
        answer: Answer | None = Answer(0, 0, 0, b"")
        while answer is not None:
            try:
                answer = host.read(0.1)
            except AssertionError:
                continue
            if answer is not None and answer[:2] == (PING | 0x80, 0):
                return found
            found += [answer] if answer is not None else []
    raise AssertionError("the board is gone")


@pytest.mark.slow
def test_all_faults_at_once_give_right_answers_or_none() -> None:
    ways = [{"kind": kind, "direction": way, "rate": 0.02} for way in ("to_board", "to_host") for kind in KINDS]
    done: Counter[str] = Counter()
    u = np.random.default_rng(0).integers(-16384, 16384, (60, 1)).astype(np.int16)
    states = VirtualNodes().run(u)
    with faulty(*ways) as (line, host):
        for host.session in range(1, 31):
            exchange(host, ATTACH, b"", 0)
            for number, first in enumerate(range(0, 60, 20), 1):
                part = slice(first, first + 20)
                head = struct.pack("<IH", first, 20)
                right = Answer(RUN | 0x80, host.session, number, head + states[part].astype("<i2").tobytes())
                found = exchange(host, RUN, head + u[part].astype("<i2").tobytes(), number)
                given = [answer for answer in found if answer.operation == RUN | 0x80 and answer.number == number]
                assert given in ([], [right], [right, right])
                done["right" if given else "none"] += 1
        assert set(line.faults.struck) == set(KINDS)
    assert done["right"] > 30
    assert done["none"] > 10


KINDS = ("drop", "repeat", "flip", "cut", "noise")
