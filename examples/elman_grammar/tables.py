"""Make the tables of the README and the figure from the rows of finished runs.

    python -m examples.elman_grammar.tables

`rows/srn.json` is the `metrics.json` of a run of `srn.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.kept_rows import replace_tables, spread, table
from reservoir_hw.core.figure_style import colours, panels
from reservoir_hw.tasks.elman_grammar.grammar import DISTANCES
from reservoir_hw.tasks.elman_grammar.report import AGREEMENT_ERROR

HERE = Path(__file__).resolve().parent
OVERALL = {"cosine": "cosine", "max_prediction": "max prediction", "auc": "AUC", "agreement": "verb agreement"}
Rows = dict[str, list[dict[str, Any]]]


def rows_of(name: str) -> Rows:
    """The rows of a run by model, in the order of the paper's tables."""
    found: Rows = {}
    for row in json.loads((HERE / "rows" / f"{name}.json").read_text())["rows"]:
        found.setdefault(row["label"], []).append(row)
    return found


def values(rows: Sequence[dict[str, Any]], metric: str) -> np.ndarray:
    """Of the rows that have it."""
    return np.array([row["metrics"][metric] for row in rows if metric in row["metrics"]])


def beside(ours: float, printed: float | None) -> str:
    """Ours, and the printed value in brackets."""
    return f"{ours:.2f}" if printed is None else f"{ours:.2f} ({printed:.2f})"


def agreement(found: Rows) -> list[str]:
    """Verb agreement error by distance; Table 4 in brackets."""
    body = []
    for place, distance in enumerate(DISTANCES):
        cells = []
        for label, rows in found.items():
            printed = AGREEMENT_ERROR[label][place] if label in AGREEMENT_ERROR else None
            cells.append(beside(float(values(rows, f"agreement_error/{distance}").mean()), printed))
        body.append([str(distance), *cells])
    return table(["distance", *found], body)


def overall(found: Rows) -> list[str]:
    """Mean ± standard deviation over the runs, and processor time."""
    body = []
    for label, rows in found.items():
        cells = [spread(values(rows, name)) for name in OVERALL]
        took = [row["processor_seconds"] for row in rows if "processor_seconds" in row]
        body.append([label, str(len(rows)), *cells, f"{np.mean(took):.1f} s" if took else "–"])
    return table(["model", "runs", *OVERALL.values(), "processor time"], body)


def draw(found: Rows) -> Any:
    """Figure 3 of the paper with our runs: a point for each, and their mean."""
    figure, axes = panels(10.5, 3.8, 1, len(OVERALL), sharex=True)
    for panel, (name, title) in zip(np.ravel(axes), OVERALL.items(), strict=True):
        for at, ((_, rows), colour) in enumerate(zip(found.items(), colours(len(found)), strict=True)):
            ours = values(rows, name)
            panel.plot(at + np.linspace(-0.25, 0.25, len(ours)), ours, ".", color=colour, markersize=4, alpha=0.6)
            panel.plot([at - 0.35, at + 0.35], [ours.mean()] * 2, color=colour, linewidth=2)
        panel.set_title(title)
        panel.set_xticks(range(len(found)), list(found), rotation=90)
    figure.suptitle("Each point: one network on one data set. Lines: their means")
    return figure


def main() -> None:
    """Write README.md and the figure."""
    found = rows_of("srn")
    tables = {"agreement": agreement(found), "overall": overall(found)}
    replace_tables(HERE / "README.md", tables)
    draw(found).savefig(HERE / "overall.png", dpi=110)


if __name__ == "__main__":
    main()
