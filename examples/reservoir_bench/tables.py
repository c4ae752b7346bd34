"""Make the tables of the README from the rows of finished benches.

python -m examples.reservoir_bench.tables                                 # from rows/
python -m examples.reservoir_bench.tables runs/bench-esn runs/bench-...   # from these folders, which rows/ then has
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from examples.kept_rows import replace_tables, table
from reservoir_hw.core.errors import ConfigurationError

HERE = Path(__file__).resolve().parent
ROWS = HERE / "rows"


def keep(folder: Path) -> None:
    """Put what the tables need of a bench into `rows/`."""
    found = json.loads((folder / "metrics.json").read_text())
    if found["status"] != "complete":
        raise ConfigurationError(f"{folder}: the bench is {found['status']}; give its command again")
    tasks = found["tasks"]
    rows = {
        name: {
            "score": task["metric"],
            "who wins": task["verdict"],
            "models": {model: [found["mean"], found["interval"]] for model, found in task["models"].items()},
        }
        for name, task in tasks.items()
    }
    lines = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    (ROWS / f"{folder.name.removeprefix('bench-')}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def cell(mean: float | None, interval: list[float] | None) -> str:
    """A score with its interval."""
    if mean is None:
        return "diverged"
    return f"{mean:.3g}" + ("" if interval is None else " ({:.3g} to {:.3g})".format(*interval))


def cell_of(task: dict[str, Any], model: str) -> str:
    """Nothing where the model did not suit the task."""
    return cell(*task["models"][model]) if model in task["models"] else "–"


def verdict(task: dict[str, Any]) -> str:
    """+ where the device wins, − where it loses, = where nobody does."""
    if ", by " not in task["who wins"]:
        return "="
    return "+" if task["who wins"].startswith("device") else "−"


def lines_of(devices: dict[str, dict[str, Any]]) -> list[str]:
    """The table of devices whose baselines are the same."""
    first = next(iter(devices.values()))
    models = [
        model for model in dict.fromkeys(m for task in first.values() for m in task["models"]) if model != "device"
    ]
    body = []
    for name, task in first.items():
        own = (f"{cell_of(tasks[name], 'device')} {verdict(tasks[name])}" for tasks in devices.values())
        body.append([f"`{name}`, {task['score']}", *own, *(cell_of(task, model) for model in models)])
    return table(["task, score", *devices, *models], body)


for given in sys.argv[1:]:
    keep(Path(given))
kept = {path.stem: json.loads(path.read_text()) for path in ROWS.glob("*.json")}
groups = {"simulations": ("esn", "delay_loop", "photonic"), "nanowire": ("nanowire",), "skyrmion": ("skyrmion",)}
tables = {group: lines_of({name: kept[name] for name in names}) for group, names in groups.items()}
replace_tables(HERE / "README.md", tables)
