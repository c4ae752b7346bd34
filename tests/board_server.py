"""The C server of hardware/board_server, compiled and as a process."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reservoir_hw.hardware
from reservoir_hw.drivers.zeromq import status_of
from reservoir_hw.emulators.board.board import SCALE, VirtualNodes

NODES, INPUTS = 50, 2
DEFINES = f"-DVN_NODES={NODES} -DVN_INPUTS={INPUTS}"

SOURCES = Path(next(iter(reservoir_hw.hardware.__path__))) / "board_server"
_builds = tempfile.TemporaryDirectory(prefix="rhw")


def need(*programs: str) -> None:
    """Skip a test where one of these is not there."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is needed to compile the C server")


@functools.cache
def built(target: str = "board_server", **variables: str) -> Path:
    """The program `target` of the Makefile, with these variables of it: DEFINES="-DVN_NODES=7"."""
    need("cc", "make")
    folder = Path(tempfile.mkdtemp(dir=_builds.name))
    settings = {"CFLAGS": "-O0 -Werror", "PYTHON": sys.executable, "BUILD": str(folder), **variables}
    command = ["make", "-C", str(SOURCES), *(f"{name}={value}" for name, value in settings.items()), folder / target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / target


@contextlib.contextmanager
def running(
    program: Path, *options: str, address: str = "tcp://127.0.0.1:0", code: int = 0
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a server that runs, and its process; SIGTERM ends it, and it must end with `code`."""
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen([program, *options, address], stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            kind, bound = process.stdout.readline(), process.stdout.readline()
            if not bound:
                process.wait(10)
                log.seek(0)
                raise AssertionError(log.read())
            assert kind == "kind: zmq\n"
            yield bound.removeprefix("address: ").strip(), process
        finally:
            process.send_signal(signal.SIGTERM)
            ended = process.wait(10)
            log.seek(0)
            sys.stderr.write(log.read())
        assert ended == code


def golden(u: np.ndarray) -> np.ndarray:
    """What a server with `DEFINES` must answer to `u` (batch, time, inputs) from rest."""
    counts = np.rint(np.asarray(u, np.float64) / SCALE).astype(np.int16)
    return np.stack([VirtualNodes(NODES, INPUTS).run(one) for one in counts]) * np.float32(SCALE)


def wait_until_free(address: str, within_s: float) -> dict[str, Any]:
    """The status of a server once nobody has its device."""
    until = time.monotonic() + within_s
    while (status := status_of(address))["holder"] is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
    return status
