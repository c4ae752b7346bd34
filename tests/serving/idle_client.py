"""A client in a process of its own that takes the device, drives it, and waits: idle_client.py ADDRESS."""

from __future__ import annotations

import sys

import numpy as np

from reservoir_hw.core.reservoir_config import open_reservoir

if __name__ == "__main__":
    with open_reservoir({"kind": "zmq", "address": sys.argv[1]}) as device:
        device.run(np.ones((1, 10, 2)))
        print("driven", flush=True)
        sys.stdin.read()
