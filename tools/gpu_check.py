"""Whether this machine can be trusted with simulations on its GPU: the tests marked `gpu`, then benchmarks/gpu.py.

    python tools/gpu_check.py [--device cuda] [--quick] [--json FILE]

Prints a table and, at the end, one line. Exit codes: 0 everything agrees with the CPU; 1 something does not, or could
not be checked although there is a GPU; 2 wrong arguments; 3 there is no GPU, so that nothing was checked.

With `--device cpu` it runs through without a GPU, with the same tests and table by torch on the CPU. This checks the
script and the path that a GPU takes too, and no GPU: the last line says so, and the codes are the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NO_GPU = 3

# What has tests that are marked `gpu`.
TESTS = (
    "tests/backends/simulated",
    "tests/readout/linear/test_tensors.py",
    "tests/experiment/states/test_on_device.py",
)
# Without a GPU the tests of the same names that are not marked.
CPU_TESTS = ("tests/backends/simulated/test_on_gpu.py", *TESTS[1:])

UNCHECKED = """\
There is no GPU here that torch finds. So this machine could not check:
  - that the engines torch, cuda_graphs and triton give the states of the CPU on a GPU
  - that the noise on a GPU is made of the same words
  - that states stay on a GPU for a readout, and that its sums there are those of numpy
  - that memory is estimated rightly, and that running out of it is one sentence
  - how fast anything is on a GPU
What is checked without one is in docs/gpu.md; `--device cpu` runs this script through on the CPU."""


def main() -> int:
    """Run both parts and say in one line what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--quick", action="store_true", help="the table of small sizes only")
    parser.add_argument("--json", type=Path, help="write the table there")
    arguments = parser.parse_args()
    on_gpu = arguments.device != "cpu"
    if on_gpu and not _gpu_is_there():
        print(UNCHECKED)
        return NO_GPU
    problems = _tests(on_gpu)
    with tempfile.TemporaryDirectory() as folder:
        table = (arguments.json or Path(folder) / "table.json").resolve()
        problems += _table(arguments.device, arguments.quick, table)
    where = f"{arguments.device} of this machine" if on_gpu else "the path of a GPU, run on the CPU,"
    if problems:
        print(f"NOT TRUSTED: {where} fails: {'; '.join(problems)}")
        return 1
    about = "" if on_gpu else "; no GPU was checked"
    print(f"TRUSTED: {where} gives the states of the CPU in all tests and rows{about}")
    return 0


def _gpu_is_there() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def _tests(on_gpu: bool) -> list[str]:
    """What is wrong with the tests."""
    which = ["-m", "gpu", *TESTS] if on_gpu else ["-m", "not gpu", *CPU_TESTS]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which], cwd=ROOT)
    return [] if done.returncode == 0 else [f"tests end with code {done.returncode}"]


def _table(device: str, quick: bool, file: Path) -> list[str]:
    """What is wrong with the table, which is printed."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--device", device, "--json", str(file)]
    done = subprocess.run([*command, *(["--quick"] if quick else [])], cwd=ROOT)
    if done.returncode not in (0, 1):
        return [f"benchmarks/gpu.py ends with code {done.returncode}"]
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    differing = [f"{row['case']} by {row['engine']}" for row in found["rows"] if not row["agrees"]]
    missing = found["left_out"] if device != "cpu" else []
    return [*(f"states differ in {name}" for name in differing), *missing]


if __name__ == "__main__":
    sys.exit(main())
