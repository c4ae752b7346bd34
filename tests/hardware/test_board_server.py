"""The C server: the golden model behind the page, driven by the page's client and by `kind: zmq`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from board_server import built, running
from served import ipc_address
from serving import page_wire as wire
from serving.page_client import PageClient, Refused

from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.emulators.virtual_nodes import SCALE, VirtualNodes

NODES, INPUTS = 50, 3
DEFINES = f"-DVN_NODES={NODES} -DVN_INPUTS={INPUTS}"
LEASE_S = 0.5


def golden(u: np.ndarray) -> np.ndarray:
    """What the device must answer to `u` (batch, time, inputs) from rest, as counts."""
    counts = np.rint(np.asarray(u, np.float64) / SCALE).astype(np.int16)
    return np.stack([VirtualNodes(NODES, INPUTS).run(one) for one in counts])


def inputs(batch: int = 1, steps: int = 60) -> np.ndarray:
    rng = np.random.default_rng(3)
    u = rng.uniform(-2, 32767 * SCALE, (batch, steps, INPUTS)).astype(np.float32)
    u[:, ::7] = -2.0  # the ends of the range, too
    u[:, 1::7] = 32767 * SCALE
    return u


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ipc_address() as path, running(built(DEFINES=DEFINES), "-l", str(LEASE_S), address=path) as (bound, _):
        assert bound == path
        yield bound


@pytest.fixture
def device(address: str) -> Iterator[Reservoir]:
    with open_reservoir({"kind": "zmq", "address": address}) as reservoir:
        yield reservoir


@pytest.fixture
def client(address: str) -> Iterator[PageClient]:
    with PageClient(address, "page client") as client:
        client.hello()
        client.attach()
        yield client
        client.goodbye()


def code_of(call: object) -> int:
    with pytest.raises(Refused) as refused:
        call()  # type: ignore[operator]
    return refused.value.code


def test_states_are_those_of_the_golden_model(device: Reservoir) -> None:
    u = inputs(batch=4)
    device.reset(4)
    states = device.run(u)
    assert np.array_equal(states, golden(u) * np.float32(SCALE))


def test_chunks_and_steps_go_on_from_each_other(device: Reservoir) -> None:
    u = inputs(batch=2)
    device.reset(2)
    parts = [device.run(u[:, :1]), device.run(u[:, 1:17]), *(device.run(u[:, t : t + 1]) for t in range(17, 60))]
    assert np.array_equal(np.concatenate(parts, axis=1), golden(u) * np.float32(SCALE))
