"""Make the tables of the README from the rows of finished runs.

    python -m examples.measured_devices.tables
    python -m examples.measured_devices.tables nanowire_011=RUN skyrmion=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run says, as far as the tables need it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.kept_rows import KeptRows, keep, replace_tables, table

HERE = Path(__file__).resolve().parent
DELAYS = range(6)
RECALL = {
    "nanowire_011": "network 011",
    "nanowire_074": "network 074",
    "memristive15": "simulation, 15 nodes",
    "memristive300": "simulation, 300 nodes",
}
NAMES = {
    "REPLAY(skyrmion)": "skyrmion phase, 1601 frequencies",
    "REPLAY(conical)": "conical phase, 1601 frequencies",
    "fir(1)": "`fir(1)`: the field of step t",
    "fir(20)": "`fir(20)`: the fields of the last 20 steps",
    "NVAR(55)": "`NVAR(55)`: products of five of them, 5 steps apart, order 3",
}


def rows_of(name: str) -> KeptRows:
    """Those of a run."""
    return KeptRows.read(HERE / "rows" / f"{name}.json")


def recall() -> list[str]:
    """r² by delay."""
    register = {"`fir`, 6 taps": rows_of("nanowire_011").only(baselines=True)}
    models = register | {title: rows_of(name).only(baselines=False) for name, title in RECALL.items()}
    body = [[name, *(f"{of.values(f'r2/{k}')[0]:.3f}" for k in DELAYS)] for name, of in models.items()]
    return table(["k", *map(str, DELAYS)], body)


def prediction() -> list[str]:
    """Correlation and error, ten steps ahead."""
    models = rows_of("conical").only(baselines=False).by() | rows_of("skyrmion").by()
    body = [
        [title, f"{models[name].values('correlation/-10')[0]:.3f}", f"{models[name].values('nrmse/-10')[0]:.2f}"]
        for name, title in NAMES.items()
    ]
    return table(["", "R", "NRMSE"], body)


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], ["correlation/-10", "nrmse/-10", *(f"r2/{k}" for k in DELAYS)])
    replace_tables(HERE / "README.md", {"recall": recall(), "prediction": prediction()})


if __name__ == "__main__":
    main()
