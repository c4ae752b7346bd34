"""Make the table of the README from the rows of finished runs.

    python -m examples.virtual_bench.tables
    python -m examples.virtual_bench.tables bench=RUN red_pitaya=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `narma.yaml` says, as far as the table needs it: on the
simulation, on `bench.yaml`, and on the emulated Red Pitaya.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, scores

HERE = Path(__file__).resolve().parent
TITLES = {
    "simulation": "loop, simulated",
    "bench": "loop on the bench",
    "red_pitaya": "loop on the Red Pitaya",
}


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["nrmse"])
    runs = {name: KeptRows.read(HERE / "rows" / f"{name}.json") for name in TITLES}
    models = runs["simulation"].only(baselines=True).by()
    models |= {TITLES[name]: rows.only(baselines=False) for name, rows in runs.items()}
    replace_tables(HERE / "README.md", {"models": scores(models, {"nrmse": "NRMSE"})})


if __name__ == "__main__":
    main()
