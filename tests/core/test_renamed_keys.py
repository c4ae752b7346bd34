"""Old names of keys and kinds: they still work, and one sentence says what they are called now."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw import Experiment
from reservoir_hw.core.configuration import Document
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
    assert len(warnings(caplog)) == 4
    assert renamed(record) == []
