"""Tables at random: a run, or one sentence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ReservoirError

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(repr)
CELLS = st.one_of(
    NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", "nan", "inf", "1,5", "x", "01", "1e400", "-0", "9.91e37"])
)
NAMES = st.one_of(
    st.sampled_from(["u", "y", "t", "Température (°C)", "力", "u", "1", " y ", '"a, b"']),
    st.text(st.characters(categories=("Lu", "Ll", "Lo")), min_size=1, max_size=6),
)


@st.composite
def tables(draw: Any) -> tuple[list[str], str]:
    names = draw(st.lists(NAMES, min_size=draw(st.integers(1, 2)), max_size=4, unique=draw(st.booleans())))
    rows = draw(st.sampled_from([0, 1, 2, 3, 40, 40, 40]))
    damaged = draw(st.booleans())
    cells = CELLS if damaged else NUMBERS
    body = [draw(st.lists(cells, min_size=len(names), max_size=len(names))) for _ in range(rows)]
    if damaged and body and draw(st.booleans()):
        body[draw(st.integers(0, rows - 1))] = draw(st.sampled_from([[], ["1"], ["1"] * 6]))
    separator = draw(st.sampled_from([",", ";"]))
    lines = [separator.join(row) for row in (names, *body)]
    return names, "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))


RUNS: list[bool] = []


@pytest.mark.slow
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(tables(), st.sampled_from(["refuse", "skip"]), st.sampled_from(["range", "standard", "none"]))
def test_a_run_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[list[str], str], missing: str, scale: str
) -> None:
    names, text = table
    folder: Path = tmp_path_factory.mktemp("table")
    (folder / "a.csv").write_text(text, encoding="utf-8")
    targets = {"columns": [names[-1].strip().strip('"')], "missing": missing}
    task = {"kind": "data", "files": str(folder / "a.csv"), "targets": targets, "scale": {"inputs": scale}}
    run = {"folder": str(folder), "states": None}
    try:
        result = Experiment(
            {"task": task, "reservoir": {"kind": "esn", "nodes": 4}, "readout": {"kind": "ridge"}, "run": run}
        ).run(report=False)
    except ReservoirError:
        RUNS.append(False)
        return
    RUNS.append(True)
    assert not math.isnan(result.rows[0].evaluation.metrics["nrmse"])


@pytest.mark.slow
def test_some_of_them_run() -> None:
    assert 10 < sum(RUNS) < len(RUNS)
