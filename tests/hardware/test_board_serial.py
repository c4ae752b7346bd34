"""Boards of the serial protocol, each on its pty: the emulated one and the firmware in C hold to one page."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serial_boards import BOARDS, FIRMWARE, Sizes, built
from serial_host import (
    ATTACH,
    DETACH,
    INFO,
    NAK,
    PING,
    RESET,
    RUN,
    STATUS,
    STEP,
    Answer,
    Host,
    on_line,
    refusal,
    stuffed,
)
from serial_page import examples

from reservoir_hw.emulators.board.board import VirtualNodes

Opened = Callable[..., contextlib.AbstractContextManager[Host]]
SAFE, AT_REST, DRIVEN, STATE_LOST, FAULT = range(5)


@pytest.fixture(params=BOARDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Makes a board of given sizes; a host at its port."""

    @contextlib.contextmanager
    def open_board(**sizes: Any) -> Iterator[Host]:
        with BOARDS[request.param](Sizes(**sizes), tmp_path / "log.jsonl") as port, Host(port) as host:
            yield host

    return open_board


@pytest.fixture
def host(opened: Opened) -> Iterator[Host]:
    """At a board with two inputs from -1 to 1, three nodes, and frames of 256 bytes."""
    with opened() as host:
        yield host


def step(number: int, *counts: int) -> bytes:
    """What follows in a STEP."""
    return struct.pack(f"<I{len(counts)}h", number, *counts)


def run(number: int, steps: int, *counts: int) -> bytes:
    """What follows in a RUN."""
    return struct.pack(f"<IH{len(counts)}h", number, steps, *counts)


def test_the_examples_of_the_page(host: Host) -> None:
    said = examples()
    for begin in ("PING without", "ATTACH", "RESET"):
        at = next(at for at, example in enumerate(said) if example.title.startswith(begin))
        assert said[at + 1].title.startswith("Its answer")
        host.write(b"\0" + said[at].line)
        host.expect_line(said[at + 1].line)


def test_the_declaration(opened: Opened) -> None:
    with opened(nodes=7, inputs=2, lease_ms=1500, frame_bytes=1000) as host:
        declared = host.info()
        assert declared[:12] == (1, 1, 2, 7, 1000, (1000 - 12 - 9) // 14, 1500, 0, 3, 3, 0, 3)
        assert (declared.input_scale, declared.state_scale) == (2.0**-14, 2.0**-14)
        assert (declared.input_low, declared.input_high) == (-1.0, 1.0)
        assert declared.texts[:2] == ("reservoir_hw", "virtual nodes")
        assert declared.texts[4] == VirtualNodes(7).content


@pytest.mark.parametrize(("nodes", "inputs", "frame_bytes"), [(50, 1, 4095), (1, 40, 256), (120, 3, 256)])
def test_states_are_those_of_the_golden_model(opened: Opened, nodes: int, inputs: int, frame_bytes: int) -> None:
    sizes = {"nodes": nodes, "inputs": inputs, "frame_bytes": frame_bytes, "lowest": -32768, "highest": 32767}
    u = np.random.default_rng(0).integers(-32768, 32768, (400, inputs)).astype(np.int16)
    with opened(**sizes) as host:
        declared = host.info()
        for session in (1, 2):
            host.attach(session)
            for _ in range(session):
                golden, first = VirtualNodes(nodes, inputs), 0
                for count in (1, 0, declared.run_steps, 2, declared.run_steps):
                    # The last of these boards has no room for a RUN.
                    if count == 0 or declared.run_steps == 0:
                        states = host.counted(STEP, step(first, *u[first]))
                        assert states == struct.pack("<I", first) + golden.step(u[first]).astype("<i2").tobytes()
                        first += 1
                        continue
                    count = min(count, declared.run_steps)
                    assert np.array_equal(
                        host.run(first, u[first : first + count]), golden.run(u[first : first + count])
                    )
                    first += count
                assert host.status().step == first
                host.counted(RESET)


def test_a_board_without_run(opened: Opened) -> None:
    with opened(nodes=120) as host:
        host.attach()
        assert host.refused(RUN, run(0, 1, 1, 2))[:4] == (10, 0, 0, 0)
        assert len(host.counted(STEP, step(0, 1, 2))) == 4 + 2 * 120


def test_a_session_begins_by_attach_alone(host: Host) -> None:
    for operation in (RESET, STEP, RUN, DETACH):
        for session in (0, 5):
            assert host.refused(operation, session=session, number=1)[:4] == (3, 0, 0, 0)
    for session, number, rest in ((0, 0, b""), (5, 1, b""), (5, 0, b"\0")):
        assert host.refused(ATTACH, rest, session=session, number=number)[:2] == (4, 0)
    assert host.status()[:3] == (SAFE, 0, 0)
    host.attach(5)
    assert host.status()[:3] == (AT_REST, 5, 0)
    host.counted(STEP, step(0, 1, 2))
    # A copy, and what is malformed, leave the session as it is.
    host.send(ATTACH)
    assert host.refused(ATTACH, b"\0", session=6, number=0)[:3] == (4, 0, 1)
    assert host.status()[:3] == (DRIVEN, 5, 1)
    assert host.status().copies == 1
    # Another host takes the board, and the one before is told.
    host.attach(6)
    assert host.status()[:3] == (AT_REST, 6, 0)
    assert host.refused(STEP, step(1, 1, 2), session=5, number=2)[:3] == (3, 0, 0)
    assert host.counted(RESET) == b""
    assert host.counted(DETACH) == b""
    assert host.refused(RESET)[:2] == (3, 0)


def test_numbers(host: Host) -> None:
    host.attach()
    states = host.counted(STEP, step(0, 100, 200))
    # A copy is not driven again.
    host.send(STEP, step(0, 100, 200), number=1)
    host.send(STEP, step(1, 100, 200), number=1)
    assert host.status()[2] == 1
    assert host.status().copies == 2
    # A request was lost: from then on nothing is driven before RESET.
    host.number += 1
    assert host.refused(STEP, step(1, 1, 1))[:4] == (6, 1, 1, 0)
    assert host.status()[0] == STATE_LOST
    assert host.refused(STEP, step(1, 1, 1))[:4] == (11, 1, 1, 0)
    assert host.refused(RUN, run(1, 1, 1, 1))[:4] == (11, 1, 1, 0)
    assert host.counted(RESET) == b""
    assert host.counted(STEP, step(0, 100, 200)) == states
    # RESET and DETACH that are not due do nothing either.
    host.number += 10
    assert host.refused(RESET)[:3] == (6, 1, 1)
    host.number += 10
    assert host.refused(DETACH)[:3] == (6, 1, 1)
    # An older number is no copy.
    assert host.refused(RESET, number=host.number - 1)[:3] == (6, 1, 1)
    host.number -= 1
    assert host.counted(RESET) == b""
    host.number = 65533
    assert host.refused(RESET).code == 6
    for number in (65535, 0, 1):
        assert host.counted(RESET) == b""
        assert host.number == number


def test_steps_and_lengths(host: Host) -> None:
    host.attach()
    most = host.info().run_steps
    assert most == (256 - 12 - 9) // 6
    host.counted(RUN, run(0, 2, 1, 2, 3, 4))
    for operation, rest, code in (
        (STEP, step(1, 1, 2), 6),
        (RUN, run(3, 1, 1, 2), 6),
        (RUN, run(2, 0), 4),
        (RUN, run(2, 2, 1, 2, 3), 4),
        (RUN, run(2, 1, 1, 2, 3), 4),
        (RUN, run(2, 1)[:5], 4),
        (STEP, step(2, 1), 4),
        (STEP, step(2, 1, 2, 3), 4),
        (STEP, b"", 4),
        (RESET, b"\0", 4),
        (DETACH, b"\0", 4),
    ):
        assert host.refused(operation, rest)[:4] == (code, 1, 2, 0), (operation, rest)
        host.counted(RESET)
        host.counted(RUN, run(0, 2, 1, 2, 3, 4))
    # These lose nothing, so it goes on.
    assert host.refused(RUN, run(2, most + 1, *[0] * 2 * most))[:4] == (9, 0, 2, 0)
    assert host.refused(RUN, run(2, 65535))[:4] == (9, 0, 2, 0)
    for operation in (PING, INFO, STATUS):
        assert host.refused(operation, b"\0", number=77)[:4] == (4, 0, 2, 0)
    golden = VirtualNodes(3, 2)
    golden.run(np.array([[1, 2], [3, 4]]))
    u = np.random.default_rng(0).integers(-1000, 1000, (most, 2))
    assert np.array_equal(host.run(2, u), golden.run(u))


def test_the_range_of_inputs(host: Host) -> None:
    host.attach()
    ends = host.run(0, np.array([[16384, -16384]]))
    for rest, at in (
        (step(1, 0, 16385), 1),
        (run(1, 3, 0, 0, 0, 0, -16385, 0), 3),
        (run(1, 3, 0, 32767, 0, 0, -32768, 0), 1),
    ):
        assert host.refused(STEP if len(rest) == 8 else RUN, rest)[:4] == (8, 0, at, 0)
    golden = VirtualNodes(3, 2)
    u = np.array([[16384, -16384], [5, 6]])
    assert np.array_equal(np.concatenate([ends, host.run(1, u[1:])]), golden.run(u))


def test_other_versions_and_operations(host: Host) -> None:
    host.attach(9)
    for code, body in (
        (1, b"\2\4\x09\0\1\0"),
        (1, b"\0\2\0\0\1\0"),
        (10, b"\1\0\x09\0\1\0"),
        (10, b"\1\x09\x09\0\1\0data"),
        (10, b"\1\x7f\0\0\1\0"),
    ):
        host.write(b"\0" + on_line(body))
        answer = host.read()
        assert answer is not None
        assert answer[:3] == (NAK, *struct.unpack_from("<HH", body, 2))
        assert refusal(answer.rest)[:4] == (code, 0, 0, 0)
    # It hears itself: no answer to an answer.
    for body in (b"\1\x81\x09\0\1\0", b"\1\xff\x09\0\1\0" + bytes(9)):
        host.write(b"\0" + on_line(body))
    host.ask(PING, number=3)
    host.counted(RESET)
    assert host.status().frames == 11


def test_damage_is_told_and_ends_with_the_frame(host: Host) -> None:
    host.attach()
    sent = b"\0" + on_line(b"\1\1\0\0\7\0")
    flipped = bytearray(sent)
    flipped[5] ^= 4
    host.write(bytes(flipped))
    lost = Answer(NAK, 0, 0, struct.pack("<BBIHB", 5, 0, 0, 0, 0))
    assert host.read() == lost
    # Half a frame, noise without and with zeros, COBS that promises more, an intact frame that is too short.
    for damage, answers in (
        (sent[:6], 1),
        (b"\x55\xaa\xff", 1),
        (b"\x55\0\xaa\0\0\xff\xfe", 3),
        (b"\x20abc", 1),
        (on_line(b"\1\1\0\0\7")[:-1], 1),
        (stuffed(b"")[:-1], 1),
    ):
        host.write(damage)
        host.send(PING, number=8)
        assert [host.read() for _ in range(answers)] == [lost] * answers
        assert host.read() == Answer(PING | 0x80, host.session, 8, b"")
    host.write(bytes(100))
    host.counted(STEP, step(0, 1, 2))
    assert host.status().damaged == 9


def test_frames_that_are_too_long(host: Host) -> None:
    host.attach()
    longest = 256 - 6 - 2
    # PING with a body is malformed; it is taken as long as it fits.
    for filler in (b"\0", b"\1"):
        assert host.refused(PING, filler * longest, number=7).code == 4
        host.send(PING, filler * (longest + 1))
        too_long = host.read()
        assert too_long is not None
        assert too_long[:3] == (NAK, 0, 0)
        assert refusal(too_long.rest)[:4] == (9, 0, 0, 0)
    # One that never seems to end, and is damaged at its end.
    for _ in range(100):
        host.write(b"\xfe" * 500)
    host.send(PING, number=1)
    too_long = host.read()
    assert too_long is not None
    assert refusal(too_long.rest).code == 9
    assert host.read() == Answer(PING | 0x80, host.session, 1, b"")
    assert host.status().too_long == 3
    assert host.counted(RESET) == b""


def events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_silent_host_loses_the_board(opened: Opened, tmp_path: Path) -> None:
    with opened(lease_ms=300) as host:
        host.attach(7)
        host.counted(STEP, step(0, 1, 2))
        # What is intact and of the session keeps it, be it refused or a copy.
        for number in range(8):
            time.sleep(0.06)
            if number % 2:
                host.send(STEP, step(0, 1, 2), number=1)
            else:
                host.ask(PING, number=number)
        host.number += 1
        assert host.refused(RESET).code == 6
        time.sleep(0.15)
        assert host.counted(RESET) == b""
        assert events(tmp_path / "log.jsonl") == ["off", "on"]
        # What others say, and garbage, do not.
        for _ in range(5):
            time.sleep(0.05)
            host.ask(PING, session=0)
            host.ask(STATUS, session=8)
            host.write(b"garbage\0")
            assert host.read() is not None
        time.sleep(0.15)
        assert host.status()[:3] == (SAFE, 0, 0)
        assert host.status().leases_ended == 1
        assert events(tmp_path / "log.jsonl") == ["off", "on", "off"]
        assert host.refused(RESET)[:2] == (3, 0)
        host.attach(7)
        host.counted(DETACH)
        assert events(tmp_path / "log.jsonl") == ["off", "on", "off", "on", "off"]
        time.sleep(0.4)
        assert host.status().leases_ended == 1


def test_a_device_that_fails(opened: Opened) -> None:
    u = np.arange(20).reshape(10, 2)
    with opened(fails_at=8) as host:
        host.attach()
        states = host.run(0, u[:4])
        found = host.refused(RUN, run(4, 6, *u[4:].reshape(-1).tolist()))
        assert found[:5] == (13, 1, 7, 3, "a planned fault")
        states = np.concatenate([states, np.frombuffer(found.states, "<i2").reshape(3, 3)])
        assert np.array_equal(states, VirtualNodes(3, 2).run(u[:7]))
        assert host.status()[0] == FAULT
        assert host.status().problem == "a planned fault"
        assert host.refused(STEP, step(7, 1, 2))[:4] == (11, 1, 7, 0)
        host.counted(RESET)
        assert host.status()[0] == AT_REST
        assert host.status().problem == ""
        assert np.array_equal(host.run(0, u), VirtualNodes(3, 2).run(u))


def test_states_before_a_fault_have_room_in_any_frame(opened: Opened) -> None:
    """The least wide board: the text of the NAK is cut."""
    sizes = {"nodes": 1, "inputs": 1, "fails_at": 117}
    with opened(**sizes) as host:
        steps = host.info().run_steps
        assert steps == 117
        host.attach()
        found = host.refused(RUN, run(0, steps, *range(steps)))
        assert found[:4] == (13, 1, 116, 116)
        assert "a planned fault".startswith(found.text)
        assert np.array_equal(np.frombuffer(found.states, "<i2"), VirtualNodes(1).run(np.arange(116)[:, None])[:, 0])


def test_hosts_come_and_go(opened: Opened) -> None:
    with opened() as host:
        host.attach(3)
        states = host.counted(RUN, run(0, 2, 1, 2, 3, 4))
        with Host(host.port) as other:
            assert other.status()[:3] == (DRIVEN, 3, 2)
            other.attach(4)
            assert other.counted(RUN, run(0, 2, 1, 2, 3, 4)) == states


@pytest.mark.slow
def test_a_host_that_reads_nothing_holds_nothing_up(opened: Opened) -> None:
    """Its answers fill the line. The lease ends, and the next host is served."""
    with opened(lease_ms=300) as host:
        host.attach(1)
        with Host(host.port) as silent:
            requests = b"".join(silent.send(PING, session=1, number=number) for number in range(20))
            for _ in range(300):
                silent.write(requests)
        time.sleep(0.4)
        deadline = time.monotonic() + 10
        with Host(host.port) as other:
            other.write(b"\0")
            other.send(STATUS)
            answer = other.read()
            while answer is None or answer.operation != STATUS | 0x80:
                assert time.monotonic() < deadline
                answer = other.read()
            assert answer.rest[0] == SAFE
            other.attach(2)
            assert other.status()[:3] == (AT_REST, 2, 0)


class Talk:
    """Requests, right and wrong, one after another, always the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._session, self._number, self._step = 1, 0, 0

    def next(self) -> bytes:
        """What is on the line: mostly a request, with a byte 0 before it."""
        chance = self._random.random
        line = b"\0" + on_line(self._body())
        if chance() > 0.1:
            return line
        kind, at = self._random.randrange(5), self._random.randrange(1, len(line))
        if kind == 0:
            return line[:at]
        if kind == 1:
            return line[:at] + bytes([line[at] ^ 1 << self._random.randrange(8)]) + line[at + 1 :]
        if kind == 2:
            return line + line
        if kind == 3:
            return line[:at] + line[at + self._random.randrange(1, 5) :]
        zeros = self._random.choice([0.0, 0.05])
        return bytes(
            0 if chance() < zeros else self._random.randrange(1, 256) for _ in range(self._random.randrange(600))
        )

    def _body(self) -> bytes:
        chance, draw = self._random.random, self._random.randrange
        operation = self._random.choice([PING, INFO, STATUS, ATTACH, RESET, STEP, STEP, RUN, RUN, RUN, DETACH])
        if operation == ATTACH:
            self._session, self._number, self._step = draw(65536), 0, 0
        elif operation in (RESET, STEP, RUN, DETACH):
            self._number = (self._number + (chance() > 0.02)) % 65536
        rest, steps = b"", 1
        if operation == RESET:
            self._step = 0
        if operation == RUN:
            steps = draw(1, 20) if chance() > 0.03 else draw(65536)
        if operation in (STEP, RUN):
            head = struct.pack("<IH", self._step, steps)[: 4 if operation == STEP else 6]
            high = 16385 if chance() > 0.03 else 32768
            rest = head + struct.pack(
                f"<{2 * min(steps, 60)}h", *(draw(-high, high) for _ in range(2 * min(steps, 60)))
            )
            self._step += steps
        if chance() < 0.03:
            rest = rest[: draw(len(rest) + 1)] + self._random.randbytes(draw(100))
        version, operation = (1 if chance() > 0.01 else draw(256)), operation if chance() > 0.01 else draw(256)
        return struct.pack("<BBHH", version, operation, self._session, self._number) + rest


def answers(port: str, count: int, at_once: int) -> list[Answer]:
    """Of a board to `count` pieces of talk, without what differs from board to board."""
    found: list[Answer] = []
    with Host(port) as host:
        talk = Talk(seed=1)
        for number in range(count // at_once):
            host.write(b"".join(talk.next() for _ in range(at_once)))
            # No session of the talk has this one: the answers before it have all come.
            host.send(PING, session=65535, number=number)
            while True:
                answer = host.read()
                assert answer is not None
                if answer == Answer(PING | 0x80, 65535, number, b""):
                    break
                rest = answer.rest
                if answer.operation == STATUS | 0x80:
                    rest = rest[:7] + rest[11:]
                found.append(answer._replace(rest=rest.replace(b"emulated", b"c99")))
        # It still does what it should.
        host.write(b"\0")
        host.attach(65534)
        u = np.arange(40).reshape(20, 2)
        assert np.array_equal(host.run(0, u), VirtualNodes(3, 2).run(u))
    return found


@pytest.mark.parametrize("requests", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_both_boards_give_the_same_answers_to_whatever_comes(tmp_path: Path, requests: int) -> None:
    found = []
    for board in BOARDS.values():
        with board(Sizes(), tmp_path / "log.jsonl") as port:
            found.append(answers(port, requests, at_once=20))
    assert len(found[0]) > requests / 2
    assert sum(answer.operation == RUN | 0x80 for answer in found[0]) > requests / 100
    codes = {refusal(answer.rest).code for answer in found[0] if answer.operation == NAK}
    assert codes == {1, 3, 4, 5, 6, 8, 9, 10, 11}
    for one, other in zip(*found, strict=True):
        assert one == other


# ---- the firmware alone -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_firmware_is_built_as_its_makefile_says(tmp_path: Path) -> None:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("there is no C compiler or no make")
    folder = tmp_path / "hardware" / "board_serial"
    shutil.copytree(FIRMWARE.parent, folder.parent)
    done = subprocess.run(
        ["make", "CFLAGS=-Os -Werror", "build/board_pty", "build/fuzz", "size"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    program = folder / "build" / "board_pty"
    wrong = subprocess.run([program, "--no"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "usage: board_pty [--link PATH] [--log FILE]\n")
    for options, said in ((["--link", folder], "File exists"), (["--log", "/nowhere/log"], "/nowhere/log: No such")):
        wrong = subprocess.run([program, *options], capture_output=True, text=True, check=False)
        assert wrong.returncode == 1
        assert said in wrong.stderr


@pytest.mark.parametrize("frames", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_the_firmware_under_random_and_damaged_frames(frames: int) -> None:
    done = subprocess.run(
        [built("fuzz.c", Sizes(lease_ms=2000)), str(frames), "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{frames} frames")
