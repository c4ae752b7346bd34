"""Make the table of the README from the rows of finished runs.

    python -m examples.remote.tables
    python -m examples.remote.tables experiment=RUN    # keeps the rows of this run first

`rows/experiment.json` holds what `metrics.json` of a run of `experiment.yaml` says, as far as the table needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, scores

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["nrmse"])
    rows = KeptRows.read(HERE / "rows" / "experiment.json")
    replace_tables(HERE / "README.md", {"models": scores(rows.by(), {"nrmse": "NRMSE"})})


if __name__ == "__main__":
    main()
