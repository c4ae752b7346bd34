"""What goes wrong between a computer and an instrument, on real sockets."""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time

import numpy as np
import pytest
from scripted_instrument import instrument

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    ProtocolError,
)
from reservoir_hw.drivers.visa.links import SCPI, PyvisaLink, Session, resource_of
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

# 0x0A is among their bytes, as the low and as the high one.
NUMBERS = np.arange(-30_000, 30_000, dtype="<i2")


def digitizer(line: bytes, connection: socket.socket) -> None:
    """Knows a handful of queries; :WAV:DATA? gives `NUMBERS`."""
    data = NUMBERS.tobytes()
    if line in (b"SYST:ERR?", b"SYSTEM:ERROR?"):
        connection.sendall(b'+0,"No error"\n')
    elif line == b":WAV:DATA?":
        connection.sendall(b"#8%08d" % len(data) + data + b"\n")
    elif line == b"*OPC?":
        connection.sendall(b"1\n")
    elif line.endswith(b"?"):
        connection.sendall(line + b"\r\n")


def test_queries_and_blocks(caplog: pytest.LogCaptureFixture) -> None:
    with (
        instrument(digitizer) as address,
        ScpiInstrument(address) as ours,
        caplog.at_level(logging.DEBUG, "reservoir_hw.drivers.visa.scpi"),
    ):
        assert ours.idn == "maker,model,serial,1.0"
        ours.write("FIRST", "SECOND")
        assert ours.query("ECHO?") == "ECHO?"
        np.testing.assert_array_equal(ours.query_block(":WAV:DATA?", "<i2"), NUMBERS)
        ours.finish("the upload", 1.0)
        with pytest.raises(ProtocolError, match="holds no whole number of 7-byte values"):
            ours.query_block(":WAV:DATA?", "V7")
        assert ours.query("ECHO?") == "ECHO?"
    dialogue = [record.getMessage() for record in caplog.records]
    assert f"{address} <- SECOND" in dialogue
    assert f"{address} -> <120000 bytes>" in dialogue


def test_the_way_over_pyvisa_gives_the_same() -> None:
    with instrument(digitizer) as address:
        session = Session(address)
        try:
            link = PyvisaLink(address, session._resource, SCPI)
            link.send(b"ECHO?")
            assert link.line() == b"ECHO?"
            link.send(b":WAV:DATA?")
            np.testing.assert_array_equal(np.frombuffer(link.block(), "<i2"), NUMBERS)
            link.send(b"ECHO?")
            assert link.line() == b"ECHO?"
        finally:
            session.close()


def test_an_upload_arrives_byte_by_byte() -> None:
    received = bytearray()
    done = threading.Event()

    def upload(line: bytes, connection: socket.socket) -> None:
        received.extend(line)
        if b"END" in line:
            done.set()

    with instrument(upload) as address, ScpiInstrument(address) as ours:
        sent = np.frombuffer(bytes(range(11, 256)) * 8, "u1")
        ours.write_block("DATA:DAC r1,", sent)
        ours.write("END")
        assert done.wait(5)
    assert bytes(received) == b"DATA:DAC r1,#41960" + sent.tobytes() + b"END"


def test_nobody_listens_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    started = time.perf_counter()
    with pytest.raises(DeviceDisconnected, match=r"nobody answers \(Connection refused\)"):
        ScpiInstrument(f"TCPIP::127.0.0.1::{port}::SOCKET").open()
    assert time.perf_counter() - started < 2
    with pytest.raises(DeviceTimeout, match=r"nothing came within 0\.2 s"), instrument(digitizer, b"") as address:
        # It answers with an empty line to *IDN?, and with nothing to what it does not know.
        ScpiInstrument(address, timeout_s=0.2).query("ECHO!")
    with pytest.raises(ConfigurationError, match="no VISA address"):
        ScpiInstrument("mylab").open()


def test_a_peer_that_closes_is_told_at_once_and_costs_nothing() -> None:
    def close(line: bytes, connection: socket.socket) -> None:
        if line == b":WAV:DATA?":
            connection.sendall(b"#3100" + bytes(40))
            connection.shutdown(socket.SHUT_RDWR)
        elif line == b"SYST:ERR?":
            connection.sendall(b"0\n")
        else:
            connection.shutdown(socket.SHUT_RDWR)

    with instrument(close) as address, ScpiInstrument(address, timeout_s=30) as ours:
        started, before = time.perf_counter(), time.process_time()
        with pytest.raises(DeviceDisconnected, match="it was closed"):
            ours.query("ANYTHING?")
        with pytest.raises(DeviceDisconnected, match="40 bytes into a block of 100"):
            ours.query_block(":WAV:DATA?", "u1")
        assert time.perf_counter() - started < 5
        assert time.process_time() - before < 1


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    go_on = threading.Event()

    def slow(line: bytes, connection: socket.socket) -> None:
        if line == b"SLOW?":
            assert go_on.wait(5)
            connection.sendall(b"late\n")
        else:
            connection.sendall(b"right\n")

    with instrument(slow) as address, ScpiInstrument(address, timeout_s=0.2) as ours:
        with pytest.raises(DeviceTimeout):
            ours.query("SLOW?")
        go_on.set()
        assert ours.query("OTHER?") == "right"


def test_errors_of_the_instrument_come_before_data() -> None:
    queue = [b'-222,"Data out of range"', b'-113,"Undefined header"']

    def faulty(line: bytes, connection: socket.socket) -> None:
        # A data query is never answered: its settings were refused.
        if line == b"SYST:ERR?":
            connection.sendall((queue.pop(0) if queue else b'+0,"No error"') + b"\n")

    with instrument(faulty) as address, ScpiInstrument(address) as ours:
        with pytest.raises(DeviceFault, match=r"reports -222.*; -113"):
            ours.query_block(":WAV:DATA?", "<i2")
        ours.check_errors()


def test_threads_share_an_instrument() -> None:
    with instrument(digitizer) as address, ScpiInstrument(address) as ours:
        wrong: list[str] = []

        def ask(name: str) -> None:
            wrong.extend(answer for _ in range(200) if (answer := ours.query(f"{name}?")) != f"{name}?")

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("A", "BB", "CCC")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_query_after_a_write_does_not_wait_for_an_acknowledgement() -> None:
    with instrument(digitizer) as address, ScpiInstrument(address) as ours:
        started = time.perf_counter()
        for _ in range(50):
            ours.write("A")
            ours.query("B?")
        # With Nagle's algorithm 44 ms each.
        assert time.perf_counter() - started < 1


def test_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this system allows fewer than 2000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    many: list[int] = []
    try:
        with instrument(digitizer) as address, ScpiInstrument(address) as ours:
            while not many or many[-1] < 1100:
                many.append(os.dup(0))
            # One that was open before goes on; pyvisa-py cannot open another.
            assert ours.query("ECHO?") == "ECHO?"
            with pytest.raises(DeviceDisconnected, match="pyvisa-py can handle 1000"):
                ScpiInstrument(address).open()
    finally:
        for number in many:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("TCPIP::h::5025::SOCKET", "TCPIP0::H::hislip0::INSTR", True),
        ("TCPIP::10.0.0.5::inst0::INSTR", "TCPIP0::10.0.0.5::5025::SOCKET", True),
        ("TCPIP::10.0.0.5::5025::SOCKET", "TCPIP::10.0.0.6::5025::SOCKET", False),
        ("TCPIP::127.0.0.1::5025::SOCKET", "TCPIP::127.0.0.1::5026::SOCKET", False),
        ("TCPIP::gw::gpib0,5::INSTR", "TCPIP::gw::gpib0,6::INSTR", False),
        ("USB0::0x2A8D::0x1602::MY1::INSTR", "usb0::0x2a8d::0x1602::my1::instr", True),
    ],
)
def test_one_instrument_is_one_resource(one: str, other: str, same: bool) -> None:
    assert (resource_of(one) == resource_of(other)) == same
