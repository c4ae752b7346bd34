"""Make the table of the README from the rows of finished runs.

    python -m examples.lab_function.tables
    python -m examples.lab_function.tables bench=RUN    # keeps the rows of this run first

`rows/bench.json` holds what `metrics.json` of a run of `../elman_grammar/experiment.yaml` with `bench.yaml` says, as
far as the table needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, scores

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Write README.md."""
    metrics = {"cosine": "cosine", "agreement": "verb agreement"}
    keep(HERE, sys.argv[1:], list(metrics))
    rows = KeptRows.read(HERE / "rows" / "bench.json")
    replace_tables(HERE / "README.md", {"models": scores(rows.by(), metrics)})


if __name__ == "__main__":
    main()
