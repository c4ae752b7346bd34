"""An instrument that is told lines of text: what it says wrong, late or not at all, in one sentence each."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import tty
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scripted_instrument import instrument

from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceFault, DeviceTimeout, ProtocolError
from reservoir_hw.drivers.commands import TextInstrument, Unasked
from reservoir_hw.drivers.ports import port_of
from reservoir_hw.drivers.visa.links import ConnectionConfig, resource_of

BLOCK = np.array([1.5, -2.0], "<f4")


class Speaker:
    """Answers as a table says; `queue` is its error queue."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.queue: list[bytes] = []
        self.table: dict[str, bytes] = {"READ?": b"1.5\n", "BLOCK?": b"#18" + BLOCK.tobytes() + b"\n"}

    def __call__(self, line: bytes, connection: socket.socket) -> None:
        self.told.append(line.decode())
        if line == b"SYST:ERR?":
            connection.sendall((self.queue.pop(0) if self.queue else b'0,"No error"') + b"\n")
        elif line == b"BYE":
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(self.table.get(line.decode(), b""))


@pytest.fixture
def speaker() -> Speaker:
    return Speaker()


@contextlib.contextmanager
def asked(speaker: Speaker, **keys: object) -> Iterator[TextInstrument]:
    with instrument(speaker) as address:
        config = ConnectionConfig.model_validate({"timeout_s": 0.2, **keys})
        one = TextInstrument(address, config)
        with contextlib.closing(one):
            yield one


@contextlib.contextmanager
def on_a_pty(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """A port at whose end each line is answered by a function."""
    master, slave = os.openpty()
    tty.setraw(slave)

    def serve() -> None:
        with contextlib.suppress(OSError), os.fdopen(os.dup(master), "rb", buffering=0) as lines:
            begun = b""
            while data := lines.read(4096):
                *whole, begun = (begun + data).split(b"\n")
                for line in whole:
                    os.write(master, answer(line))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield os.ttyname(slave)
    finally:
        os.close(slave)
        thread.join()
        os.close(master)


def test_lines_blocks_and_who_it_is(speaker: Speaker) -> None:
    with asked(speaker, identify="*IDN?", identity="maker", errors="SYST:ERR?") as one:
        one.open()
        assert one.who == "maker,model,serial,1.0"
        one.write("SOUR:VOLT 1")
        assert one.ask("READ?") == "1.5"
        assert one.ask_block("BLOCK?", "<f4") == BLOCK.tolist()
        one.check_errors()
        one.expect_silence()
        assert speaker.told == ["SOUR:VOLT 1", "READ?", "BLOCK?", "SYST:ERR?"]


@pytest.mark.parametrize(
    ("line", "answer", "error", "said"),
    [
        ("X?", b"", DeviceTimeout, r"nothing came within 0.2 s, and an answer was due \(asked: 'X\?'\)"),
        ("X?", b"1.2,3", DeviceTimeout, "of an answer only b'1.2,3' came, without its end"),
        ("X?", b"X?\n", ProtocolError, r"sends back what is sent to it \('X\?'\): .* say `echo: true`"),
        ("BYE", b"", DeviceDisconnected, "the connection is gone"),
    ],
)
def test_what_is_no_answer(speaker: Speaker, line: str, answer: bytes, error: type[Exception], said: str) -> None:
    speaker.table[line] = answer
    with asked(speaker) as one:
        with pytest.raises(error, match=said):
            one.ask(line)
        # On another connection.
        assert one.ask("READ?") == "1.5"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["socket", "pty"])
def test_what_comes_unasked(speaker: Speaker, kind: str) -> None:
    speaker.table |= {"SET 1": b"OK\n", "SLOW?": b"3\n"}
    speaker.table["READ?"] = b"1.5\n1.5\n"
    with contextlib.ExitStack() as held:
        if kind == "socket":
            one = held.enter_context(asked(speaker, timeout_s=5))
        else:
            port = held.enter_context(on_a_pty(lambda line: speaker.table.get(line.decode(), b"")))
            config = ConnectionConfig(timeout_s=5)
            one = held.enter_context(contextlib.closing(TextInstrument(f"ASRL{port}::INSTR", config)))
        assert one.ask("READ?") == "1.5"
        with pytest.raises(Unasked, match=r"'1.5\\n' came unasked before .*: .* one that came twice or late"):
            ask_and_listen(one, "READ?")
        assert one.ask("SLOW?") == "3"
        one.write("SET 1")
        with pytest.raises(Unasked, match=r"came unasked .*then write `ask:` for its `write:`"):
            ask_and_listen(one, "SLOW?")


def ask_and_listen(one: TextInstrument, line: str) -> None:
    """Each answer may be the one to the question before: then one is left over in the end."""
    for _ in range(10):
        one.ask(line)
    one.expect_silence(1.0)


def test_an_error_queue_says_why_nothing_came(speaker: Speaker) -> None:
    speaker.queue = [b'-113,"Undefined header"']
    with asked(speaker, errors="SYST:ERR?") as one:
        with pytest.raises(DeviceTimeout, match=r"the instrument reports -113,\"Undefined header\""):
            one.ask("RAED?")
        speaker.queue = [b"-222,a", b"803,b"]
        with pytest.raises(DeviceFault, match="the instrument reports -222,a; 803,b"):
            one.check_errors()
        speaker.queue = [b"-222,a"]
        one.forget_errors()
        one.check_errors()
        speaker.queue = [b"hello"]
        with pytest.raises(ProtocolError, match="was answered by 'hello', which does not begin with a number"):
            one.check_errors()
        speaker.queue = [b"-1,x"] * 1000
        with pytest.raises(ProtocolError, match="never says that there is no error"):
            one.check_errors()


def test_another_instrument_after_a_fault_is_refused(speaker: Speaker) -> None:
    speaker.table["WHO"] = b"first\n"
    with asked(speaker, identify="WHO") as one:
        one.open()
        speaker.table["WHO"] = b"second\n"
        with pytest.raises(DeviceTimeout):
            one.ask("X?")
        with pytest.raises(DeviceFault, match="was 'first', and is 'second' now"):
            one.ask("READ?")


def test_an_echo_is_compared_and_dropped() -> None:
    with on_a_pty(lambda line: line + b"\r\n" + (b"1.5\r\n" if line == b"READ?\r" else b"")) as port:
        config = ConnectionConfig.model_validate({"timeout_s": 0.5, "echo": True, "terminations": "\r\n"})
        with contextlib.closing(TextInstrument(port, config)) as one:
            one.write("SET 1")
            assert one.ask("READ?") == "1.5"
    with on_a_pty(lambda line: line[:-2] + b"\n1.5\n") as port:
        config = ConnectionConfig.model_validate({"timeout_s": 0.5, "echo": True})
        one = TextInstrument(port, config)
        with contextlib.closing(one), pytest.raises(ProtocolError, match="was sent, and 'REA' came back as its echo"):
            one.ask("READ?")


def test_a_late_answer_is_not_taken_for_the_next() -> None:
    late = threading.Event()

    def answer(line: bytes) -> bytes:
        if line == b"SLOW?":
            late.wait(5)
        return line.lower() + b"!\n"

    with on_a_pty(answer) as port, contextlib.closing(TextInstrument(port, ConnectionConfig(timeout_s=0.3))) as one:
        with pytest.raises(DeviceTimeout):
            one.ask("SLOW?")
        # It comes while the line is listened to before the next question.
        threading.Timer(0.1, late.set).start()
        assert one.ask("NEXT?") == "next?!"


def test_a_line_that_is_never_silent() -> None:
    with on_a_pty(lambda _: b"noise\n" * 3) as port:
        one = TextInstrument(port, ConnectionConfig(timeout_s=0.05))
        with contextlib.closing(one):
            one.ask("X?")
            with pytest.raises(Unasked):
                one.ask("X?")
            ended = threading.Event()

            def babble() -> None:
                with open(port, "wb", buffering=0) as other:
                    while not ended.wait(0.01):
                        other.write(b"X?\n")

            thread = threading.Thread(target=babble)
            thread.start()
            with pytest.raises(ProtocolError, match="sends text without being asked, and does not stop"):
                one.ask("X?")
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("/dev/ttyACM0", "/dev/ttyACM0"),
        ("ASRL/dev/ttyACM0::INSTR", "/dev/ttyACM0"),
        ("asrl/dev/ttyACM0", "/dev/ttyACM0"),
        ("ASRL3::INSTR", "COM3"),
        ("socket://bench:4000", "socket://bench:4000"),
        ("TCPIP::10.0.0.4::5025::SOCKET", None),
        ("GPIB::24::INSTR", None),
    ],
)
def test_a_port_has_one_lock_under_all_its_names(address: str, port: str | None) -> None:
    assert port_of(address) == port
    if port is not None:
        assert resource_of(address) == resource_of(port) == f"serial {port}"


def test_a_port_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="there is no port /dev/ttyNONE"):
        TextInstrument("ASRL/dev/ttyNONE::INSTR", ConnectionConfig()).open()
