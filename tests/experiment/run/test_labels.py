"""Names of models in tables: rows that share one are averaged."""

from __future__ import annotations

from typing import Any

import pytest

from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Document
from reservoir_hw.experiment.configuration.document import baseline_labels, called, key_names
from reservoir_hw.experiment.configuration.experiment import grid
from reservoir_hw.experiment.configuration.sweep import choice_names
from reservoir_hw.experiment.run.result import _plain_table
from reservoir_hw.tasks.task import Evaluation, Row

ESN = {"kind": "esn", "nodes": 60}
NOISE = "reservoir.nonidealities.{}.noise"


def labels(vary: Any, reservoir: Any) -> list[str]:
    document = Document({"task": {"kind": "narma"}, "reservoir": ESN | reservoir, "readout": {"kind": "ridge"}})
    document.data["vary"] = vary
    return [point.label for point in grid(document)]


@pytest.mark.parametrize(
    ("vary", "reservoir", "found"),
    [
        ({}, {"vary": {"nodes": [10, 20], "seed": [0]}}, ["ESN(10)", "ESN(20)"]),
        ({}, {"label": "bench", "vary": {"nodes": [10, 20]}}, ["bench nodes=10", "bench nodes=20"]),
        ({"readout.kind": ["ridge", "lms"]}, {}, ["ESN(60) ridge", "ESN(60) lms"]),
        (
            [{NOISE.format("loop"): 0.1}, {NOISE.format("readout"): 0.1}],
            {},
            ["ESN(60) loop.noise=0.1", "ESN(60) readout.noise=0.1"],
        ),
        ({"task.seed": [0, 1]}, {"vary": {"nonidealities.loop.noise": [0.1]}}, ["ESN(60) noise=0.1"] * 2),
        ({"readout": [{"kind": "ridge", "alpha": 0.1}]}, {}, ["ESN(60) ridge"]),
        (
            {"readout": [{"kind": "ridge"}, {"kind": "ridge", "alpha": 0.1, "washout": 3}, {"kind": "lms", "rate": 1}]},
            {},
            ["ESN(60) ridge", "ESN(60) ridge alpha=0.1 washout=3", "ESN(60) lms"],
        ),
        (
            {"readout": [{"kind": "ridge", "label": "mine", "alpha": 1.0}, {"kind": "ridge"}]},
            {},
            ["ESN(60) mine", "ESN(60) ridge"],
        ),
        ({"reservoir": [ESN | {"seed": seed} for seed in (0, 1)]}, {}, ["ESN(60)"] * 2),
        (
            {"reservoir": [ESN, ESN | {"nonidealities": {"loop": {"noise": 0.1}}}, ESN | {"label": "film", "seed": 1}]},
            {},
            ["ESN(60)", "ESN(60) noise=0.1", "film"],
        ),
    ],
    ids=[
        "size",
        "named",
        "readouts",
        "two noises",
        "repetitions",
        "section",
        "sections",
        "label",
        "seeds in a section",
        "reservoirs",
    ],
)
def test_rows_of_one_name_differ_in_data_and_seeds_alone(vary: Any, reservoir: Any, found: list[str]) -> None:
    assert labels(vary, reservoir) == found


def test_names_of_keys_are_as_short_as_they_may_be() -> None:
    assert key_names(["a.b.c", "a.d.c", "a.e", "c"]) == {"a.b.c": "b.c", "a.d.c": "d.c", "a.e": "e", "c": "c"}


def test_baselines_of_one_name_say_what_differs() -> None:
    baselines: list[dict[str, Any]] = [
        {"kind": "lstm", "hidden": 16},
        {"kind": "lstm", "hidden": 16, "layers": 2, "seed": 3},
        {"kind": "lstm", "hidden": 32},
        {"kind": "gru", "hidden": 8, "seed": 1},
        {"kind": "gru", "hidden": 8, "seed": 2},
        {"kind": "bigram"},
    ]
    text = {"kind": "text", "corpus": "x.txt"}
    sections = {"task": text, "reservoir": ESN, "readout": {"kind": "linear"}, "training": {"gradient": {"epochs": 1}}}
    (point,) = grid(Document({**sections, "baselines": baselines}))
    found = ["lstm(16) layers=1", "lstm(16) layers=2", "lstm(32)", "gru(8)", "gru(8)", "bigram"]
    assert baseline_labels(point.config.baselines) == found


def test_what_varies_is_called_alike_everywhere() -> None:
    """In the progress, in lists of rows, in tables and in the report."""
    sections = [{"kind": "ridge", "alpha": 0.1}, {"kind": "ridge", "alpha": 0.2}, {"kind": "lms", "label": "online"}]
    reservoir = {**ESN, "vary": {"seed": [0]}}
    document = Document({"task": {"kind": "narma"}, "reservoir": reservoir, "readout": {"kind": "ridge"}})
    document.data["vary"] = {"readout": sections}
    points = grid(document)
    wanted = ["ridge alpha=0.1", "ridge alpha=0.2", "online"]
    assert [point.place for point in points] == [f"seed 0, readout {name}" for name in wanted]
    assert called([point.values for point in points]) == [{"readout": name, "reservoir.seed": "0"} for name in wanted]
    assert choice_names(Dimension(choices=[*sections, None, 0.5])) == [*wanted, "none", "0.5"]
    table = _plain_table([Row(point.label, point.values, Evaluation({"nrmse": 0.1})) for point in points])
    assert [row[table.header.index("readout")] for row in table.rows] == wanted
