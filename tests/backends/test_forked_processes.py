"""A device that was opened before a process forked belongs to the parent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serial_boards import Sizes, emulated
from served import ipc_address, served
from toys import Toy

from reservoir_hw import open_reservoir

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_fork(function: Callable[[], Any]) -> str:
    """What it returns, or raises, in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = str(function())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@contextlib.contextmanager
def configuration(kind: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    if kind == "zmq":
        with ipc_address() as address, served(Toy(), address):
            yield {"kind": "zmq", "address": address}
    elif kind == "serial":
        with emulated(Sizes(), tmp_path / "log") as port:
            yield {"kind": "serial", "port": port}
    else:
        at_rest = {"kind": "none", "reason": "no memory"}
        function = {"call": lambda u: u, "mode": "run", "inputs": 2, "nodes": 2, "simulated": False, "reset": at_rest}
        yield {"kind": "python", "continuity": "held", **function}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zmq", "serial", "python"])
def test_a_forked_process_leaves_the_device_to_its_parent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESERVOIR_HW_LOCKS", str(tmp_path))
    u = np.full((1, 5, 2), 0.25)
    with configuration(kind, tmp_path) as config, open_reservoir(config) as device:
        before = device.run(u)

        def chunks() -> Iterator[np.ndarray]:
            yield u
            yield u

        stream = device.stream(chunks())
        next(stream)
        refusal = f"was opened by process {os.getpid()}: open it here, or start workers with spawn"
        calls = [lambda: device.run(u), device.reset, device.snapshot, lambda: device.step(u[:, 0])]
        for call in calls:
            assert refusal in in_fork(call)
        assert in_fork(lambda: next(stream)).startswith("StateLost: this stream has ended")
        assert in_fork(device.close) == "None"
        if device.resources:
            assert in_fork(lambda: (device.close(), device.open())).startswith("DeviceBusy")
        device.reset()
        assert np.array_equal(device.run(u), before)


def test_a_forked_simulation_goes_on() -> None:
    u = np.full((1, 5, 1), 0.25)
    with open_reservoir({"kind": "esn", "nodes": 4, "inputs": 1, "seed": 1}) as reservoir:
        assert in_fork(lambda: reservoir.run(u).sum()) == str(reservoir.run(u).sum())
