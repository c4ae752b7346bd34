"""Make the table of the README from the rows of finished runs.

    python examples/remote/tables.py
    python examples/remote/tables.py experiment=RUN    # keeps the rows of this run first

`rows/experiment.json` holds what `metrics.json` of a run of `experiment.yaml` says, as far as the table needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reservoir_hw.core.kept_rows import KeptRows, keep, scores
from reservoir_hw.core.markdown import replace_tables

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["nrmse"])
    rows = KeptRows.read(HERE / "rows" / "experiment.json")
    replace_tables(HERE / "README.md", {"models": scores(rows.by(), {"nrmse": "NRMSE"})})


if __name__ == "__main__":
    main()
