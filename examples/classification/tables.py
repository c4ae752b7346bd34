"""Make the tables of the README from the rows of finished runs.

    python -m examples.classification.tables
    python -m examples.classification.tables parity=RUN sine_square=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the tables need it.
"""

from __future__ import annotations

import sys
from math import comb
from pathlib import Path

import numpy as np

from examples.kept_rows import KeptRows, chosen, found, keep, replace_tables, table
from reservoir_hw.tasks.report import wilson_interval

HERE = Path(__file__).resolve().parent
UTTERANCES = 370
METRICS = ["error_rate", "error_rate/step", "error_rate/period", "nmse"]


def rows_of(name: str) -> KeptRows:
    """Those of a run."""
    return KeptRows.read(HERE / "rows" / f"{name}.json")


def percent(share: float) -> str:
    """Two digits; nothing at all is 0."""
    return "0" if share == 0 else f"{100 * share:.2g} %"


def vowels() -> list[str]:
    """Wrong utterances with the penalty that the search has found for networks, and for autoregressions."""
    search, rows, body = rows_of("search_japanese_vowels"), rows_of("japanese_vowels"), []
    for baselines in (True, False):
        alpha = chosen(search.only(baselines=baselines), "error_rate/step").point["readout.alpha"]
        for name, of in rows.only(baselines=baselines).at(**{"readout.alpha": alpha}).by().items():
            errors = UTTERANCES * float(np.mean(of.values("error_rate")))
            low, high = (percent(end) for end in wilson_interval(errors, UTTERANCES))
            body.append([name, f"{alpha:g}", str(len(of.rows)), f"{errors:.1f}", f"{low} to {high}"])
    header = ["", "`alpha`", "runs", f"wrong utterances of {UTTERANCES}, mean", "error rate, 95 % interval"]
    return table(header, body)


def waves() -> list[str]:
    """Wrong steps and periods, means over the masks."""
    body = []
    for name, of in rows_of("sine_square").by().items():
        rates = (percent(float(np.mean(of.values(metric)))) for metric in ("error_rate", "error_rate/period"))
        body.append([name, *rates, f"{np.mean(of.values('nmse')):.1g}"])
    return table(["", "wrong steps", "wrong periods", "NMSE"], body)


def parity() -> list[str]:
    """Wrong answers by the number of bits; of the products those of as many bits."""
    rows, products = rows_of("parity"), rows_of("parity_products")
    bits = list(dict.fromkeys(row.point["task.bits"] for row in rows.rows))
    body = [
        [name, *(percent(float(of.at(**{"task.bits": n}).values("error_rate")[0])) for n in bits)]
        for name, of in rows.by().items()
    ]
    right = [percent(float(products.at(**{"task.bits": n}).values("error_rate")[0])) for n in bits]
    body.append(["NVAR: n lags, order n", *right])
    body.append(["its number of products", *(str(comb(2 * n - 1, n)) for n in bits)])
    return table(["wrong answers", *(f"n = {n}" for n in bits)], body)


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], METRICS)
    searches = {
        "Japanese vowels": (rows_of("search_japanese_vowels"), "error_rate/step", False),
        "parity of 8 bits": (rows_of("search_parity"), "nmse", False),
    }
    tables = {"searches": found(searches, "network"), "vowels": vowels(), "waves": waves(), "parity": parity()}
    replace_tables(HERE / "README.md", tables)


if __name__ == "__main__":
    main()
