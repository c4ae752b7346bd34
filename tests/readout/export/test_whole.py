from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from scipy.sparse import csr_array, eye_array

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout import (
    LAERC,
    AttentionReadout,
    EsnArrays,
    EsnLM,
    LinearReadout,
    LowRankReadout,
    NotSolved,
    OneHot,
    ReservoirLayer,
    ReservoirLM,
    RidgeReadout,
    dense_esn_lm,
    random_embedding,
    sparse_esn_lm,
)
from reservoir_hw.readout.export.exporter import SHAPES, built, certify
from reservoir_hw.readout.export.graph import Plan
from reservoir_hw.readout.export.segments import whole_plan
from reservoir_hw.readout.export.simulated_network import dense_network
from reservoir_hw.readout.models.gated import (
    DrivenCandidate,
    GatedRecurrence,
    SequenceClassifier,
    SettableCandidate,
)
from reservoir_hw.readout.models.softmax import NormalisedReadout

pytestmark = pytest.mark.usefixtures("seeded")

VOCABULARY, WIDTH, NODES = 11, 8, 40

BOUND = 1e-5


def opened(stack: ExitStack, **options: Any) -> Esn:
    settings = {"kind": "esn", "nodes": NODES, "seed": 3, "bias_scaling": 0.3, "leak_rate": (0.2, 1.0), **options}
    return cast(Esn, stack.enter_context(open_reservoir(settings)))


def moving(model: Any, factor: float = 4.0) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor) if parameter.ndim == 2 else parameter.fill_(0.4)
    return model


def laerc(esns: list[Esn]) -> LAERC:
    layers = [ReservoirLayer(esn, limit=1.5) for esn in esns]
    return moving(LAERC(VOCABULARY, WIDTH, layers))


def case(kind: str, stack: ExitStack) -> Any:
    """A model."""
    if kind == "laerc":
        esns = [opened(stack, inputs=WIDTH, seed=seed) for seed in range(3)]
        return laerc(esns)
    if kind == "sparse EsnLM":
        return sparse_esn_lm(NODES, VOCABULARY, rank=5, connections=6, seed=0)
    if kind == "dense EsnLM":
        return dense_esn_lm(NODES, VOCABULARY, train_input=True, seed=0)
    if kind == "classifier":
        esn = opened(stack, inputs=3, dtype="float64")
        return moving(SequenceClassifier(ReservoirLayer(esn, scale=0.5, offset=0.1, limit=0.6), 4))
    if kind == "driven gates":
        esn = opened(stack, inputs=3 + NODES)
        layer = ReservoirLayer(esn, limit=1.0)
        return moving(SequenceClassifier(GatedRecurrence(DrivenCandidate(layer)), 4))
    if kind == "settable gates":
        esn = opened(stack, inputs=3, dtype="float64")
        return moving(GatedRecurrence(SettableCandidate(ReservoirLayer(esn, scale=2))))
    esn = opened(stack, inputs=VOCABULARY if kind == "one-hot low-rank" else WIDTH)
    embedding = OneHot(VOCABULARY) if kind == "one-hot low-rank" else random_embedding(VOCABULARY, WIDTH, seed=0)
    readout = {
        "linear": lambda: LinearReadout(NODES, VOCABULARY),
        "attention": lambda: AttentionReadout(NODES, 7, VOCABULARY),
        "one-hot low-rank": lambda: moving(NormalisedReadout(NODES, VOCABULARY, LowRankReadout(NODES, VOCABULARY, 5))),
    }[kind]()
    return ReservoirLM(embedding, ReservoirLayer(esn, scale=1.5, limit=1.0), readout)


KINDS = [
    "linear", "attention", "one-hot low-rank", "laerc", "sparse EsnLM", "dense EsnLM", "classifier", "driven gates",
    "settable gates",
]  # fmt: skip


def at_rest(plan: Plan, batch: int) -> dict[str, np.ndarray]:
    return {one.reads: np.zeros((batch, *one.shape), one.dtype) for one in plan.carried}


def run(plan: Plan, session: Any, u: np.ndarray, carried: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    names = [plan.output.name, *(one.gives for one in plan.carried)]
    outputs, *last = session.run(names, {plan.input.name: u, **carried})
    return outputs, {one.reads: array for one, array in zip(plan.carried, last, strict=True)}


def given(model: Any, batch: int, steps: int) -> torch.Tensor:
    if hasattr(model, "vocabulary"):
        return torch.randint(0, VOCABULARY, (batch, steps))
    return torch.randn(batch, steps, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_is_the_model_on_its_simulated_reservoir(stack: ExitStack, kind: str) -> None:
    model = case(kind, stack)
    plan = whole_plan(model)
    (session,) = built(plan, {})[1]
    certificate, _ = certify(plan, [session])
    assert certificate.segments[0].random_shapes == SHAPES
    assert certificate.segments[0].spread > 0.003
    # From rest, by the model's own way of driving its reservoirs, over more steps.
    u = given(model, 2, 100)
    with torch.no_grad():
        model.eval()
        expected = (model.recurrence(u) if hasattr(model, "classes") else model(u)).float()
        if hasattr(model, "classes"):
            expected = model.readout(expected)
    got, last = run(plan, session, u.numpy(), at_rest(plan, 2))
    assert np.abs(got - expected.numpy()).max() <= BOUND * max(1.0, float(expected.abs().max()))
    assert set(last) == {one.reads for one in plan.carried}
    carried, parts = at_rest(plan, 2), []
    for part in (slice(0, 1), slice(1, 2), slice(2, 9)):
        outputs, carried = run(plan, session, u.numpy()[:, part], carried)
        parts.append(outputs)
    np.testing.assert_allclose(np.concatenate(parts, 1), got[:, :9], rtol=1e-5, atol=1e-5)
    certificate, _ = certify(plan, [session], recorded={plan.input.name: u.numpy()})
    assert certificate.segments[0].recorded_steps == 200
    assert (plan.target, plan.crossings, plan.reservoirs, plan.stepwise) == ("whole", [], [], False)


@pytest.mark.parametrize("kind", ["attention", "laerc", "dense EsnLM", "driven gates"])
def test_int8_is_near_and_leaves_the_network_as_it_is(stack: ExitStack, kind: str) -> None:
    model = case(kind, stack)
    plan = whole_plan(model, "int8")
    certificate, _ = certify(plan, built(plan, {})[1], bounded=False)
    (segment,) = certificate.segments
    assert 1e-4 < segment.error < 0.5
    quantised = {name for name, array in plan.weights.arrays.items() if array.dtype == np.int8}
    assert quantised
    assert not any(name.startswith(("reservoir_", "recurrence.weight")) for name in quantised)


@pytest.mark.parametrize(
    ("activation", "dtype", "input_connection"),
    [("tanh", "float32", True), ("relu", "float32", False), ("identity", "float64", True)],
)
def test_ridge_on_every_kind_of_network(stack: ExitStack, activation: str, dtype: str, input_connection: bool) -> None:
    esn = opened(stack, inputs=2, activation=activation, dtype=dtype)
    u = np.random.default_rng(0).uniform(-0.5, 0.5, (1, 1500, 2)).astype(dtype)
    states = esn.run(u)
    beside = u if input_connection else None
    readout = RidgeReadout(1e-3, input_connection=input_connection).fit(states, np.roll(u, 1, 1), beside)
    plan = whole_plan(readout, reservoir=esn)
    (session,) = built(plan, {})[1]
    certify(plan, [session])
    got, last = run(plan, session, u, at_rest(plan, 1))
    expected = readout.predict(states, beside)
    assert np.abs(got - expected).max() <= BOUND * max(1.0, np.abs(expected).max())
    assert np.abs(last["state_0"] - states[:, -1]).max() < (1e-5 if dtype == "float32" else 1e-12)


def test_every_norm_has_a_shift(stack: ExitStack) -> None:
    """onnxruntime 1.16 aborts the process where it fuses a sum with a norm without one."""
    model = case("laerc", stack)
    assert model.blocks[0].norm_res.bias is None
    (file,) = built(whole_plan(model), {})[0].values()
    norms = [node for node in onnx.load_from_string(file).graph.node if node.op_type == "LayerNormalization"]
    assert len(norms) == 3 * 4 + 1
    assert all(len(node.input) == 3 for node in norms)


def test_layers_that_share_a_network_store_it_once(stack: ExitStack) -> None:
    esn = opened(stack, inputs=WIDTH)
    plan = whole_plan(laerc([esn, esn]))
    certify(plan, built(plan, {})[1])
    assert [one.reads for one in plan.carried] == ["state_0", "state_1"]
    sparse = dense_network(csr_array(np.diag([0.5, 0.25])), np.ones((2, 1)), 0.0, 0.5, "tanh", "float32")
    np.testing.assert_array_equal(sparse.W, np.diag([0.5, 0.25]))
    assert sum(name.endswith(".W") for name in plan.weights.arrays) == 1


# ---- refusals


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "delay_loop", "nodes": NODES},
        {"kind": "esn", "nodes": NODES, "nonidealities": {"readout": {"noise": 0.01}}},
        {"kind": "esn", "nodes": NODES, "nonidealities": {"readout": {"bits": 8}}},
    ],
)
def test_other_reservoirs_are_refused(stack: ExitStack, options: dict[str, Any]) -> None:
    reservoir = stack.enter_context(open_reservoir({"inputs": WIDTH, **options}))
    model = ReservoirLM(
        random_embedding(VOCABULARY, WIDTH, seed=0), ReservoirLayer(reservoir), LinearReadout(NODES, VOCABULARY)
    )
    with pytest.raises(ConfigurationError, match=r"only a simulated esn in this process|has non-idealities"):
        whole_plan(model)


def test_other_weights_than_those_of_the_model_are_refused(stack: ExitStack) -> None:
    model = case("linear", stack)
    plan = whole_plan(model)
    plan.weights.arrays["reservoir_0.leak"] = plan.weights.arrays["reservoir_0.leak"] * np.float32(0.99)
    with pytest.raises(ConfigurationError, match="differs from the model"):
        certify(plan, built(plan, {})[1])


def test_a_linear_readout_needs_its_reservoir(stack: ExitStack) -> None:
    esn = opened(stack, inputs=2)
    states = esn.run(np.random.default_rng(0).uniform(-0.5, 0.5, (1, 300, 2)).astype(np.float32))
    readout = RidgeReadout(1e-3).fit(states, states[..., :1])
    with pytest.raises(ConfigurationError, match="does not know its reservoir"):
        whole_plan(readout)
    with pytest.raises(NotSolved):
        whole_plan(RidgeReadout(1e-3), reservoir=esn)
    other = opened(stack, inputs=2, nodes=7)
    with pytest.raises(ConfigurationError, match="the readout reads 40 features, the reservoir has 7 nodes"):
        whole_plan(readout, reservoir=other)


HUGE = eye_array(30_000, format="csr")
LARGE = EsnLM(EsnArrays(HUGE, csr_array((30_000, 3)).tocsc(), 0.5), LowRankReadout(30_000, 3, 2))
ONES = np.ones((3, 1))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: dense_network(HUGE, ONES, 0.0, 1.0, "tanh", "float32"), "the recurrent matrix would take 3.4 GiB"),
        (lambda: whole_plan(LARGE), r"the recurrent matrix would take 3.4 GiB .* export the segments"),
        (lambda: whole_plan(torch.nn.Linear(2, 2)), "a Linear cannot be exported with its reservoir inside"),
    ],
)  # fmt: skip
def test_refused(use: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        use()
