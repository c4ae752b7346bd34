"""Classifiers of sequences from an experiment file: trained, judged, kept, resumed, swept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import ipc_address, served

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.experiment.sweeps.sweep import sweep
from reservoir_hw.tasks import datasets

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not os.environ.get(datasets.FOLDER_VARIABLE), reason="the questions are in no folder at hand"),
]


def settings(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "task": {"kind": "trec", "width": 6, "limit": 150},
        "reservoir": {"kind": "esn", "nodes": 5, "input_scaling": 0.3, "gradients": True},
        "readout": {"kind": "gates", "candidate": "settable", "reservoir_gradient": "through"},
        "training": {"gradient": {"epochs": 2, "batch": 32, "learning_rate": 0.02, "accelerator": "cpu"}},
        "run": {"folder": str(tmp_path)},
        **changes,
    }


@pytest.mark.slow
def test_the_models_of_the_paper_have_its_counts(tmp_path: Path) -> None:
    wide = settings(tmp_path, task={"kind": "trec", "limit": 64})
    wide["training"]["gradient"]["epochs"] = 1
    wide["vary"] = [
        {"reservoir.nodes": 29},
        {"readout": {"kind": "gru", "nodes": 20}},
        {"readout": {"kind": "ridge"}, "training.gradient": None},
    ]
    rows = Experiment(wide).run(report=False).rows
    assert [row.evaluation.metrics.get("parameters") for row in rows] == [19320, 19386, None]


@pytest.mark.slow
def test_learns(tmp_path: Path) -> None:
    some = settings(tmp_path, task={"kind": "trec", "width": 50, "limit": 2000})
    some["readout"] = {"kind": "gru", "nodes": 8}
    some["training"]["gradient"] |= {"epochs": 6, "learning_rate": 0.03}
    result = Experiment(some).run(report=False)
    (row,) = result.rows
    # Always the same answer is right in 28 % at most.
    assert row.evaluation.metrics["accuracy"] > 0.4
    assert row.evaluation.metrics["validation_cross_entropy"] < 1.6
    outputs = np.load(result.folder / "outputs/000.npy")
    task = Experiment(some).config.task.build()
    assert task.evaluate(outputs).metrics["accuracy"] == row.evaluation.metrics["accuracy"]
    with pytest.raises(ConfigurationError, match="readout gru is exported from Python alone"):
        export_run(result.folder, tmp_path / "model.rhw")


class Death(BaseException):
    """Stands for the end of the process."""


@pytest.mark.slow
def test_goes_on_after_an_interruption(tmp_path: Path) -> None:
    rows = [{"readout.seed": 0}, {"readout.seed": 1}]
    whole = Experiment(settings(tmp_path / "whole", vary=rows)).run(report=False)

    def stop(row: Any) -> None:
        raise Death

    with pytest.raises(Death):
        Experiment(settings(tmp_path, vary=rows)).run(report=False, on_row=stop)
    (folder,) = tmp_path.glob("experiment-*")
    again = settings(tmp_path, vary=rows)
    again["run"]["resume"] = str(folder)
    resumed = Experiment(again).run(report=False)
    assert [row.evaluation.metrics for row in resumed.rows] == [row.evaluation.metrics for row in whole.rows]


@pytest.mark.slow
def test_around_a_served_device(tmp_path: Path) -> None:
    """Driven with [u; r ⊙ x], as hardware is; with the twin for the gradient."""
    device = {"kind": "esn", "nodes": 4, "inputs": 10, "input_scaling": 0.3}
    with ipc_address() as address, served(open_reservoir(device), address):
        driven = settings(
            tmp_path,
            reservoir={"kind": "zmq", "address": address},
            readout={
                "kind": "gates",
                "candidate": "driven",
                "reservoir_gradient": "twin",
                "twin": {**device, "gradients": True},
            },
        )
        driven["task"]["limit"] = 64
        (row,) = Experiment(driven).run(report=False).rows
        assert row.evaluation.metrics["accuracy"] > 0
        driven["task"]["width"] = 7
        driven["readout"] = {"kind": "gates"}
        result = Experiment(driven).run(report=False)
        (row,) = result.rows
        assert row.evaluation.metrics["accuracy"] > 0
        assert any("11 channels are spread over 10 inputs" in said for said in [*result.warnings, *result.notes])
        driven["reservoir"]["input_mask"] = "none"
        with pytest.raises(ConfigurationError, match=r"11 channels for 10 inputs .* refuses to spread"):
            Experiment(driven).run(report=False)


@pytest.mark.slow
def test_is_swept(tmp_path: Path) -> None:
    searched = settings(tmp_path)
    searched["task"]["judge"] = "validation"
    searched["sweep"] = {
        "metric": "accuracy",
        "direction": "maximize",
        "sampler": "random",
        "trials": 2,
        "search": {
            "training.gradient.learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
            "training.gradient.epochs": {"low": 1, "high": 2},
        },
    }
    found = sweep(searched)
    assert [trial.problem for trial in found.trials] == ["", ""]
    assert found.best is not None
    assert found.best.objective is not None
    assert 0 < found.best.objective < 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task": {"kind": "narma"}}, "readout: readout gates learns one class for each sequence"),
        ({"training": {}}, "training: gradient is missing: readout gates"),
        ({"training": {"gradient": {"epochs": 1, "context": 8}}}, "gradient.context: for texts and their shards"),
        ({"training": {"gradient": {"epochs": 1}, "priming_passes": 1}}, "priming_passes: not for readout gates"),
        ({"reservoir": {"kind": "zmq", "address": "tcp://x:1"}}, "no gradient passes the reservoir of kind zmq"),
        ({"readout": {"kind": "gates", "reservoir_gradient": "twin"}}, "`twin:` and reservoir_gradient: twin belong"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Experiment(settings(tmp_path, **changes)).run(report=False)
