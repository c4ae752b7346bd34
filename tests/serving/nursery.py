"""Forks clients and servers that are there to be killed: a line `client ADDRESS` or `server ADDRESS` gives a number.

What a process takes to start is taken once. A client takes the device again and again, and drives it; a server serves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import numpy as np
from toys import Toy

from reservoir_hw.core.errors import DeviceError
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.serving import Server

LEASE_S = 2.0


def client(address: str) -> None:
    while True:
        try:
            with open_reservoir({"kind": "zmq", "address": address, "chunk_steps": 50}) as device:
                device.run(np.ones((1, 5, 2)))
                device.run(np.ones((1, 400, 2)))
        except DeviceError as error:
            print("a client:", error, file=sys.stderr)


def server(address: str) -> None:
    Server(Toy(), address, lease_s=LEASE_S).run()


if __name__ == "__main__":
    with contextlib.suppress(DeviceError):
        # Nobody is there. All that a client needs is imported.
        open_reservoir({"kind": "zmq", "address": "unix:///no/such/place", "timeout_s": 0.01})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        role, address = line.split()
        child = os.fork()
        if not child:
            sys.stdin.close()
            {"client": client, "server": server}[role](address)
            os._exit(0)
        print(child, flush=True)
