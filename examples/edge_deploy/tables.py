"""Make the tables of the README from the rows of finished runs.

    python -m examples.edge_deploy.tables
    python -m examples.edge_deploy.tables text=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the tables need it. `text_encoder`
and `text_register` are runs of `text.yaml` with the reservoirs that the README names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, spread, table

HERE = Path(__file__).resolve().parent


def rows_of(name: str) -> KeptRows:
    """Those of a run."""
    return KeptRows.read(HERE / "rows" / f"{name}.json")


def text() -> list[str]:
    """Bits per letter and trained weights of each model."""
    rows = [row for name in ("text", "text_encoder", "text_register") for row in rows_of(name).rows]
    body = []
    for label, of in KeptRows(rows).by("label").items():
        weights = of.rows[0].metrics.get("parameters")
        counted = "–" if weights is None else f"{weights:,.0f}"
        body.append([label, counted, *(spread(of.values(name)) for name in ("bits_per_character", "accuracy"))])
    return table(["", "trained weights", "bits per letter", "accuracy"], body)


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["parameters", "bits_per_character", "accuracy"])
    replace_tables(HERE / "README.md", {"text": text()})


if __name__ == "__main__":
    main()
