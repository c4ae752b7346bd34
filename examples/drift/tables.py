"""Make the table of the README from the rows of finished runs.

    python -m examples.drift.tables
    python -m examples.drift.tables ridge=RUN experiment=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the table needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, table

HERE = Path(__file__).resolve().parent
RATE, DRIFT, KEEP = "symbol_error_rate", "reservoir.nonidealities.loop.drift", "readout.keep_learning"
SYMBOLS = 100_000


def errors(rows: KeptRows) -> str:
    """Wrong symbols, and the 95 % interval."""
    rate, low, high = (rows.values(RATE + end)[0] * SYMBOLS for end in ("", "/low", "/high"))
    return f"{rate:,.0f} ({low:,.0f} to {high:,.0f})"


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], [RATE, f"{RATE}/low", f"{RATE}/high"])
    ridge, rls = (KeptRows.read(HERE / "rows" / f"{name}.json") for name in ("ridge", "experiment"))
    readouts = {
        "ridge, trained once": ridge,
        "RLS, trained once": rls.at(**{KEEP: False}),
        "RLS that keeps learning": rls.at(**{KEEP: True}),
    }
    drifts = dict.fromkeys(row.point[DRIFT] for row in ridge.only(baselines=False).rows)
    body = [
        [f"loop, drift {drift:g}", *(errors(of.only(baselines=False).at(**{DRIFT: drift})) for of in readouts.values())]
        for drift in drifts
    ]
    body += [
        [name, *(errors(of.only(baselines=True).by()[name]) for of in readouts.values())]
        for name in ridge.only(baselines=True).by()
    ]
    replace_tables(HERE / "README.md", {"drift": table(["", *readouts], body)})


if __name__ == "__main__":
    main()
