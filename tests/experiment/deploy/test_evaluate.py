"""Readouts of a run folder on other devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here
from shared import narma

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.deploy.evaluate import HOME, REFITTED, THERE, evaluate, paired_difference
from reservoir_hw.tasks.narma import Narma

ESN: dict[str, Any] = {"kind": "esn", "nodes": 50, "spectral_radius": 0.9, "input_scaling": 0.3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = {"train_steps": 800, "test_steps": 400}
    return narma(tmp_path_factory.mktemp("runs"), task=task, reservoir=ESN, readout={"alpha": 1e-6}).run().folder


def reservoir_file(folder: Path, **over: Any) -> Path:
    path = folder / "board.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in {**ESN, **over}.items()))
    return path


@pytest.mark.slow
def test_a_readout_is_judged_and_refitted_on_another_device(pictures: None, run: Path, tmp_path: Path) -> None:
    own = evaluate(run)
    np.testing.assert_array_equal(own.outputs[THERE], own.outputs[HOME])
    assert own.scores[THERE] == own.scores[HOME]
    assert own.warnings == []
    wider = evaluate(run, reservoir=reservoir_file(tmp_path, dtype="float64"), refit=True)
    np.testing.assert_allclose(wider.outputs[THERE], own.outputs[HOME], atol=1e-3)
    assert wider.scores[REFITTED]["nrmse"] == pytest.approx(own.scores[HOME]["nrmse"], rel=1e-3)
    assert len(wider.warnings) == 1
    other = evaluate(run, reservoir=reservoir_file(tmp_path, seed=1), refit=True)
    gain = other.differences[f"{REFITTED} - {THERE}"]["nrmse"]
    assert gain.high < 0
    assert gain.value == pytest.approx(other.scores[REFITTED]["nrmse"] - other.scores[THERE]["nrmse"])
    assert {path.name for path in other.folder.rglob("*.png")} == {"outputs_over_targets.png"}
    smaller = reservoir_file(tmp_path, nodes=20)
    for refit in (False, True):
        with pytest.raises(ConfigurationError, match=r"on 50 nodes, and .* has 20: .* not with --refit") as caught:
            evaluate(run, reservoir=smaller, refit=refit)
    # What it says works.
    words = str(caught.value).partition("reservoir-hw ")[2].split()
    assert call_here(*words, "--set", f"run.folder={tmp_path / 'runs'}").returncode == 0


def test_intervals_of_differences_hold_the_truth() -> None:
    """Two models with noise of equal size do not differ: of 200 intervals about 95 % hold 0."""
    task = Narma(test_steps=2000)
    random = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        a, b = (task.test.targets + 0.02 * random.standard_normal(task.test.targets.shape) for _ in range(2))
        found = paired_difference(task, a, b)["nmse"]
        held += found.low <= 0 <= found.high
    assert 180 <= held <= 199
