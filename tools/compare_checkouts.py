"""Run a benchmark in two checkouts in turn, and say how the speed of this one relates to the other's.

    python tools/compare_checkouts.py OTHER benchmarks/esn.py --quick [--rounds 3]

OTHER is the root of another checkout. Each round runs the benchmark once there and once here, with the same Python,
each with its own package. For every row the ratio of the two figures of ours is printed: the median over the rounds,
the smallest and the largest. In training.py more is quicker; in the others less is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
FIGURES = ("ours", "ours_s", "int8", "overhead_per_segment")


def figures(found: Any) -> dict[str, float]:
    """Our figures in a report, by case and name."""
    rows = (
        [row for part in found.values() if isinstance(part, list) for row in part] if isinstance(found, dict) else found
    )
    return {f"{row['case']}: {name}": row[name] for row in rows for name in FIGURES if row.get(name) is not None}


def run(checkout: Path, script: str, options: list[str]) -> dict[str, float]:
    """One run of the benchmark with the package of that checkout."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, str(checkout / script), *options, "--json", str(report)]
        # A safe path keeps this checkout's package out; the benchmark's own folder is needed for its helpers.
        path = os.pathsep.join([str(checkout), str((checkout / script).parent)])
        done = subprocess.run(
            command, cwd=checkout, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )
        if not report.exists():
            raise SystemExit(f"{checkout}: {script} wrote no report\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return figures(json.loads(report.read_text()))


def main() -> int:
    """Alternate, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("script")
    parser.add_argument("--rounds", type=int, default=3)
    given, options = parser.parse_known_args()
    ratios: dict[str, list[float]] = {}
    for number in range(given.rounds):
        there = run(given.other.resolve(), given.script, options)
        here = run(HERE, given.script, options)
        for name in there.keys() & here.keys():
            ratios.setdefault(name, []).append(here[name] / there[name])
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    for name, found in sorted(ratios.items()):
        print(f"{name:60} here / there {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
