"""`reservoir-hw serve --check`: what it prints, and what is no device."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import struct
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from command_line import called
from served import free_address
from serving.page_device import PageDevice, Replies

from reservoir_hw.testing.protocol import check as checker
from reservoir_hw.testing.protocol.check import rules_for
from reservoir_hw.testing.protocol.codec import crc32c

FEW = [rule for rule in rules_for("ipc://device") if rule.group in ("handshake", "strictness")]


@pytest.fixture(autouse=True)
def few_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others find is tested in tests/testing/protocol."""
    monkeypatch.setattr(checker, "RULES", tuple(FEW))
    monkeypatch.setattr("reservoir_hw.testing.protocol.pipes.CONNECT_S", 0.5)
    monkeypatch.setattr("reservoir_hw.testing.protocol.client.ANSWER_S", 0.5)


def test_a_device_that_keeps_the_page(address: str, tmp_path: Path) -> None:
    with PageDevice(address):
        done = called("serve", "--check", address, "--junit", tmp_path / "junit.xml")
    assert f"Looking at {address}: {len(FEW)} rules; the leases of 3 s take" in done.stderr
    assert "welcome has all fields" in done.stdout
    assert f"{len(FEW)} rules, " in done.stdout.splitlines()[-1]
    assert " 0 broken, " in done.stdout.splitlines()[-1]
    assert len(ET.parse(tmp_path / "junit.xml").getroot().findall("testcase")) == len(FEW)


def test_a_device_that_breaks_it(address: str) -> None:
    with PageDevice(address) as device:
        device.answer = lambda answer: [{**answer, "version": 7} if answer["op"] == "welcome" else answer]
        done = called("serve", "--check", address, code=1)
        machines = called("serve", "--check", address, "--json", code=1)
    assert "broken: handshake: the highest version of both is chosen" in done.stdout
    assert "The device chooses the highest version that both know." in done.stdout
    assert "52485743" in done.stdout
    report = json.loads(machines.stdout)
    assert report["counts"]["broken"] == [row["outcome"] for row in report["rules"]].count("broken") >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name what to serve, FILE, or a server to look at, --check ADDRESS"),
        (("esn.yaml", "--junit", "x.xml"), "--junit is what --check ADDRESS writes"),
        (("esn.yaml", "--check", "ipc://x", "--lease", 3), "leave out FILE, --lease"),
        (("--check", "tcp://bench"), "'tcp://bench' is no address of a device"),
        (("--check", "ipc://x", "--junit", "nowhere/x.xml"), "nowhere/x.xml: the JUnit XML cannot be written there"),
    ],
)
def test_arguments_that_do_not_fit(arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
    done = called("serve", *arguments, cwd=tmp_path, code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupted_check_shows_what_was_found(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(checker, "RULES", (FEW[0], replace(FEW[1], look=stop), *FEW[2:]))
    with PageDevice(address) as device:
        done = called("serve", "--check", address, "--junit", tmp_path / "junit.xml", code=130)
        assert device.freed.wait(1)
    assert f"1 held, 0 broken, {len(FEW) - 1} not offered" in done.stdout.splitlines()[-1]
    skipped = ET.parse(tmp_path / "junit.xml").getroot().findall("testcase/skipped")
    assert [why.get("message") for why in skipped] == ["not looked at: the check was interrupted"] * (len(FEW) - 1)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def web_server(address: str) -> Iterator[None]:
    ports = port_of(address), port_of(address) + 1
    servers = [http.server.HTTPServer(("127.0.0.1", port), Quiet) for port in ports]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def framed(body: bytes) -> bytes:
    return struct.pack("<4sB3xI", b"RHWC", 1, crc32c(body)) + body


def answering(answer: bytes) -> Callable[[str], contextlib.AbstractContextManager[object]]:
    """A server that gives this answer to every question."""

    class Anything(PageDevice):
        def _control(self, sender: bytes, frames: list[bytes]) -> Replies:
            return [[answer]]

    return Anything


@contextlib.contextmanager
def silent_router(address: str) -> Iterator[None]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as data, context.socket(zmq.ROUTER) as control:
        data.linger = control.linger = 0
        data.bind(address)
        control.bind(f"tcp://127.0.0.1:{port_of(address) + 1}")
        yield


@contextlib.contextmanager
def nobody(address: str) -> Iterator[None]:
    del address
    yield


@pytest.mark.parametrize(
    ("who", "message"),
    [
        (nobody, "nobody listens there. Is the server running, and the address right?"),
        (web_server, "it accepts connections, but does not speak ZeroMQ"),
        (silent_router, "no answer to hello within 0.5 s: it is no device of this protocol"),
        (answering(b"Hello"), "a control frame of 5 bytes (48656c6c6f): it is no device of this protocol"),
        (answering(b""), "a control frame of 0 bytes: it is no device of this protocol"),
        (answering(framed(b"\x91\x01")), "no op and id in [1]"),
        (answering(framed(b"\xc1")), "no msgpack: "),
        (answering(framed(b"\x91" * 5000)), "no msgpack: StackError"),
    ],
)
def test_what_is_no_device(who: Callable[[str], contextlib.AbstractContextManager[object]], message: str) -> None:
    address = free_address()
    with who(address):
        done = called("serve", "--check", address, code=3)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
