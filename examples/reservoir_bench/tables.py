"""Make the tables of the README from the rows of finished benches.

python examples/reservoir_bench/tables.py                                 # from rows/
python examples/reservoir_bench/tables.py runs/bench-esn runs/bench-...   # from these folders, which rows/ then has
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.markdown import replace_tables, table

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


def lines_of(tasks: dict[str, Any]) -> list[str]:
    """The table of a device."""
    models = list(dict.fromkeys(model for task in tasks.values() for model in task["models"]))
    body = [
        [f"`{name}`, {task['score']}", *(cell_of(task, model) for model in models), task["who wins"]]
        for name, task in tasks.items()
    ]
    return table(["task, score", *models, "who wins"], body)


for given in sys.argv[1:]:
    keep(Path(given))
kept = {path.stem: json.loads(path.read_text()) for path in sorted(ROWS.glob("*.json"))}
replace_tables(HERE / "README.md", {name: lines_of(tasks) for name, tasks in kept.items()})
