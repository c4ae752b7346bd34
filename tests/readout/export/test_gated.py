from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from reservoir_hw import Reservoir, open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout import ReservoirLayer
from reservoir_hw.readout.edge.manifest import Crossing
from reservoir_hw.readout.export.certificate import SHAPES, certify
from reservoir_hw.readout.export.exporter import built, write_plan
from reservoir_hw.readout.export.plan import Plan
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


def arrays_of(recurrence: GatedRecurrence) -> dict[str, np.ndarray]:
    return {
        name: np.zeros(2 * recurrence.nodes) if tensor is None else tensor.detach().double().numpy()
        for name, tensor in (("W_in", recurrence.W_in), ("W", recurrence.W), ("bias", recurrence.bias))
    }


def equation_6(recurrence: GatedRecurrence, u: np.ndarray, esn: dict[str, np.ndarray]) -> np.ndarray:
    """Equation 6 of Di Sarli et al. 2022 in float64, with h = tanh(W_in u + W (r x) + b)."""
    w, n = arrays_of(recurrence), recurrence.nodes
    x = np.zeros((len(u), n))
    states = []
    for t in range(u.shape[1]):
        both = 1 / (1 + np.exp(-(u[:, t] @ w["W_in"].T + x @ w["W"].T + w["bias"])))
        r, z = both[:, :n], both[:, n:]
        h = np.tanh(u[:, t] @ esn["W_in"].T + (r * x) @ esn["W"].T + esn["bias"])
        x = z * x + (1 - z) * h
        states.append(x)
    return np.stack(states, 1)


def stepped(plan: Plan, device: Reservoir, u: np.ndarray) -> tuple[np.ndarray, int, np.ndarray]:
    """What the graphs give, step by step, how many values were clipped, and what the device answered."""
    before, after = built(plan, {})[1]
    x = np.zeros((len(u), NODES), np.float32)
    (crossing,) = plan.crossings
    device.reset(len(u))
    outputs, clipped, answers = [], 0, []
    for t in range(u.shape[1]):
        names = [value.name for value in plan.graphs[0].gives]
        given = dict(zip(names, before.run(names, {"inputs": u[:, t : t + 1], "x": x}), strict=True))
        clipped += int(given.get("clipped_0", 0))
        if crossing.state is None:
            states = device.run(given[crossing.drive])
        else:
            states = device.transition(given[crossing.drive][:, 0], given[crossing.state][:, 0])[:, None]
        read = {crossing.states: np.asarray(states), "x": x, "update": given["update"]}
        y, x = after.run(["outputs", "next_x"], read)
        outputs.append(y)
        answers.append(read[crossing.states])
    return np.concatenate(outputs, 1), clipped, np.concatenate(answers, 1)


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


@pytest.mark.parametrize("kind", ["driven", "settable", "trained"])
def test_int8_is_near(stack: ExitStack, kind: str) -> None:
    model = moving(SequenceClassifier(GatedRecurrence(candidate_of(kind, stack)), CLASSES))
    plan = plan_of(model, (), "int8")
    certificate, _ = certify(plan, built(plan, {})[1], bounded=False)
    assert 1e-4 < max(part.error for part in certificate.segments) < 0.1
    assert any(array.dtype == np.int8 for array in plan.weights.arrays.values())


@pytest.mark.parametrize("kind", ["driven", "settable"])
def test_steps_with_the_device_are_the_model(stack: ExitStack, kind: str) -> None:
    candidate: Any = candidate_of(kind, stack)
    model = moving(SequenceClassifier(GatedRecurrence(candidate), CLASSES))
    plan = plan_of(model)
    u = torch.randn(3, 20, INPUTS)
    with torch.no_grad():
        expected = model._read(model.recurrence(u)).numpy()
        torch.testing.assert_close(model(u), torch.from_numpy(expected[:, -1]))
    got, clipped, answers = stepped(plan, candidate.layer.reservoir, u.numpy())
    assert np.abs(got - expected).max() <= BOUND * max(1, np.abs(expected).max())
    assert clipped == candidate.layer.saturations // 2
    assert (clipped > 0) == (kind == "driven")
    certificate, _ = certify(plan, built(plan, {})[1], recorded={"inputs": u.numpy(), "states_0": answers})
    assert certificate.segments[0].recorded_steps == 60
    named = None if kind == "driven" else "state_0"
    assert plan.crossings == [Crossing(slot=0, after=1, drive="drive_0", states="states_0", state=named)]


def test_the_settable_model_is_equation_6(stack: ExitStack) -> None:
    esn = opened(stack, inputs=INPUTS, bias_scaling=0.3, dtype="float64")
    recurrence = moving(GatedRecurrence(SettableCandidate(ReservoirLayer(esn))))
    u = np.random.default_rng(0).standard_normal((2, 30, INPUTS)).astype(np.float32)
    weights = {"W_in": esn.weights.W_in, "W": np.asarray(esn.weights.recurrent()), "bias": esn.weights.bias}
    got, _, _ = stepped(plan_of(recurrence), esn, u)
    assert np.abs(got - equation_6(recurrence, u.astype(float), weights)).max() < 5e-6


@pytest.mark.parametrize("bias", [False, True])
def test_the_gru_is_equation_6_in_one_piece_and_in_parts(bias: bool) -> None:
    candidate = TrainedCandidate(INPUTS, NODES, bias=bias)
    recurrence = moving(GatedRecurrence(candidate, bias=bias))
    weights = {name: getattr(candidate, name).detach().double().numpy() for name in ("W_in", "W", "bias")}
    u = np.random.default_rng(0).standard_normal((3, 30, INPUTS)).astype(np.float32)
    expected = equation_6(recurrence, u.astype(float), weights)
    plan = plan_of(recurrence)
    (session,) = built(plan, {})[1]
    rest = np.zeros((3, NODES), np.float32)
    whole, last = session.run(["outputs", "next_x"], {"inputs": u, "x": rest})
    assert np.abs(whole - expected).max() < 5e-6
    np.testing.assert_array_equal(last, whole[:, -1])
    first, x = session.run(["outputs", "next_x"], {"inputs": u[:, :11], "x": rest})
    second, _ = session.run(["outputs", "next_x"], {"inputs": u[:, 11:], "x": x})
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, atol=1e-6)
    assert (plan.target, plan.crossings) == ("whole", [])


def test_the_reset_gate_acts_before_the_recurrent_product() -> None:
    plan = plan_of(moving(GatedRecurrence(TrainedCandidate(INPUTS, NODES))))
    files, _ = built(plan, {})
    (gru,) = (
        node for node in onnx.load_from_string(files["graphs/segment_0.onnx"]).graph.node if node.op_type == "GRU"
    )
    attributes = {attribute.name: attribute.i for attribute in gru.attribute}
    assert attributes["linear_before_reset"] == 0


def test_comparing_leaves_the_models_state_alone() -> None:
    recurrence = moving(GatedRecurrence(TrainedCandidate(INPUTS, NODES)))
    recurrence(torch.randn(2, 5, INPUTS))
    state = cast(Tensor, recurrence._state).clone()
    plan = plan_of(recurrence)
    certify(plan, built(plan, {})[1])
    assert torch.equal(cast(Tensor, recurrence._state), state)


def test_a_classifier_of_a_device_without_gates(stack: ExitStack) -> None:
    device = stack.enter_context(open_reservoir({"kind": "gated_esn", "inputs": INPUTS, "nodes": NODES}))
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


@pytest.mark.parametrize("kind", ["driven", "settable", "trained"])
def test_the_plan_makes_a_bundle(stack: ExitStack, tmp_path: Path, kind: str) -> None:
    model = moving(SequenceClassifier(GatedRecurrence(candidate_of(kind, stack)), CLASSES))
    manifest = write_plan(plan_of(model), tmp_path / "bundle", probe=False)
    assert [carried.reads for carried in manifest.carried] == ["x"]


@pytest.mark.parametrize("kind", ["driven", "settable"])
def test_what_goes_step_by_step_has_no_repetitions(stack: ExitStack, tmp_path: Path, kind: str) -> None:
    plan = plan_of(GatedRecurrence(candidate_of(kind, stack)))
    with pytest.raises(ConfigurationError, match="no sequence can be played 3 times and averaged"):
        write_plan(plan, tmp_path / "model.rhw", repetitions=3, probe=False)
    assert not list(tmp_path.iterdir())


def test_an_unknown_candidate_is_refused() -> None:
    class Own(Candidate):
        inputs, nodes = INPUTS, NODES

        def respond(self, drive: Tensor, gated: Tensor) -> Tensor:
            return gated

    with pytest.raises(ConfigurationError, match="type Own cannot be exported"):
        plan_of(GatedRecurrence(Own()))
