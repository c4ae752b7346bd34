"""Make the tables of the README from the rows of finished runs.

    python -m examples.delay_loop.tables
    python -m examples.delay_loop.tables narma=RUN adc=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the tables need it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from examples.kept_rows import KeptRows, found, keep, replace_tables, spread, table

HERE = Path(__file__).resolve().parent
RATE = "symbol_error_rate"
METRICS = ["nmse", "nrmse", RATE, f"{RATE}/low", f"{RATE}/high"]
BITS = "reservoir.nonidealities.readout.bits"
SYMBOLS = 1_000_000


def rows_of(name: str) -> KeptRows:
    """Those of a run."""
    return KeptRows.read(HERE / "rows" / f"{name}.json")


def errors(rows: KeptRows) -> str:
    """Wrong symbols of a million, and the 95 % interval."""
    rate, low, high = (rows.values(RATE + end)[0] * SYMBOLS for end in ("", "/low", "/high"))
    return f"{rate:,.0f} ({low:,.0f} to {high:,.0f})"


def narma() -> list[str]:
    """Errors, mean ± standard deviation over data sets and masks."""
    models = rows_of("narma").by().items()
    body = [[name, str(len(of.rows)), spread(of.values("nrmse")), spread(of.values("nmse"))] for name, of in models]
    return table(["", "runs", "NRMSE", "NMSE"], body)


def equalisation() -> list[str]:
    """Wrong symbols by SNR."""
    models = {name: of for name, of in rows_of("equalisation").by().items() if not name.startswith("encoder")}
    levels = dict.fromkeys(row.point["task.snr_db"] for of in models.values() for row in of.rows)
    body = [[f"{snr} dB", *(errors(of.at(**{"task.snr_db": snr})) for of in models.values())] for snr in levels]
    return table(["SNR", *models], body)


def converter() -> list[str]:
    """Wrong symbols, and NMSE of NARMA10, by the bits of the converter; registers have none."""
    symbols, narma10 = rows_of("adc"), rows_of("adc_narma")
    body = [
        [shown(bits), *cells(symbols.only(baselines=False), {BITS: bits}), nmse(narma10.only(baselines=False), bits)]
        for bits in (None, 12, 10, 8)
    ]
    body += [[name, *cells(of, {}), ""] for name, of in symbols.only(baselines=True).by().items()]
    body += [[name, "", "", spread(of.values("nmse"))] for name, of in narma10.only(baselines=True).by().items()]
    return table(["", "equalisation, 24 dB", "equalisation, 32 dB", "NARMA10, 300 nodes"], body)


def shown(bits: int | None) -> str:
    """The row's name."""
    return "loop, ideal" if bits is None else f"loop, {bits} bits"


def cells(rows: KeptRows, point: dict[str, Any]) -> list[str]:
    """Wrong symbols at both levels of noise."""
    return [errors(rows.at(**point, **{"task.snr_db": snr})) for snr in (24, 32)]


def nmse(rows: KeptRows, bits: int | None) -> str:
    """Over the data sets."""
    return spread(rows.at(**{BITS: bits}).values("nmse"))


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], METRICS)
    searches = {
        "NARMA10, 50 nodes": (rows_of("search_narma"), "nmse", False),
        "equalisation, 24 dB": (rows_of("search_equalisation"), "nmse", False),
    }
    tables = {
        "searches": found(searches, "loop"),
        "narma": narma(),
        "equalisation": equalisation(),
        "converter": converter(),
    }
    replace_tables(HERE / "README.md", tables)


if __name__ == "__main__":
    main()
