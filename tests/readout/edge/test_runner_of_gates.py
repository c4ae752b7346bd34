"""Gated models and simulated reservoirs at the edge: what is carried from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.readout import (
    DrivenCandidate,
    GatedRecurrence,
    MatrixCandidate,
    ReservoirLayer,
    SequenceClassifier,
    SettableCandidate,
)
from reservoir_hw.readout.edge.runner import EdgeRunner
from reservoir_hw.readout.export.exporter import export_model
from reservoir_hw.readout.models.gated import TrainedCandidate

INPUTS, NODES, CLASSES = 3, 12, 4

BOUND = 1e-5


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


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
        candidate = made(ReservoirLayer(devices[0], **({"limit": 0.6} if kind == "driven" else {})))
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
