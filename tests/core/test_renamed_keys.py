"""Old names of keys and kinds: they still work, and one sentence says what they are called now."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw import Experiment
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.renamed_keys import renamed, translate_record
from reservoir_hw.core.reservoir_config import parse_reservoir

EXPERIMENT: dict[str, Any] = {
    "task": {"kind": "memory_recall", "delays": [1], "train_steps": 20, "test_steps": 10},
    "reservoir": {"kind": "esn", "nodes": 4},
    "readout": {"kind": "ridge"},
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_an_old_key_in_a_file_works_and_is_told_with_its_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(
        "task: {kind: memory_recall, delays: [1], train_steps: 20, test_steps: 10}\n"
        "reservoir: {kind: esn, nodes: 4}\n"
        "readout: {kind: ridge}\n"
        "training:\n"
        "  settle_passes: 2\n"
    )
    experiment = Experiment.from_file(file, environment={})
    assert experiment.config.training.priming_passes == 2
    (sentence,) = warnings(caplog)
    assert sentence == f"{file}:5: training.settle_passes is called training.priming_passes now"


def test_old_keys_that_vary_and_old_options_work_too(caplog: pytest.LogCaptureFixture) -> None:
    points = Experiment({**EXPERIMENT, "vary": {"training.settle_passes": [0, 1]}}).points
    assert [point.config.training.priming_passes for point in points] == [0, 1]
    assert len(warnings(caplog)) == 1


def test_of_an_old_and_a_new_name_the_later_one_counts_and_one_file_may_have_only_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new, old = tmp_path / "new.yaml", tmp_path / "old.yaml"
    new.write_text(json.dumps({**EXPERIMENT, "training": {"priming_passes": 3}}))
    old.write_text("extends: new.yaml\ntraining:\n  settle_passes: 2\n")

    def passes(file: Path, *options: str) -> int:
        return Experiment.from_file(file, set=options, environment={}).config.training.priming_passes

    assert passes(old) == 2
    assert passes(new, "training.settle_passes=5") == passes(old, "training.settle_passes=5") == 5
    # Of three places the second has the new name: the third counts, though the first has the same name as it.
    assert passes(old, "training.priming_passes=4", "training.settle_passes=5") == 5
    assert passes(old, "training.settle_passes=5", "training.priming_passes=4") == 4
    assert (
        caplog.messages[1]
        == "--set training.settle_passes: training.settle_passes is called training.priming_passes now"
    )

    old.write_text("extends: new.yaml\ntraining:\n  settle_passes: 2\n  priming_passes: 1\n")
    with pytest.raises(ConfigurationError) as caught:
        passes(old)
    assert str(caught.value) == (
        f"{old}:3 and {old}:4: training.settle_passes is called training.priming_passes now, and both names are given; "
        "remove one of them"
    )
    with pytest.raises(ConfigurationError, match=r"^the given mapping: training"):
        Experiment({**EXPERIMENT, "training": {"settle_passes": 2, "priming_passes": 1}})


def test_the_old_kind_of_the_layers_of_a_laerc(caplog: pytest.LogCaptureFixture) -> None:
    config = parse_reservoir(Document.from_mapping({"kind": "laerc", "nodes": 8}, "bench.yaml"))
    assert config.kind == "laerc_layers"
    assert warnings(caplog) == ["bench.yaml: reservoir kind laerc is called laerc_layers now"]


def test_what_was_recorded_is_translated_whole(caplog: pytest.LogCaptureFixture) -> None:
    record = {
        **copy.deepcopy(EXPERIMENT),
        "training": {"settle_passes": 3},
        "vary": {"reservoir.kind": ["esn", "laerc"], "reservoir": [{"kind": "laerc"}]},
        "sweep": {"search": {"training.settle_passes": {"choices": [0, 1]}}},
    }
    translate_record(record, "a study")
    assert record["training"] == {"priming_passes": 3}
    assert record["vary"] == {"reservoir.kind": ["esn", "laerc_layers"], "reservoir": [{"kind": "laerc_layers"}]}
    assert list(record["sweep"]["search"]) == ["training.priming_passes"]
    assert warnings(caplog) == [
        "a study: training.settle_passes is called training.priming_passes now",
        "a study: reservoir kind laerc is called laerc_layers now",
    ]
    assert renamed(record) == []
