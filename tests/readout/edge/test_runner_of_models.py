"""Gated models at the edge, and bundles that hold their reservoirs: what is carried from step to step."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.networks.language_weights import reservoir_configurations
from reservoir_hw.readout import (
    LAERC,
    DrivenCandidate,
    GatedRecurrence,
    MatrixCandidate,
    ReservoirLayer,
    RidgeReadout,
    SequenceClassifier,
    SettableCandidate,
    dense_esn_lm,
)
from reservoir_hw.readout.edge.runner import EdgeRunner
from reservoir_hw.readout.edge.verification import verify
from reservoir_hw.readout.export.exporter import export_model
from reservoir_hw.readout.export.segments import whole_plan
from reservoir_hw.readout.models.gated import TrainedCandidate

INPUTS, NODES, CLASSES = 3, 12, 4

BOUND = 1e-5


def model(stack: ExitStack, kind: str) -> tuple[SequenceClassifier, list[Reservoir]]:
    torch.manual_seed(0)
    devices: list[Reservoir] = []
    candidate: Any
    if kind == "trained":
        candidate = TrainedCandidate(INPUTS, NODES)
    elif kind == "matrices":
        random = np.random.default_rng(0)
        candidate = MatrixCandidate(random.standard_normal((NODES, INPUTS)), random.standard_normal((NODES, NODES)) / 4)
    else:
        inputs = INPUTS + NODES if kind == "driven" else INPUTS
        devices = [stack.enter_context(open_reservoir({"kind": "esn", "inputs": inputs, "nodes": NODES}))]
        made = DrivenCandidate if kind == "driven" else SettableCandidate
        candidate = made(ReservoirLayer(devices[0], limit=0.6 if kind == "driven" else None))
    classifier = SequenceClassifier(GatedRecurrence(candidate), CLASSES).eval()
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter += 0.5 * torch.randn(parameter.shape)
    return classifier, devices


@pytest.mark.parametrize("kind", ["driven", "settable", "matrices", "trained"])
def test_answers_are_the_models(stack: ExitStack, tmp_path: Path, kind: str) -> None:
    classifier, devices = model(stack, kind)
    export_model(classifier, tmp_path / "m.rhw")
    u = np.random.default_rng(1).uniform(-1, 1, (2, 15, INPUTS)).astype(np.float32)
    with torch.no_grad():
        expected = np.stack([classifier(torch.from_numpy(u[:, : n + 1])).numpy() for n in range(15)], 1)
    allowed = BOUND * max(1.0, float(np.abs(expected).max()))
    with EdgeRunner(tmp_path / "m.rhw", devices) as runner:
        assert runner.manifest.reads_last
        assert np.abs(runner.run(u) - expected).max() <= allowed
        assert (runner.clipped > 0) == (kind == "driven")
        runner.reset(2)
        in_steps = np.stack([runner.step(u[:, step]) for step in range(15)], 1)
        assert np.abs(in_steps - expected).max() <= allowed
        runner.reset(2)
        mixed = [runner.run(u[:, :4]), runner.step(u[:, 4])[:, None], runner.run(u[:, 5:])]
        assert np.abs(np.concatenate(mixed, 1) - expected).max() <= allowed


def test_a_step_that_fails_changes_nothing_that_is_carried(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, devices = model(stack, "settable")
    export_model(classifier, tmp_path / "m.rhw")
    u = np.random.default_rng(1).uniform(-1, 1, (1, 6, INPUTS)).astype(np.float32)
    with EdgeRunner(tmp_path / "m.rhw", devices) as runner:
        whole = runner.run(u)
        runner.reset()
        runner.run(u[:, :3])

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(devices[0], "_transition", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.step(u[:, 3])
        with pytest.raises(StateLost, match="call reset"):
            runner.step(u[:, 3])
        runner.reset()
        np.testing.assert_array_equal(runner.run(u), whole)


def opened(stack: ExitStack, **keys: object) -> Esn:
    esn = stack.enter_context(open_reservoir({"kind": "esn", **keys}))
    assert isinstance(esn, Esn)
    return esn


def allowed(expected: np.ndarray) -> float:
    return BOUND * max(1.0, float(np.abs(expected).max()))


def test_ridge(stack: ExitStack, tmp_path: Path) -> None:
    esn = opened(stack, inputs=2, nodes=40, leak_rate=0.7, bias_scaling=0.1)
    u = np.random.default_rng(0).uniform(-1, 1, (1, 400, 2)).astype(np.float32)
    states = esn.run(u)
    readout = RidgeReadout(1e-4).fit(states, np.roll(u, 1, 1))
    export_model(whole_plan(readout, reservoir=esn), tmp_path / "m.rhw")
    assert verify(tmp_path / "m.rhw").passed
    expected = readout.predict(states)
    with EdgeRunner(tmp_path / "m.rhw") as runner:
        assert np.abs(runner.run(u) - expected).max() <= allowed(expected)
        runner.reset()
        steps = np.stack([runner.step(u[:, step]) for step in range(50)], 1)
        assert np.abs(steps - expected[:, :50]).max() <= allowed(expected)
        rest = runner.run(u[:, 50:])
        assert np.abs(rest - expected[:, 50:]).max() <= allowed(expected)
        both = runner.run(u[:, :0])
        assert both.shape == (1, 0, 2)
    with EdgeRunner(tmp_path / "m.rhw") as runner:
        one = runner.step(u[:, 0])
        runner.reset(3)
        three = np.repeat(u[:, :4], 3, 0)
        assert np.abs(runner.run(three) - expected[:, :4]).max() <= allowed(expected)
        assert np.abs(runner.step(np.repeat(u[:, 4], 3, 0)) - expected[:, 4]).max() <= allowed(expected)
        runner.reset(1)
        np.testing.assert_array_equal(runner.step(u[:, 0]), one)
    with pytest.raises(ConfigurationError, match="holds its reservoirs and takes none, but 1 were given"):
        EdgeRunner(tmp_path / "m.rhw", esn)


def test_laerc_and_its_text(stack: ExitStack, tmp_path: Path) -> None:
    torch.manual_seed(0)
    esns = [opened(stack, **keys) for keys in reservoir_configurations(8, 2)]
    model = LAERC(20, 8, [ReservoirLayer(esn) for esn in esns])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    export_model(whole_plan(model), tmp_path / "m.rhw")
    tokens = np.random.default_rng(0).integers(0, 20, (3, 25))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).numpy()
    with EdgeRunner(tmp_path / "m.rhw") as runner:
        assert np.abs(runner.run(tokens) - expected).max() <= allowed(expected)
        assert list(runner.generate(tokens[0], 20, seed=1)) == list(model.generate(tokens[0], 20, seed=1))


def test_a_language_model_with_a_recurrence_of_its_own(tmp_path: Path) -> None:
    model = dense_esn_lm(40, 20, train_input=True, seed=0).eval()
    export_model(model, tmp_path / "m.rhw")
    tokens = np.random.default_rng(0).integers(0, 20, (1, 30))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).numpy()
    with EdgeRunner(tmp_path / "m.rhw") as runner:
        assert runner.manifest.target == "whole"
        assert np.abs(runner.run(tokens) - expected).max() <= allowed(expected)
        assert list(runner.generate([3], 30, seed=1)) == list(model.generate([3], 30, seed=1))
