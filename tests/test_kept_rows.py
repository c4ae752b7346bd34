"""Rows that an example keeps of its runs, the tables of its README, and the line of a scaling law."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.kept_rows import KeptRows, chosen, fit_log10, found, interval, keep, replace_tables, spread, table
from reservoir_hw.core.errors import ConfigurationError

EXAMPLES = Path(__file__).parents[1] / "examples"
LOSSES = {773_380: [5.31, 5.29, 5.33], 1_344_388: [5.12, 5.17], 2_038_276: [5.02, 4.99, 5.06]}


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


def test_what_is_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "interrupted")
    with pytest.raises(ConfigurationError, match="the run is interrupted"):
        keep(tmp_path, [f"narma={run}"], ["nmse"])
    with pytest.raises(ConfigurationError, match="two sizes or more, and there are 1"):
        fit_log10({100: [1.0, 2.0]})


def test_a_table_takes_its_place_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- mine -->\nold\n<!-- end of mine -->\nafter\n")
    lines = table(["model", "loss"], [["a", spread([1, 2, 3])], ["b", spread([1], ".1f")]])
    replace_tables(path, {"mine": lines})
    shown = "| model | loss |\n| --- | --- |\n| a | 2.000 ± 1.000 |\n| b | 1.0 |"
    assert path.read_text() == f"before\n<!-- mine -->\n{shown}\n<!-- end of mine -->\nafter\n"
    with pytest.raises(ConfigurationError, match="no place for other; add the lines <!-- other -->"):
        replace_tables(path, {"mine": ["x"], "other": []})
    assert shown in path.read_text()


def test_an_interval_is_that_of_student() -> None:
    assert interval([1.0, 2.0, 3.0]) == "+2.000 [-0.484, +4.484]"  # t = 4.3027 of two degrees


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*/tables.py")), ids=lambda path: path.parent.name)
def test_the_tables_of_an_example_are_those_of_its_rows(script: Path, tmp_path: Path) -> None:
    name = script.parent.name
    copy = shutil.copytree(script.parent, tmp_path / "examples" / name)
    shutil.copy(EXAMPLES / "kept_rows.py", copy.parent)
    subprocess.run([sys.executable, "-m", f"examples.{name}.tables"], cwd=tmp_path, check=True)
    assert (copy / "README.md").read_text() == (script.parent / "README.md").read_text()


def test_the_line_is_that_of_polyfit() -> None:
    fit = fit_log10(LOSSES)
    x = np.log10(np.repeat(list(LOSSES), [3, 2, 3]))
    np.testing.assert_allclose((fit.slope, fit.intercept), np.polyfit(x, np.concatenate(list(LOSSES.values())), 1))
    np.testing.assert_allclose(fit.at([1e6]), fit.slope * 6 + fit.intercept)


def test_the_intervals_are_those_of_all_draws() -> None:
    fit = fit_log10(LOSSES, resamples=100_000)
    draws = itertools.product(*(list(itertools.product(runs, repeat=len(runs))) for runs in LOSSES.values()))
    x = np.log10(np.repeat(list(LOSSES), [3, 2, 3]))
    lines = np.polyfit(x, np.array([np.concatenate(draw) for draw in draws]).T, 1)
    found = fit.slope_interval, fit.intercept_interval
    np.testing.assert_allclose(found, np.quantile(lines, [0.025, 0.975], axis=1).T, rtol=2e-3)
