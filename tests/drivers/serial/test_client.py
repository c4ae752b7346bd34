"""A session with a board: what goes wrong on the line is an error, and the next reset begins anew."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_board import ScriptedBoard, declared, line_of, nak

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    Discontinuity,
    ProtocolError,
    ReservoirError,
    StateLost,
)
from reservoir_hw.drivers.ports import resource_of_port
from reservoir_hw.drivers.serial import Connection, board_at
from reservoir_hw.drivers.serial.frames import NAK, Operation
from reservoir_hw.emulators.board.board import VirtualNodes

INPUTS = b"\x00\x10\x00\xf0\x34\x12"
TIMEOUT_S = 0.3


@pytest.fixture
def board() -> Iterator[ScriptedBoard]:
    with ScriptedBoard() as board:
        yield board


@pytest.fixture
def session(board: ScriptedBoard) -> Iterator[Connection]:
    session = Connection(board.port, timeout_s=TIMEOUT_S)
    session.attach()
    yield session
    session.close()


def golden(steps: int = 3) -> bytes:
    return VirtualNodes(5).run([[4096], [-4096], [4660]][:steps]).tobytes()  # pyright: ignore[reportArgumentType]


def check(session: Connection) -> None:
    """The board gives the right states after a reset."""
    session.reset()
    assert session.drive(INPUTS, 3) == golden()


def test_a_session(board: ScriptedBoard, session: Connection) -> None:
    assert session.declaration.vendor == "Lab 5"
    assert session.drive(INPUTS, 3) == golden()
    session.reset()
    assert b"".join(session.drive(INPUTS[at : at + 2], 1) for at in (0, 2, 4)) == golden()
    assert session.status().step == 3
    session.close()
    session.close()
    assert board.session == 0
    assert board.seen_operations() == [
        "INFO", "STATUS", "ATTACH", "RUN", "RESET", "STEP", "STEP", "STEP", "STATUS", "DETACH",
    ]  # fmt: skip
    assert vars(session.incidents) == {"damaged": 0, "repeated": 0, "dropped": 0}


def test_numbers_begin_anew_behind_the_last_one(board: ScriptedBoard, session: Connection) -> None:
    session._number = 0xFFFE
    check(session)
    assert [frame.number for frame in board.seen if frame.operation in (Operation.RESET, Operation.RUN)] == [0xFFFF, 0]


# ---- what comes instead of an answer ------------------------------------------------------------


def twice(line: bytes) -> bytes:
    return line + line


def flipped(line: bytes) -> bytes:
    return line[:5] + bytes([line[5] ^ 0x41]) + line[6:]


def half(line: bytes) -> bytes:
    return line[: len(line) // 2]


def nothing(line: bytes) -> bytes:
    del line
    return b""


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (nothing, DeviceTimeout, "no answer to RUN came in time, but the board is there"),
        (half, DeviceTimeout, "no answer to RUN came in time"),
        (flipped, ProtocolError, "a frame was damaged on its way"),
        (lambda _: line_of(NAK, 0, 0, nak(5, lost=0)), ProtocolError, "a request was damaged on its way$"),
        (lambda line: b"hello\0" + line, ProtocolError, "a frame was damaged on its way"),
        (lambda line: b"\x02\x01\0" + line, ProtocolError, "a frame of 1 bytes is too short"),
        (lambda _: b"x" * 400, ProtocolError, "a frame of more than 260 bytes"),
    ],
)
def test_damaged_answers(
    board: ScriptedBoard,
    session: Connection,
    change: Callable[[bytes], bytes],
    error: type[DeviceError],
    said: str,
) -> None:
    board.change(Operation.RUN, change)
    with pytest.raises(error, match=f"{re.escape(board.port)}: {said}"):
        session.drive(INPUTS, 3)
    with pytest.raises(DeviceDisconnected, match=r"; reset\(\) begins a new session$"):
        session.drive(INPUTS, 3)
    before = board.session
    check(session)
    assert board.session not in (0, before)


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (0x86, b"\x01\0\0\0\x03\0" + golden(), "another step, or another length"),
        (0x86, b"\0\0\0\0\x02\0" + golden(), "another step, or another length"),
        (0x86, b"\0\0\0\0\x03\0" + golden(2), "another step, or another length"),
        (0x86, b"\0\0\0\0\x03\0" + golden() + b"\0", "another step, or another length"),
        (0x85, b"\0\0\0\0\x03\0" + golden(), "operation 0x85 .* instead of the answer to request 1 .* was lost"),
        (0x06, b"\0\0\0\0\x03\0" + INPUTS, "operation 0x6 .* instead of the answer"),
        (NAK, b"\x0d\x01", "its NAK has 2 bytes, fewer than it says"),
    ],
)
def test_other_answers(board: ScriptedBoard, session: Connection, kind: int, content: bytes, said: str) -> None:
    board.answer_with(Operation.RUN, kind, content)
    with pytest.raises(ProtocolError, match=said):
        session.drive(INPUTS, 3)
    check(session)


@pytest.mark.parametrize(("session_by", "number"), [(1, 1), (0, 2), (0, 0x7000)])
def test_answers_to_others(board: ScriptedBoard, session: Connection, session_by: int, number: int) -> None:
    answer = line_of(0x86, board.session ^ session_by, number, b"\0\0\0\0\x03\0" + golden())
    board.change(Operation.RUN, lambda _: answer)
    with pytest.raises(ProtocolError, match="instead of the answer to request 1"):
        session.drive(INPUTS, 3)
    check(session)


def test_copies_are_dropped_and_counted(board: ScriptedBoard, session: Connection) -> None:
    states, sent = [], []
    for at in (0, 2, 4):
        # The answer before this one comes again in front of it.
        board.change(Operation.STEP, lambda line: sent.append(line) or b"".join(sent[-2:]))
        states.append(session.drive(INPUTS[at : at + 2], 1))
    assert b"".join(states) == golden()
    assert session.incidents.repeated == 2


def test_what_came_before_a_request_is_dropped(board: ScriptedBoard, session: Connection) -> None:
    board.send(b"some noise without an end")
    time.sleep(0.02)
    check(session)
    board.change(Operation.RUN, twice)
    check(session)
    check(session)


def test_a_late_answer_is_no_answer(board: ScriptedBoard, session: Connection) -> None:
    def late(line: bytes) -> bytes:
        time.sleep(1.5 * TIMEOUT_S)
        return line

    board.change(Operation.RUN, late)
    with pytest.raises(DeviceTimeout, match="or takes longer than the board declares"):
        session.drive(INPUTS, 3)
    check(session)
    assert session.incidents.dropped >= 1


# ---- what a board refuses -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, ProtocolError), (3, DeviceDisconnected), (4, ProtocolError), (6, ProtocolError), (9, ConfigurationError),
        (11, StateLost), (12, Discontinuity), (13, DeviceFault), (14, DeviceTimeout), (19, DeviceDisconnected),
        (77, ProtocolError),
    ],
)  # fmt: skip
def test_refusals(board: ScriptedBoard, session: Connection, code: int, error: type[ReservoirError]) -> None:
    board.answer_with(Operation.RUN, NAK, nak(code, text="no light\x1b", step=2))
    with pytest.raises(error, match=rf"{board.port}: (.*\()?no light\?") as caught:
        session.drive(INPUTS, 3)
    if isinstance(caught.value, Discontinuity):
        assert caught.value.step == 2
    check(session)


def test_a_board_that_answers_is_told_goodbye(board: ScriptedBoard) -> None:
    """Also where it says that the device behind it is gone, and where nobody knows whether it is attached."""
    gone = Connection(board.port, timeout_s=TIMEOUT_S)
    gone.attach()
    board.answer_with(Operation.RUN, NAK, nak(19))
    with pytest.raises(DeviceDisconnected):
        gone.drive(INPUTS, 3)
    gone.close()
    assert board.session == 0
    unknown = Connection(board.port, timeout_s=TIMEOUT_S)
    board.change(Operation.ATTACH, nothing)
    with pytest.raises(DeviceTimeout):
        unknown.attach()
    assert board.session != 0
    unknown.close()
    assert board.session == 0


def test_refusals_without_a_text(board: ScriptedBoard, session: Connection) -> None:
    board.answer_with(Operation.RUN, NAK, nak(3))
    with pytest.raises(DeviceDisconnected, match="no longer knows this session: it was restarted, or its lease"):
        session.drive(INPUTS, 3)
    board.answer_with(Operation.ATTACH, NAK, nak(13))
    with pytest.raises(DeviceFault, match="the board gives no reason"):
        session.reset()
    check(session)


# ---- boards that come and go --------------------------------------------------------------------


def test_a_board_that_falls_silent(board: ScriptedBoard, session: Connection) -> None:
    board.silent = True
    with pytest.raises(DeviceDisconnected, match="and none to PING: the board is gone: unplugged, without power"):
        session.drive(INPUTS, 3)
    with pytest.raises(DeviceDisconnected, match=r"nobody answers|board is gone"):
        session.reset()
    board.silent = False
    check(session)


def test_a_board_that_is_unplugged(board: ScriptedBoard, session: Connection) -> None:
    board.unplug()
    began = time.monotonic()
    with pytest.raises(DeviceDisconnected, match="the port is gone"):
        session.drive(INPUTS, 3)
    assert time.monotonic() - began < TIMEOUT_S
    with pytest.raises(DeviceDisconnected):
        session.reset()


def test_a_board_that_is_unplugged_while_it_works(board: ScriptedBoard, session: Connection) -> None:
    board.change(Operation.RUN, nothing)
    unplugging = threading.Timer(TIMEOUT_S / 2, board.unplug)
    unplugging.start()
    with pytest.raises(DeviceDisconnected, match="the port is gone"):
        session.drive(INPUTS, 3)
    unplugging.join()


@pytest.mark.slow
def test_the_heartbeat_keeps_the_lease() -> None:
    with ScriptedBoard(declared(lease_ms=150)) as board:
        session = Connection(board.port, timeout_s=TIMEOUT_S)
        session.attach()
        time.sleep(0.4)
        pings = [frame for frame in board.seen if frame.operation == Operation.PING]
        assert len(pings) >= 5
        assert {frame.session for frame in pings} == {board.session}
        assert session.drive(INPUTS, 3) == golden()
        board.silent = True
        time.sleep(2 * TIMEOUT_S)
        # Nobody asked, and yet it is known.
        with pytest.raises(DeviceDisconnected, match="no answer to PING came in time: the board is gone"):
            session.drive(INPUTS, 3)
        board.silent = False
        check(session)
        # After an error the board is left to its lease.
        board.change(Operation.RUN, flipped)
        with pytest.raises(ProtocolError):
            session.drive(INPUTS, 3)
        before = len(board.seen)
        time.sleep(0.2)
        assert len(board.seen) == before
        session.close()
        assert board.seen_operations()[-2:] == ["RUN", "DETACH"]


def test_another_board_at_the_same_port(board: ScriptedBoard, session: Connection) -> None:
    board.change(Operation.RUN, nothing)
    with pytest.raises(DeviceTimeout):
        session.drive(INPUTS, 3)
    board.info = declared(texts=("Lab 5", "loop", "8", "1.2", "five nodes"))
    with pytest.raises(ProtocolError, match=r"declares something else \(Lab 5 loop 8\)"):
        session.reset()


def test_the_session_of_somebody_else_is_not_taken_for_ours(board: ScriptedBoard) -> None:
    numbers = set()
    for _ in range(20):
        session = Connection(board.port, timeout_s=TIMEOUT_S)
        session.attach()
        numbers.add(board.session)
        # As after kill -9: nobody says DETACH.
        session._closing.set()
        session._line.close()
    assert len(numbers) > 15


def test_a_board_that_says_that_it_is_not_safe(board: ScriptedBoard, session: Connection) -> None:
    board.answer_with(Operation.DETACH, NAK, nak(13, text="the laser stays on"))
    with pytest.raises(DeviceFault, match="the laser stays on"):
        session.close()


# ---- opening ------------------------------------------------------------------------------------


def test_a_board_that_begins_anew_when_its_port_is_opened(board: ScriptedBoard) -> None:
    board.send(b"ets Jun  8 2016 00:22:57\r\nrst:0x1 (POWERON_RESET)\r\n")
    for _ in range(3):
        board.change(Operation.INFO, nothing)
    assert board_at(board.port, timeout_s=0.5).model == "loop"


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (nothing, DeviceDisconnected, "at 9600 baud: nobody answers within 0.58 s: is the board on"),
        (
            lambda _: b"\xf8\x80\xf8",
            ProtocolError,
            "at 9600 baud: .* bytes came, and none was a frame: the board has anot",
        ),
        (lambda _: line_of(0x81, 7, 7), ProtocolError, "frames came, but no answer to INFO"),
    ],
)
def test_nobody_answers_as_the_page_says(
    board: ScriptedBoard, change: Callable[[bytes], bytes], error: type[DeviceError], said: str
) -> None:
    for _ in range(20):
        board.change(Operation.INFO, change)
    with pytest.raises(error, match=said):
        Connection(board.port, baud=9600, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("text", [b"12.5 V\r\n", b"\0\x05noise"])
def test_a_device_that_talks_all_the_time(board: ScriptedBoard, text: bytes) -> None:
    board.silent, ended = True, threading.Event()

    def talk() -> None:
        while not ended.wait(0.0005):
            board.send(text * 20)

    talking = threading.Thread(target=talk)
    talking.start()
    try:
        with pytest.raises(ProtocolError, match=r"bytes came, and none was a frame: .* does not speak this protocol"):
            Connection(board.port, timeout_s=TIMEOUT_S)
    finally:
        ended.set()
        # It may be waiting for room on the line.
        os.read(board.slave, 65536)
        talking.join()


def test_a_line_that_sends_back_what_is_sent() -> None:
    with pytest.raises(ProtocolError, match="loop:// at 115200 baud sends back what is sent to it"):
        Connection("loop://", timeout_s=TIMEOUT_S)


def test_another_version_and_a_declaration_that_cannot_be_used() -> None:
    for content, said in ((declared(lowest=2, highest=2), "speaks versions 2 to 2"), (declared(nodes=0), "0 nodes")):
        with ScriptedBoard(content) as board, pytest.raises(ProtocolError, match=f"{board.port}: it .*{said}"):
            Connection(board.port, timeout_s=TIMEOUT_S)


def test_ports_that_there_are_not(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no port /dev/ttyACM77; (there are|this machine shows)"):
        Connection("/dev/ttyACM77")
    file = os.path.join(tmp_path, "file")
    open(file, "w").close()
    with pytest.raises(ConfigurationError, match="is no serial port that works"):
        Connection(file)
    with pytest.raises(ConfigurationError, match="cannot be opened: invalid URL, protocol 'foo' not known"):
        Connection("foo://bar")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(DeviceDisconnected, match=rf"^socket://127.0.0.1:{port} cannot be reached: .*refused"):
        Connection(f"socket://127.0.0.1:{port}")


def test_a_port_that_this_user_may_not_open(board: ScriptedBoard) -> None:
    # Once, as the modules of Python may not be readable for others.
    Path(board.port).group()
    os.chmod(board.port, 0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigurationError, match=r"may not be opened by this user: add them to the group \w+ "):
            Connection(board.port, timeout_s=TIMEOUT_S)
    finally:
        os.seteuid(me)


def test_a_port_that_another_program_has(board: ScriptedBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(board.port, "rb", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DeviceBusy, match=f"{board.port} is in use by another program"):
            Connection(board.port, timeout_s=TIMEOUT_S)
        monkeypatch.setenv("RESERVOIR_HW_WAIT_S", "20")
        threading.Timer(0.2, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        assert board_at(board.port, timeout_s=TIMEOUT_S).model == "loop"


def test_a_board_that_does_not_read() -> None:
    with ScriptedBoard(declared(inputs=100, frame_bytes=65000, run_steps=300)) as board:
        session = Connection(board.port, baud=4_000_000, timeout_s=TIMEOUT_S)
        session.attach()
        board.deaf = True
        with pytest.raises(DeviceTimeout, match=r"nothing could be sent for 0\.46 s: the board does not read"):
            session.drive(bytes(60000), 300)
        board.deaf = False
        session.close()
        assert board.seen_operations()[-2:] == ["ATTACH", "DETACH"]


def test_links_mean_the_port_that_they_point_to(board: ScriptedBoard, tmp_path: os.PathLike[str]) -> None:
    link = os.path.join(tmp_path, "usb-Lab_5")
    os.symlink(board.port, link)
    assert resource_of_port(link) == resource_of_port(board.port) != resource_of_port("/dev/ttyACM0")
    assert resource_of_port("socket://Bench:4000") == resource_of_port("socket://bench:4000")


def test_a_socket(board: ScriptedBoard) -> None:
    """As of a device server, or an emulated microcontroller."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        relaying = threading.Thread(target=relay, args=(server, board.port), daemon=True)
        relaying.start()
        session = Connection(f"socket://127.0.0.1:{server.getsockname()[1]}", timeout_s=TIMEOUT_S)
        session.attach()
        check(session)
        session.close()
        relaying.join()


def relay(server: socket.socket, port: str) -> None:
    import select

    connection, _ = server.accept()
    file = os.open(port, os.O_RDWR | os.O_NOCTTY)
    with connection:
        while True:
            ready = select.select([connection, file], [], [])[0]
            if file in ready:
                connection.sendall(os.read(file, 4096))
            if connection in ready:
                data = connection.recv(4096)
                if not data:
                    break
                os.write(file, data)
    os.close(file)
