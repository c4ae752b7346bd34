"""Make the table of the README from the rows of finished runs.

    python -m examples.language.tables
    python -m examples.language.tables rc=RUN aerc=RUN laerc=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the table needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRow, KeptRows, keep, replace_tables, table

HERE = Path(__file__).resolve().parent


def line(row: KeptRow) -> list[str]:
    """Of the table."""
    of = row.metrics
    weights = f"{of['parameters']:,.0f}" if "parameters" in of else "–"
    return [row.label, weights, *(f"{of[name]:.3f}" for name in ("cross_entropy", "bits_per_character", "accuracy"))]


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["parameters", "cross_entropy", "bits_per_character", "accuracy"])
    rows = {
        row.label: row for name in ("rc", "aerc", "laerc") for row in KeptRows.read(HERE / f"rows/{name}.json").rows
    }
    header = ["", "trained weights", "nats per letter", "bits per letter", "accuracy"]
    replace_tables(HERE / "README.md", {"letters": table(header, [line(row) for row in rows.values()])})


if __name__ == "__main__":
    main()
