"""The table of the README, from the folders of benches: python tables.py runs/bench-esn runs/bench-photonic"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def show(line: str) -> None:
    """A line on standard output."""
    sys.stdout.write(f"{line}\n")


for folder in map(Path, sys.argv[1:]):
    bench = json.loads((folder / "metrics.json").read_text())
    show(f"\n**{bench['device']}**\n")
    models = list(dict.fromkeys(name for task in bench["tasks"].values() for name in task["models"]))
    show("| task | " + " | ".join(models) + " | who wins |")
    show("|---" * (len(models) + 2) + "|")
    for name, task in bench["tasks"].items():
        means = [task["models"].get(model, {}).get("mean") for model in models]
        cells = ["diverged" if mean is None else f"{mean:.2g}" for mean in means]
        show(f"| {name}, {task['metric']} | " + " | ".join(cells) + f" | {task['verdict']} |")
