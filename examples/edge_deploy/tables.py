"""Make the tables of the README from the rows of finished runs.

    python examples/edge_deploy/tables.py
    python examples/edge_deploy/tables.py text=RUN narma=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the tables need it. `text_encoder`
and `text_register` are runs of `text.yaml` with the reservoirs that the README names. `rows/int8.json` holds the
metrics that `reservoir-hw export RUN -o FILE --precision int8 --accept-loss --json` prints, by the name of the run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from reservoir_hw.core.kept_rows import KeptRows, keep, scores
from reservoir_hw.core.markdown import replace_tables, spread, table

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


def int8() -> list[str]:
    """What eight bits cost."""
    found = json.loads((HERE / "rows" / "int8.json").read_text())
    titles = {"text": ("bits_per_character", "bits per letter"), "narma": ("nrmse", "NRMSE of NARMA10")}
    body = []
    for name, (metric, title) in titles.items():
        cost = found[name][metric]
        body.append([title, f"{cost['before']:.3f}", f"{cost['after']:.3f}"])
    return table(["", "fp32", "int8"], body)


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["parameters", "bits_per_character", "accuracy", "nrmse"])
    tables = {"text": text(), "narma": scores(rows_of("narma").by(), {"nrmse": "NRMSE"}), "int8": int8()}
    replace_tables(HERE / "README.md", tables)


if __name__ == "__main__":
    main()
