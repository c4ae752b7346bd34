"""A board on a serial line: what a step costs beside bare pyserial, and the codec beside the time of the line.

    python benchmarks/serial_line.py [--rounds N] [--json FILE]

Two processes of the firmware in `hardware/board_serial` (50 nodes, frames of 4,095 bytes) answer, each on a pty. One is
driven by `kind: serial`, the other by bare pyserial: `write` of a frame that was packed before, `read` of as many bytes
as will come, nothing looked at. The same bytes travel on both. Rounds alternate, and ratios are those of a pair of
rounds. The pty takes no time; on a real line the time of the bytes comes on both sides.

COBS is timed on bodies of 4,096 bytes beside the package `cobs`, if that is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import serial

import reservoir_hw.hardware
from reservoir_hw import open_reservoir
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.drivers.serial.frames import (
    ANSWER,
    Frame,
    Operation,
    crc16,
    on_line,
    place_of,
    stuffed,
    unstuffed,
)
from reservoir_hw.emulators.board.board import SCALE, VirtualNodes

FIRMWARE = Path(reservoir_hw.hardware.__file__).parent / "board_serial"
NODES, STEPS_A_FRAME, STEPS_A_ROUND = 50, 40, 2000
SESSION = 0x1234


@contextlib.contextmanager
def board(folder: Path) -> Iterator[str]:
    """The port of a board."""
    program = folder / "board"
    if not program.exists():
        sources = [FIRMWARE / name for name in ("pty_main.c", "board.c", "device.c")]
        subprocess.run(["cc", "-std=c99", "-O2", "-DBOARD_FRAME_BYTES=4095", "-o", program, *sources], check=True)
    process = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


class Bare:
    """pyserial alone."""

    def __init__(self, port: str, counts: np.ndarray) -> None:
        self._port = serial.Serial(port, 115200, timeout=5)
        self._number = 0
        self._counts = counts
        self._states = VirtualNodes(NODES).run(counts)
        self._ask(on_line(Frame(Operation.ATTACH, SESSION, 0)), 10)

    def _ask(self, request: bytes, size: int) -> bytes:
        self._port.write(request)
        return self._port.read(size)

    def _packed(self, operation: Operation, place: bytes = b"", first: int = 0, steps: int = 0) -> tuple[bytes, bytes]:
        """A request, and the answer that will come."""
        self._number = (self._number + 1) & 0xFFFF
        inputs, states = (part[first : first + steps].tobytes() for part in (self._counts, self._states))
        request = on_line(Frame(operation, SESSION, self._number, place + inputs))
        return request, on_line(Frame(operation | ANSWER, SESSION, self._number, place + states))[1:]

    def round(self, steps: int) -> float:
        """Seconds for all steps, so many in a frame."""
        request, answer = self._packed(Operation.RESET)
        assert self._ask(request, len(answer)) == answer
        packed = [self._packed(*place_of(at, steps), at, steps) for at in range(0, STEPS_A_ROUND, steps)]
        exchanges = [(request, len(answer)) for request, answer in packed]
        began = time.perf_counter()
        came = [self._ask(request, size) for request, size in exchanges]
        seconds = time.perf_counter() - began
        assert came == [answer for _, answer in packed]
        return seconds


class Package:
    """`kind: serial`."""

    def __init__(self, reservoir: Reservoir, counts: np.ndarray) -> None:
        self._reservoir = reservoir
        self._u = (counts * SCALE).astype(np.float32)[None]
        self._states = (VirtualNodes(NODES).run(counts) * SCALE).astype(np.float32)[None]

    def round(self, steps: int) -> float:
        """Seconds for all steps, by `step` or by one `run`."""
        self._reservoir.reset()
        states = np.empty_like(self._states)
        began = time.perf_counter()
        if steps == 1:
            for at in range(STEPS_A_ROUND):
                states[:, at] = self._reservoir.step(self._u[:, at])
        else:
            self._reservoir.run(self._u, states)
        seconds = time.perf_counter() - began
        assert np.array_equal(states, self._states)
        return seconds


def microseconds(call: Callable[[], object], times: int = 200) -> float:
    """The best of five."""
    best = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            call()
        best.append((time.perf_counter() - began) / times)
    return round(min(best) * 1e6, 1)


def codec() -> list[dict[str, object]]:
    """Both ways, for bodies with few zeros and with many."""
    draw = np.random.default_rng(0)
    bodies = {
        "random bytes": draw.bytes(4096),
        "small int16 (every other byte 0)": draw.integers(0, 256, 2048).astype("<i2").tobytes(),
        "all zeros": bytes(4096),
    }
    try:
        from cobs import cobs  # pyright: ignore[reportMissingImports]
    except ImportError:
        cobs = None
    rows = []
    for name, body in bodies.items():
        line = stuffed(body)
        row: dict[str, object] = {
            "body": name,
            "stuffed_us": microseconds(lambda body=body: stuffed(body)),
            "unstuffed_us": microseconds(lambda line=line: unstuffed(line)),
            "crc_us": microseconds(lambda body=body: crc16(body)),
            "line_us_at_1_Mbaud": len(line) * 10,
        }
        if cobs is not None:
            row["cobs_encode_us"] = microseconds(lambda body=body: cobs.encode(body))
            row["cobs_decode_us"] = microseconds(lambda line=line: cobs.decode(line))
        rows.append(row)
    return rows


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = np.random.default_rng(0).integers(-16384, 16385, (STEPS_A_ROUND, 1)).astype("<i2")
    rows = []
    with tempfile.TemporaryDirectory() as folder, board(Path(folder)) as ours, board(Path(folder)) as others:
        bare = Bare(others, counts)
        with open_reservoir({"kind": "serial", "port": ours}) as reservoir:
            package = Package(reservoir, counts)
            for name, steps in (("step", 1), ("run", STEPS_A_FRAME)):
                times: list[tuple[float, float]] = []
                for number in range(options.rounds + 1):
                    if number % 2:
                        mine = package.round(steps)
                        times.append((mine, bare.round(steps)))
                    else:
                        plain = bare.round(steps)
                        times.append((package.round(steps), plain))
                # The first round warms up.
                del times[0]
                each = STEPS_A_ROUND / steps
                rows.append(
                    {
                        "what": f"{name}, {steps} a frame",
                        "kind_serial_us": round(statistics.median(mine for mine, _ in times) / each * 1e6, 1),
                        "bare_us": round(statistics.median(plain for _, plain in times) / each * 1e6, 1),
                        "ratio": round(statistics.median(mine / plain for mine, plain in times), 2),
                    }
                )
    result = {"cpus": os.cpu_count(), "line": rows, "codec": codec()}
    for row in (*rows, *result["codec"]):
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
