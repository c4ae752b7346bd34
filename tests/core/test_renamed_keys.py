"""Old names in configurations become the new ones, and each is said in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from reservoir_hw.core.renamed_keys import renamed


def test_sections_grids_and_searches_get_the_new_names_in_their_order() -> None:
    data: dict[str, Any] = {
        "reservoir": {"kind": "laerc", "nodes": 4},
        "readout": {"kind": "laerc"},
        "training": {"settle_passes": 1, "continuous": True},
        "vary": {"training.settle_passes": [0, 1], "reservoir": [{"kind": "laerc"}, {"kind": "esn"}], "task.seed": [0]},
        "sweep": {
            "search": {"training.settle_passes": {"low": 0, "high": 3}, "reservoir.kind": {"choices": ["laerc"]}}
        },
    }
    found = renamed(data)
    assert data == {
        "reservoir": {"kind": "laerc_layers", "nodes": 4},
        "readout": {"kind": "laerc"},
        "training": {"priming_passes": 1, "continuous": True},
        "vary": {
            "training.priming_passes": [0, 1],
            "reservoir": [{"kind": "laerc_layers"}, {"kind": "esn"}],
            "task.seed": [0],
        },
        "sweep": {
            "search": {
                "training.priming_passes": {"low": 0, "high": 3},
                "reservoir.kind": {"choices": ["laerc_layers"]},
            }
        },
    }
    assert list(data["vary"]) == ["training.priming_passes", "reservoir", "task.seed"]
    assert list(data["training"]) == ["priming_passes", "continuous"]
    assert [place for place, _ in found] == [
        ("training", "priming_passes"),
        ("reservoir", "kind"),
        ("vary", "training.priming_passes"),
        ("vary", "reservoir", 0, "kind"),
        ("sweep", "search", "training.priming_passes"),
        ("sweep", "search", "reservoir.kind", "choices", 0),
    ]
    assert found[0].sentence == "training.settle_passes is called training.priming_passes now"
    assert found[1].sentence == "reservoir kind laerc is called laerc_layers now"
    assert renamed(data) == []


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"training": None, "vary": None, "sweep": {"search": None}},
        {"reservoir": "laerc", "vary": {"readout.kind": ["laerc"], "reservoir.nodes": 3}},
        {"kind": "esn"},
    ],
)
def test_anything_else_stays(data: dict[str, Any]) -> None:
    before = repr(data)
    assert renamed(data) == []
    assert repr(data) == before


def test_a_reservoir_file_is_its_own_section() -> None:
    data = {"kind": "laerc", "nodes": 4}
    assert [place for place, _ in renamed(data)] == [("kind",)]
    assert data == {"kind": "laerc_layers", "nodes": 4}
