"""Make the tables of the README from the rows of finished runs.

    python -m examples.forecasting.tables
    python -m examples.forecasting.tables santa_fe=RUN search_santa_fe=RUN    # keeps the rows of these runs first

`rows/NAME.json` holds what `metrics.json` of a run of `NAME.yaml` says, as far as the tables need it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from examples.kept_rows import KeptRows, chosen, found, keep, replace_tables, spread, table

HERE = Path(__file__).resolve().parent
LYAPUNOV, STEPS = "valid_lyapunov_times", "valid_steps"
METRICS = ["nmse", "nrmse/84", *(name + end for name in (LYAPUNOV, STEPS) for end in ("", "/q1", "/q3")), "diverged"]


def rows_of(name: str) -> KeptRows:
    """Those of a run."""
    return KeptRows.read(HERE / "rows" / f"{name}.json")


def quartiles(rows: KeptRows, metric: str, form: str) -> str:
    """Median over the starts and its quartiles, each the mean over the networks; and how many starts diverged."""
    middle, low, high = (float(np.mean(rows.values(metric + end))) for end in ("", "/q1", "/q3"))
    lost = int(rows.values("diverged").sum())
    return f"{middle:{form}} ({low:{form}} to {high:{form}})" + (f", {lost} diverge" if lost else "")


def lorenz() -> list[str]:
    """Valid Lyapunov times by training and penalty."""
    body, header = [], []
    for name, training in (("lorenz", "5000 steps"), ("lorenz_short", "400 steps")):
        rows = rows_of(name)
        for alpha in dict.fromkeys(row.point["readout.alpha"] for row in rows.rows):
            models = rows.at(**{"readout.alpha": alpha}).by()
            header = ["training", "`alpha`", *models]
            body.append([training, f"{alpha:.0e}", *(quartiles(of, LYAPUNOV, ".1f") for of in models.values())])
    return table(header, body)


def mackey_glass() -> list[str]:
    """Error after 84 steps, and valid steps, over series and networks."""
    models = rows_of("mackey_glass").by() | {"ESN(1000), float32": rows_of("mackey_glass_float32")}
    return table(
        ["", "runs", "NRMSE after 84 steps", "valid steps: median (quartiles)"],
        [
            [name, str(len(of.rows)), spread(of.values("nrmse/84"), ".1e"), quartiles(of, STEPS, ".0f")]
            for name, of in models.items()
        ],
    )


def santa_fe() -> list[str]:
    """NMSE with the penalty that the search has found for networks, and for autoregressions."""
    search, rows, body = rows_of("search_santa_fe"), rows_of("santa_fe"), []
    for baselines in (True, False):
        alpha = chosen(search.only(baselines=baselines), "nmse").point["readout.alpha"]
        for name, of in rows.only(baselines=baselines).at(**{"readout.alpha": alpha}).by().items():
            shown = "–" if name.startswith("fir") else f"{alpha:g}"
            body.append([name, shown, spread(of.values("nmse"), ".4f"), *(f"{part:.4f}" for part in parts(of))])
    return table(["", "`alpha`", "NMSE", *(f"steps {first} to {first + 4000}" for first in (0, 3000, 6000))], body)


def parts(rows: KeptRows) -> list[float]:
    """The mean NMSE of each part of the series."""
    return [float(np.mean(rows.at(**{"task.first_step": first}).values("nmse"))) for first in (0, 3000, 6000)]


def main() -> None:
    """Write README.md."""
    keep(HERE, sys.argv[1:], METRICS)
    tables = {
        "searches": found(
            {
                "Lorenz": (rows_of("search_lorenz"), LYAPUNOV, True),
                "Lorenz, 400 steps": (rows_of("search_lorenz_short"), LYAPUNOV, True),
                "Mackey–Glass": (rows_of("search_mackey_glass"), "nrmse/84", False),
                "Santa Fe": (rows_of("search_santa_fe"), "nmse", False),
            },
            "network",
        ),
        "lorenz": lorenz(),
        "mackey_glass": mackey_glass(),
        "santa_fe": santa_fe(),
    }
    replace_tables(HERE / "README.md", tables)


if __name__ == "__main__":
    main()
