"""Make the table of the README from the rows of finished runs.

    python -m examples.sweep.tables
    python -m examples.sweep.tables narma10=RUN best=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run says, as far as the table needs it: of `narma10.yaml` as it stands,
and of the best setting, on data and networks that no trial has seen.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, scores

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["nrmse"])
    stands, best = (KeptRows.read(HERE / "rows" / f"{name}.json") for name in ("narma10", "best"))
    models = {
        **stands.only(baselines=True).by(),
        "the file as it stands": stands.only(baselines=False),
        "the best of the sweep": best.only(baselines=False),
    }
    replace_tables(HERE / "README.md", {"models": scores(models, {"nrmse": "NRMSE"})})


if __name__ == "__main__":
    main()
