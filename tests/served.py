"""Reservoirs behind sockets, in threads of the test process."""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from reservoir_hw.backends.zeromq import ZmqReservoir
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.drivers.zeromq.links import Dealer
from reservoir_hw.drivers.zeromq.sockets import ZmqDealer
from reservoir_hw.serving import Server


def free_address() -> str:
    """A tcp address on this host whose next port is free too."""
    # Below those that the system gives to whoever connects; at random, as other tests look at the same time.
    for _ in range(1000):
        port = 20000 + 2 * secrets.randbelow(6000)
        with socket.socket() as data, socket.socket() as control, contextlib.suppress(OSError):
            data.bind(("127.0.0.1", port))
            control.bind(("127.0.0.1", port + 1))
            return f"tcp://127.0.0.1:{port}"
    raise AssertionError("no free port")


@contextlib.contextmanager
def ipc_address(scheme: str = "ipc") -> Iterator[str]:
    """An ipc address, or a unix one: the folders of pytest have paths that are too long for one."""
    with tempfile.TemporaryDirectory(prefix="rhw") as folder:
        yield f"{scheme}://{Path(folder)}/device"


@contextlib.contextmanager
def served(reservoir: Reservoir, address: str, **options: Any) -> Iterator[Server]:
    """While a server runs; what ended it early is raised."""
    server = Server(reservoir, address, **options)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        while not server.wait_ready(0.05) and thread.is_alive():
            pass
        if ended:
            raise ended[0]
        yield server
    finally:
        server.stop()
        thread.join()
    if ended:
        raise ended[0]


def connect(address: str, **more: Any) -> ZmqReservoir:
    """The reservoir that is served there."""
    opened = open_reservoir({"kind": "zmq", "address": address, "timeout_s": 2.0, **more})
    assert isinstance(opened, ZmqReservoir)
    return opened


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until it holds, which is to be soon."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def socket_of(dealer: Dealer) -> zmq.Socket[bytes]:
    """The socket of ZeroMQ at the client's end, for what no client does."""
    assert isinstance(dealer, ZmqDealer)
    return dealer.socket
