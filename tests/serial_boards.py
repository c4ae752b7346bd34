"""Both boards of the serial protocol, each on a pty: the emulated one, and the firmware in C as a process."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import reservoir_hw.hardware
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.emulators.board.faults import BoardFaultPlan
from reservoir_hw.emulators.board.line import emulated_board

FIRMWARE = Path(reservoir_hw.hardware.__file__).parent / "board_serial"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
_builds = tempfile.TemporaryDirectory(prefix="reservoir_hw_board_")
SANITIZERS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@dataclass(frozen=True)
class Sizes:
    """What both boards can be made with. `fails_at` is the step since power on that fails."""

    nodes: int = 3
    inputs: int = 2
    frame_bytes: int = 256
    lease_ms: int = 30000
    lowest: int = -16384
    highest: int = 16384
    fails_at: int | None = None


@contextlib.contextmanager
def emulated(sizes: Sizes, log: Path) -> Iterator[str]:
    """The port of an emulated board."""
    faults = [] if sizes.fails_at is None else [{"kind": "device", "occurrence": sizes.fails_at}]
    with emulated_board(
        sizes.nodes,
        sizes.inputs,
        frame_bytes=sizes.frame_bytes,
        lease_ms=sizes.lease_ms,
        input_range=(sizes.lowest, sizes.highest),
        log=log,
        faults=validate(BoardFaultPlan, Document.from_mapping({"faults": faults}, "a test")),
    ) as line:
        yield line.port


@contextlib.contextmanager
def firmware(sizes: Sizes, log: Path) -> Iterator[str]:
    """The port of the firmware, under ASan and UBSan."""
    process = subprocess.Popen(
        [built("pty_main.c", sizes), "--log", log], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
        process.terminate()
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


@functools.cache
def built(main: str, sizes: Sizes) -> Path:
    """A program of the firmware with these sizes."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler: cc")
    program = Path(tempfile.mkdtemp(dir=_builds.name)) / "board"
    defined = {
        "VN_NODES": sizes.nodes,
        "VN_INPUTS": sizes.inputs,
        "BOARD_FRAME_BYTES": sizes.frame_bytes,
        "BOARD_LEASE_MS": sizes.lease_ms,
        "DEVICE_LOWEST": f"({sizes.lowest}L)",
        "DEVICE_HIGHEST": sizes.highest,
        **({} if sizes.fails_at is None else {"DEVICE_FAILS_AT": sizes.fails_at}),
    }
    flags = [f"-D{name}={value}" for name, value in defined.items()]
    sources = [FIRMWARE / name for name in (main, "board.c", "device.c")]
    done = subprocess.run(
        ["cc", *STRICT, *SANITIZERS, *flags, "-o", program, *sources], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


BOARDS = {"emulated": emulated, "firmware": firmware}
