"""Rows that an example keeps of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from reservoir_hw.core.kept_rows import KeptRows, chosen, found, keep


def a_run(folder: Path, status: str = "complete") -> Path:
    """Two settings of a network with two seeds each, one of which diverges, and a filter with one."""
    folder.mkdir()
    network = [
        {
            "label": f"ESN(9) alpha={alpha:g}",
            "point": {"readout.alpha": alpha, "reservoir.seed": seed},
            "metrics": metrics,
        }
        for alpha, seed, metrics in (
            (0.1, 0, {"nmse": 0.5, "other": 1.0}),
            (0.1, 1, {"nmse": 0.25, "other": 1.0}),
            (1.0, 0, {"nmse": 0.123456789, "other": 1.0}),
            (1.0, 1, {"other": 1.0}),
        )
    ]
    register = {"label": "Volterra(75) taps=[20, 10] alpha=1", "point": {}, "metrics": {"nmse": 0.75}, "baseline": True}
    (folder / "metrics.json").write_text(json.dumps({"status": status, "rows": [*network, register]}))
    return folder


def test_what_is_kept_of_a_run_and_of_a_search(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    run = a_run(tmp_path / "run")
    keep(tmp_path, [f"narma={run}", f"search_narma={run}"], ["nmse"])
    rows = KeptRows.read(tmp_path / "rows/narma.json")
    assert list(rows.by()) == ["ESN(9)", "Volterra(75)"]
    np.testing.assert_array_equal(rows.values("nmse"), [0.5, 0.25, 0.123457, np.nan, 0.75])
    assert [row.label for row in rows.at(**{"readout.alpha": 1.0, "reservoir.seed": 1}).rows] == [
        "ESN(9) alpha=1",
        "Volterra(75) taps=[20, 10] alpha=1",  # a point without the key is at all values
    ]
    search = KeptRows.read(tmp_path / "rows/search_narma.json")
    assert [(row.point, row.metrics) for row in search.rows] == [
        ({"readout.alpha": 0.1}, {"nmse": 0.375}),
        ({"readout.alpha": 1.0}, {}),
        ({}, {"nmse": 0.75}),
    ]


def test_a_setting_that_diverged_once_is_not_chosen(tmp_path: Path) -> None:
    rows = KeptRows.read(a_run(tmp_path / "run") / "metrics.json")
    best = chosen(rows.only(baselines=False), "nmse")
    assert (best.label, best.score, best.settings) == ("ESN(9) alpha=0.1", 0.375, 2)
    assert chosen(rows, "nmse", larger_is_better=True).label.startswith("Volterra")
    assert found({"NARMA10": (rows, "nmse", False)}, "network")[2:] == [
        "| NARMA10 | nmse | network | 2 | ESN(9) alpha=0.1 | 0.38 |",
        "| NARMA10 | nmse | baseline | 1 | Volterra(75) taps=[20, 10] alpha=1 | 0.75 |",
    ]
