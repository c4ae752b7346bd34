from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout import ReservoirLayer
from reservoir_hw.readout.edge.manifest import Crossing
from reservoir_hw.readout.export.exporter import SHAPES, built, certify, export_model
from reservoir_hw.readout.export.segments import plan_of
from reservoir_hw.readout.models.gated import (
    Candidate,
    DrivenCandidate,
    GatedRecurrence,
    MatrixCandidate,
    SequenceClassifier,
    SettableCandidate,
    TrainedCandidate,
)

pytestmark = pytest.mark.usefixtures("seeded")

INPUTS, NODES, CLASSES = 4, 9, 3

BOUND = 1e-5


def opened(stack: ExitStack, **options: Any) -> Esn:
    return cast(Esn, stack.enter_context(open_reservoir({"kind": "esn", "nodes": NODES, "seed": 3, **options})))


def candidate_of(kind: str, stack: ExitStack) -> Candidate:
    if kind == "driven":
        device = opened(stack, inputs=INPUTS + NODES, bias_scaling=0.3, leak_rate=0.6)
        return DrivenCandidate(ReservoirLayer(device, scale=0.7, offset=0.1, limit=0.9))
    if kind == "settable":
        return SettableCandidate(ReservoirLayer(opened(stack, inputs=INPUTS, bias_scaling=0.3, dtype="float64")))
    if kind == "matrices":
        esn = opened(stack, inputs=INPUTS, bias_scaling=0.3)
        return MatrixCandidate(esn.weights.W_in, esn.weights.recurrent(), esn.weights.bias)
    return TrainedCandidate(INPUTS, NODES)


def moving(model: Any) -> Any:
    """Weights of a size that makes the gates move."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return model


@pytest.mark.parametrize("kind", ["driven", "settable", "matrices", "trained"])
@pytest.mark.parametrize("classifies", [False, True])
def test_the_graphs_are_within_the_bound(stack: ExitStack, kind: str, classifies: bool) -> None:
    recurrence = GatedRecurrence(candidate_of(kind, stack), bias=classifies)
    model = moving(SequenceClassifier(recurrence, CLASSES) if classifies else recurrence)
    plan = plan_of(model)
    certificate, _ = certify(plan, built(plan, {})[1])
    assert all(part.spread > 0.03 for part in certificate.segments)
    assert certificate.segments[0].random_shapes == (
        SHAPES if kind in ("matrices", "trained") else ((1, 1), (1, 1), (3, 1))
    )
    assert plan.reads_last == classifies
    assert plan.output_meaning == ("logits" if classifies else "values")
    assert plan.stepwise == (kind in ("driven", "settable"))
    named = "state_0" if kind == "settable" else None
    crossings = [Crossing(slot=0, after=1, drive="drive_0", states="states_0", state=named)] if plan.stepwise else []
    assert (plan.crossings, plan.target) == (crossings, "segments" if plan.stepwise else "whole")


@pytest.mark.parametrize("kind", ["driven", "settable", "trained"])
def test_int8_is_near(stack: ExitStack, kind: str) -> None:
    model = moving(SequenceClassifier(GatedRecurrence(candidate_of(kind, stack)), CLASSES))
    plan = plan_of(model, (), "int8")
    certificate, _ = certify(plan, built(plan, {})[1], bounded=False)
    assert 1e-4 < max(part.error for part in certificate.segments) < 0.1
    assert any(array.dtype == np.int8 for array in plan.weights.arrays.values())


def test_comparing_leaves_the_models_state_alone() -> None:
    recurrence = moving(GatedRecurrence(TrainedCandidate(INPUTS, NODES)))
    recurrence(torch.randn(2, 5, INPUTS))
    state = cast(Tensor, recurrence._state).clone()
    plan = plan_of(recurrence)
    certify(plan, built(plan, {})[1])
    assert torch.equal(cast(Tensor, recurrence._state), state)


def test_a_classifier_of_a_device_without_gates(stack: ExitStack) -> None:
    device = stack.enter_context(open_reservoir({"kind": "esn", "inputs": INPUTS, "nodes": NODES}))
    model = moving(SequenceClassifier(ReservoirLayer(device, scale=0.5, limit=0.6), CLASSES))
    plan = plan_of(model)
    first, last = built(plan, {})[1]
    certify(plan, [first, last])
    u = torch.randn(3, 8, INPUTS)
    (drive,) = first.run(["drive_0"], {"inputs": u.numpy()})
    device.reset(3)
    (logits,) = last.run(["outputs"], {"states_0": device.run(drive)})
    np.testing.assert_allclose(logits[:, -1], model(u).detach().numpy(), atol=1e-5)
    assert not plan.stepwise
    assert plan.reads_last


@pytest.mark.parametrize("kind", ["driven", "settable"])
def test_what_goes_step_by_step_has_no_repetitions(stack: ExitStack, tmp_path: Path, kind: str) -> None:
    plan = plan_of(GatedRecurrence(candidate_of(kind, stack)))
    with pytest.raises(ConfigurationError, match="no sequence can be played 3 times and averaged"):
        export_model(plan, tmp_path / "model.rhw", repetitions=3, probe=False)
    assert not list(tmp_path.iterdir())


def test_an_unknown_candidate_is_refused() -> None:
    class Own(Candidate):
        inputs, nodes = INPUTS, NODES

        def respond(self, drive: Tensor, gated: Tensor) -> Tensor:
            return gated

    with pytest.raises(ConfigurationError, match="type Own cannot be exported"):
        plan_of(GatedRecurrence(Own()))
