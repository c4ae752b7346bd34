"""C headers of readouts: what they take of a microcontroller's memory, and how long a prediction takes on this machine.

    python benchmarks/c_header.py [--compiler "CC FLAGS"] [--json FILE]

For each readout a C file with nothing but a call of `readout_predict` is compiled for size (-Os). "constants" and
"code" are the read-only data and the instructions in its object file, together what it takes of flash; the stack is
what the compiler reports for the call (on x86-64 up to 128 bytes more are used below it). `--compiler` gives a cross
compiler with its flags; constants are the same for any. The time is always that of a program for this machine (-O2),
the median of five runs, beside numpy's `readout.predict` of one step in float32.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import struct
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from reservoir_hw.readout import LowRankReadout, RidgeReadout
from reservoir_hw.readout.export import c_header

RUNS = 5
MULTIPLICATIONS = 500_000_000
WITHOUT_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions")
ONLY_THE_CALL = """
#include "readout.h"
extern void answer(const float *states, float *outputs);
void answer(const float *states, float *outputs) { (void)readout_predict(states, outputs); }
"""
TIMED = """
#include <stdio.h>
#include <time.h>
#include "readout.h"
static float states[READOUT_NODES], outputs[READOUT_OUTPUTS];
int main(void)
{
    volatile float sink = 0.0f;
    long i;
    const clock_t start = clock();
    for (i = 0; i < CALLS; ++i) {
        states[i % READOUT_NODES] = (float)(i % 17) * 0.05f;
        (void)readout_predict(states, outputs);
        sink = outputs[0];
    }
    (void)sink;
    printf("%.9g", (double)(clock() - start) / CLOCKS_PER_SEC / CALLS);
    return 0;
}
"""


@dataclass(frozen=True)
class Row:
    """Bytes, and microseconds for one prediction."""

    readout: str
    precision: str
    constants: int
    code: int
    stack: int | None
    predict_us: float
    numpy_us: float | None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="cc", help="for the sizes: a compiler with its flags")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name, readout in readouts().items():
        for precision in ("fp32", "int8"):
            rows.append(row_of(name, readout, precision, shlex.split(arguments.compiler)))
    print("| readout | precision | constants (bytes) | code (bytes) | stack (bytes) | µs | numpy µs |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        stack = "–" if row.stack is None else row.stack
        numpy_us = "–" if row.numpy_us is None else f"{row.numpy_us:.1f}"
        print(
            f"| {row.readout} | {row.precision} | {row.constants} | {row.code} | {stack} | {row.predict_us:.2f} | "
            f"{numpy_us} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def readouts() -> dict[str, Any]:
    """The readouts of the table, trained on noise: sizes and times do not depend on what was learned."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for nodes, outputs in ((100, 1), (512, 65)):
        x = rng.uniform(-1, 1, (2 * nodes, nodes))
        made[f"ridge, {nodes} → {outputs}"] = RidgeReadout(1e-2).fit(x, rng.standard_normal((len(x), outputs)))
    torch.manual_seed(0)
    made["low rank, 512 → 16 → 65"] = LowRankReadout(512, 65, 16)
    return made


def row_of(name: str, readout: Any, precision: Literal["fp32", "int8"], compiler: list[str]) -> Row:
    """Compile, look at the object file, run."""
    header = c_header(readout, precision=precision, state_range=(-1, 1) if precision == "int8" else None)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "readout.h").write_text(header, encoding="ascii")
        (folder / "call.c").write_text(ONLY_THE_CALL, encoding="ascii")
        calls = MULTIPLICATIONS // weights_of(readout)
        (folder / "timed.c").write_text(TIMED.replace("CALLS;", f"{calls};").replace(" / CALLS)", f" / {calls})"))
        _run([*compiler, "-std=c99", "-Os", *WITHOUT_TABLES, "-c", "call.c", "-o", "call.o"], folder)
        constants, code = sections((folder / "call.o").read_bytes())
        _run(["cc", "-std=c99", "-O2", "timed.c", "-o", "timed"], folder)
        times = [float(_run(["./timed"], folder)) for _ in range(RUNS)]
        stack = stack_of(compiler, folder)
    in_numpy = numpy_time(readout) if isinstance(readout, RidgeReadout) and precision == "fp32" else None
    return Row(name, precision, constants, code, stack, 1e6 * statistics.median(times), in_numpy)


def weights_of(readout: Any) -> int:
    """How many numbers a readout consists of, about as many as it multiplies."""
    if isinstance(readout, RidgeReadout):
        return readout.weights_.size
    return sum(parameter.numel() for parameter in readout.parameters())


def stack_of(compiler: list[str], folder: Path) -> int | None:
    """Bytes of `answer`, into which everything is inlined; None where the compiler cannot say."""
    command = [*compiler, "-std=c99", "-Os", "-fstack-usage", "-c", "call.c", "-o", "call.o"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    report = folder / "call.su"
    if done.returncode or not report.exists():
        return None
    return sum(int(line.split("\t")[1]) for line in report.read_text().splitlines())


def numpy_time(readout: RidgeReadout) -> float:
    """Seconds for one step."""
    states = np.random.default_rng(0).uniform(-1, 1, readout.weights_.shape[1]).astype(np.float32)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(2000):
            readout.predict(states)
        times.append((time.perf_counter() - start) / 2000)
    return 1e6 * statistics.median(times)


def sections(elf: bytes) -> tuple[int, int]:
    """Bytes of constants and of instructions in an object file (ELF, 32 or 64 bits, little endian)."""
    if elf[:4] != b"\x7fELF" or elf[5] != 1:
        raise SystemExit("the compiler's object files are no little-endian ELF: this table cannot be made of them")
    wide = elf[4] == 2
    table = struct.unpack_from("<Q" if wide else "<I", elf, 40 if wide else 32)[0]
    size, count = struct.unpack_from("<HH", elf, 58 if wide else 46)
    constants = code = 0
    for number in range(count):
        fields = struct.unpack_from("<IIQQQQ" if wide else "<IIIIII", elf, table + number * size)
        kind, flags, length = fields[1], fields[2], fields[5]
        # Loaded as it is (PROGBITS, ALLOC) and not written to. Tables for exceptions count as constants; without the
        # flags below there would be some.
        if kind == 1 and flags & 2 and not flags & 1:
            if flags & 4:
                code += length
            else:
                constants += length
    return constants, code


def _run(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
