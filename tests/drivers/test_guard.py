"""The guard: outputs are off before anybody else can have the device, however its owner dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from scripted_instrument import instrument

from reservoir_hw.core.errors import DeviceBusy, DeviceFault
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.drivers.guard import Guard
from reservoir_hw.drivers.visa.roles import SafeState

OWNER = """
import sys, time
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.drivers.guard import Guard
from reservoir_hw.drivers.visa.roles import SafeState
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

address = sys.argv[1]
locks = HostLocks(["bench"])
locks.acquire()
guard = Guard([SafeState(address, ("OUTP OFF",))], ["bench"])
guard.start()
generator = ScpiInstrument(address).open()
generator.write("OUTP ON")
generator.finish("on", 5)
print("driving", flush=True)
while True:
    guard.expect_alive()
    generator.write("BURST")
    generator.finish("a burst", 5)
"""


class Generator:
    """Writes down what it is told, and takes its time to switch off."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.off_takes_s = 0.0

    def __call__(self, line: bytes, connection: socket.socket) -> None:
        if line == b"OUTP OFF":
            time.sleep(self.off_takes_s)
        if line == b"*OPC?":
            connection.sendall(b"1\n")
        else:
            self.log.append(line)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_outputs_are_off_before_the_lock_is_free(how: signal.Signals) -> None:
    generator = Generator()
    generator.off_takes_s = 0.2
    locks = HostLocks(["bench"])
    with instrument(generator) as address:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert owner.stdout is not None
        with owner, contextlib.closing(owner.stdout):
            assert owner.stdout.readline() == "driving\n"
            with pytest.raises(DeviceBusy):
                locks.acquire(0)
            os.kill(owner.pid, how)
            owner.wait()
            locks.acquire(20)
        assert generator.log[-1] == b"OUTP OFF"
        assert generator.log.count(b"OUTP OFF") == 1
        locks.release()


def test_an_owner_stops_when_its_guard_is_killed() -> None:
    generator = Generator()
    with instrument(generator) as address:
        guard = Guard([SafeState(address, ("OUTP OFF",))], ["bench"])
        guard.start()
        assert guard._process is not None
        guard._process.kill()
        guard._process.wait()
        with pytest.raises(DeviceFault, match="has ended; nothing is driven"):
            guard.expect_alive()
        guard.stop()


def test_an_instrument_that_takes_no_second_connection_is_told_before_anything_is_switched_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    guard = Guard([SafeState(f"TCPIP::127.0.0.1::{port}::SOCKET", ("OUTP OFF",))], ["bench"])
    with pytest.raises(DeviceFault, match=r"nobody can watch over the instruments: .*nothing was switched on"):
        guard.start()
