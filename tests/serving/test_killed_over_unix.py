"""kill -9 of either side of a unix address at any moment: the other side says so, and nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from served import served, until
from toys import Toy

from reservoir_hw.core.errors import DeviceDisconnected, DeviceTimeout
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.drivers.zeromq import status_of

from .nursery import LEASE_S
from .test_lost_connections import process

SCHEME = "unix"
FEW_AND_MANY = [pytest.param(5, id="few"), pytest.param(40, id="many", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Callable[[str, str], int]]:
    """Starts a client or a server in a process of its own; its number."""
    with process("nursery.py") as mother:

        def born(role: str, address: str) -> int:
            assert mother.stdin is not None
            assert mother.stdout is not None
            print(role, address, file=mother.stdin, flush=True)
            return int(mother.stdout.readline())

        yield born


def segments() -> int:
    """Those that this process, the side that lives on, has mapped. The last one to go takes them along."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:")


def kill(victim: int) -> float:
    """kill -9; when it was."""
    os.kill(victim, signal.SIGKILL)
    struck = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(victim, 0)
            time.sleep(0.001)
    return struck


def connect(address: str, timeout_s: float = 5.0) -> Reservoir:
    return open_reservoir({"kind": "zmq", "address": address, "timeout_s": timeout_s, "chunk_steps": 50})


def drive_for_ever(address: str) -> None:
    while True:
        with connect(address, timeout_s=0.5) as device:
            for _ in range(5):
                device.run(np.ones((1, 400, 2)))


def check_right(device: Reservoir) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 600, 2))
    with Toy() as local:
        assert np.array_equal(device.run(u), local.run(u))


@pytest.mark.parametrize("times", FEW_AND_MANY)
def test_clients_that_are_killed(nursery: Callable[[str, str], int], address: str, times: int) -> None:
    """A client attaches and drives, over and over; the next one gets the device."""
    before, holders = segments(), 0
    folder = Path(address.removeprefix("unix://")).parent
    with served(Toy(), address, lease_s=LEASE_S) as server:
        for delay_s in np.random.default_rng(times).uniform(0, 0.1, times):
            victim = nursery("client", address)
            time.sleep(delay_s)
            # One at least is killed while it has the device, on a slow machine, too.
            while not holders and server.status()["holder"] is None:
                time.sleep(0.001)
            holders += server.status()["holder"] is not None
            died = kill(victim)
            while server.status()["holder"] is not None:
                assert time.monotonic() - died < LEASE_S
                time.sleep(0.001)
            with connect(address) as device:
                check_right(device)
            assert time.monotonic() - died < LEASE_S
            assert sorted(os.listdir(folder)) == ["device", "device.control"]
            until(lambda: segments() <= before, LEASE_S)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("times", FEW_AND_MANY)
def test_servers_that_are_killed(nursery: Callable[[str, str], int], address: str, times: int) -> None:
    """A client is attaching or driving; it says so, and the next server takes the path over."""
    before, folder = segments(), Path(address.removeprefix("unix://")).parent
    noticed = []
    for delay_s in np.random.default_rng(times).uniform(0, 0.1, times):
        victim = nursery("server", address)
        status_of(address)
        dead_at: list[float] = []
        timer = threading.Timer(delay_s, lambda victim=victim, dead_at=dead_at: dead_at.append(kill(victim)))
        timer.start()
        with pytest.raises((DeviceDisconnected, DeviceTimeout)):
            drive_for_ever(address)
        noticed_at = time.monotonic()
        timer.join()
        noticed.append(noticed_at - dead_at[0])
        assert sorted(os.listdir(folder)) == ["device", "device.control"]
        until(lambda: segments() <= before, LEASE_S)
        heir = nursery("server", address)
        with connect(address) as device:
            check_right(device)
        kill(heir)
    # At once, but for who was about to connect, and waits whether somebody comes.
    assert np.median(noticed) < 0.2
    assert max(noticed) < LEASE_S


def test_a_stopped_client_loses_its_lease(nursery: Callable[[str, str], int], address: str) -> None:
    """It stays connected: here the lease counts."""
    with served(Toy(), address, lease_s=0.4) as server:
        victim = nursery("client", address)
        while server.status()["holder"] is None:
            time.sleep(0.001)
        os.kill(victim, signal.SIGSTOP)
        stopped = time.monotonic()
        while server.status()["holder"] is not None:
            assert time.monotonic() - stopped < 2
            time.sleep(0.01)
        with connect(address) as device:
            check_right(device)
        kill(victim)
