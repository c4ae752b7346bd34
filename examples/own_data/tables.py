"""Make the tables of the README from the rows of finished runs.

    python -m examples.own_data.tables
    python -m examples.own_data.tables laser=RUN vowels=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the tables need it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, spread, table

HERE = Path(__file__).resolve().parent
COLUMNS = {
    "laser": {"nrmse": "NRMSE", "mae": "mean absolute error", "r2": "r²"},
    "nanowires": {"nrmse/10_V[V]": "electrode 10", "nrmse/19_V[V]": "electrode 19", "nrmse/21_V[V]": "electrode 21"},
    "vowels": {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "f1": "F1"},
}


def scores(name: str) -> list[str]:
    """Mean and standard deviation of each metric by model."""
    columns, models = COLUMNS[name], KeptRows.read(HERE / "rows" / f"{name}.json").by()
    body = [[model, str(len(of.rows)), *(spread(of.values(m), ".3f") for m in columns)] for model, of in models.items()]
    return table(["", "runs", *columns.values()], body)


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], [metric for columns in COLUMNS.values() for metric in columns])
    replace_tables(HERE / "README.md", {name: scores(name) for name in COLUMNS})


if __name__ == "__main__":
    main()
