"""The trained model of a run in a program."""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from shared import narma

from reservoir_hw import Experiment, load_model
from reservoir_hw.core.errors import ConfigurationError, NotSupported
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.experiment.deploy.evaluate import evaluate
from reservoir_hw.experiment.deploy.export import export_run

TEXT = "the cat sees the dog. the dog sees the cat that runs. " * 40


@pytest.mark.slow
def test_a_language_model_has_its_weights_and_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    settings = {
        "task": {"kind": "text", "corpus": "text.txt"},
        "reservoir": {"kind": "esn", "nodes": 12},
        "readout": {"kind": "linear", "embedding": {"kind": "random", "width": 4}},
        "training": {"gradient": {"epochs": 1, "context": 8, "batch": 16, "accelerator": "cpu"}},
        "vary": {"readout.seed": [0, 1]},
    }
    run = Experiment(settings).run(report=False).folder
    with pytest.raises(ConfigurationError, match="holds 2 trained models: say which"):
        load_model(run)
    for row in (0, 1):
        kept = load_file(run / f"readout/{row:03d}.safetensors")
        for offline in (True, False):
            model = load_model(run, row, offline=offline)
            for name, value in model.state_dict().items():
                np.testing.assert_array_equal(value.numpy(), kept[name])
            if offline:
                with pytest.raises(NotSupported, match="loaded without its device"):
                    list(model.generate(np.array([0, 1]), 2))
            else:
                assert len(list(model.generate(np.array([0, 1]), 5))) == 5
    (device,) = {layer.reservoir for layer in model.reservoir_layers}
    assert "open" in repr(device)
    del model
    gc.collect()
    assert "not open" in repr(device)


@pytest.mark.parametrize("kind", ["ridge", "rls", "lms"])
def test_a_readout_answers_as_in_the_run(kind: str, tmp_path: Path) -> None:
    esn = {"kind": "esn", "nodes": 20, "seed": 1}
    made = narma(tmp_path, reservoir=esn, readout={"kind": kind})
    result = made.run(report=False)
    task = made.task_of(made.points[0])
    with open_reservoir(esn, inputs=1) as device:
        states = device.run(np.concatenate([task.train.inputs[:, -200:], task.test.inputs], axis=1))[:, 200:]
    np.testing.assert_allclose(load_model(result.folder).predict(states), np.load(result.folder / "outputs/000.npy"))


NET = """
from torch import nn

class Base(nn.Module):
    def forward(self, states):
        return 2.0 * self.read(states)

class Net(Base):
    def __init__(self, nodes, outputs):
        super().__init__()
        self.read = nn.Linear(nodes, outputs)
"""


@pytest.mark.slow
@pytest.mark.parametrize("edit", [("2.0", "3.0"), ("(nodes, outputs)\n", "(nodes, outputs)\n        # another\n")])
def test_a_class_that_was_edited_since_the_run(
    edit: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights fit, and the answers would be others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "net_of_a_lab", raising=False)
    Path("net_of_a_lab.py").write_text(NET)
    readout = {"kind": "torch", "module": "net_of_a_lab:Net", "washout": None}
    gradient = {"epochs": 1, "context": 20, "batch": 4, "accelerator": "cpu"}
    run = narma(tmp_path, readout=readout, training={"gradient": gradient}).run(report=False).folder
    load_model(run)
    Path("net_of_a_lab.py").write_text(NET.replace(*edit))
    monkeypatch.delitem(sys.modules, "net_of_a_lab")
    importlib.invalidate_caches()
    for use in (load_model, evaluate, lambda run: export_run(run, "model.rhw")):
        with pytest.raises(
            ConfigurationError, match=r"^net_of_a_lab:Net has changed since the run .* experiment again$"
        ):
            use(run)
    assert not Path("model.rhw").exists()
