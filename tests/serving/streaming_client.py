"""A client that keeps eight requests of one step under way, until it is killed."""

from __future__ import annotations

import itertools
import sys

import numpy as np

from reservoir_hw import open_reservoir

if __name__ == "__main__":
    file = {"kind": "zmq", "address": sys.argv[1], "chunk_steps": 1, "inputs": 2}
    with open_reservoir(file) as reservoir:
        for _ in reservoir.stream(np.zeros((1, 1, 2)) for _ in itertools.count()):
            pass
