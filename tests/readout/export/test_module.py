from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.readout import ReservoirLayer, ReservoirLM, random_embedding
from reservoir_hw.readout.edge.manifest import Value
from reservoir_hw.readout.edge.sessions import session_of
from reservoir_hw.readout.export import torch_module as module_file
from reservoir_hw.readout.export.exporter import built, certify, export_model
from reservoir_hw.readout.export.graph import Graph, Weights
from reservoir_hw.readout.export.segments import plan_of, whole_plan
from reservoir_hw.readout.export.torch_module import _lower, export_module

pytestmark = pytest.mark.usefixtures("seeded")

FEATURES, OUTPUTS = 12, 5
X = np.random.default_rng(0).uniform(0.5, 2, (2, 3, 4)).astype(np.float32)


class Readout(nn.Module):
    """The parts that these modules have in common."""

    def __init__(self, width: int = FEATURES) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(width, OUTPUTS)
        self.dropout = nn.Dropout(0.5)


class Gated(Readout):
    """Split, reductions over axes, dropout: what opset 17 writes in another way than 18."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.inner(self.norm(x)).split(x.shape[-1], -1)
        h = a * b.sigmoid()
        h = h / (h.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() - h.amax(-1, keepdim=True)
        return self.outer(functional.gelu(self.dropout(h)))


class Mixing(Readout):
    """Reads the steps before, by a convolution and a mean; and a norm behind a sum, without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES, bias=False)
        self.kernel = nn.Conv1d(FEATURES, FEATURES, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.kernel(functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        x = x + x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return self.outer(x + self.norm(x))


class Echo(Readout):
    """What was there 40 steps ago, too."""

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + functional.pad(x, (0, 0, 40, 0))[:, : x.shape[1]])


class Positions(Readout):
    """A table for 64 positions, all alike."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(64, FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + self.table[: x.shape[1]])


class Transformer(Readout):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(FEATURES, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.layer(x))


class Recurrent(Readout):
    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.GRU(FEATURES, FEATURES, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.recurrence(x)[0])


class BranchOnValues(Readout):
    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x) if x.sum() > 0 else -self.outer(x)


class BranchOnBatch(Readout):
    """torch.export drops the branch for a batch of one without a word."""

    def forward(self, x: Tensor) -> Tensor:
        return -self.outer(x) if x.shape[0] == 1 else self.outer(x)


class Frozen(Readout):
    """Something else when it is exported."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.outer(x)
        return y[:, :1] if torch.compiler.is_exporting() else y


class Random(Readout):
    def forward(self, x: Tensor) -> Tensor:
        return self.outer(functional.dropout(x, 0.5, True))


class Median(Readout):
    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x - x.median(-1, keepdim=True).values)


class Cond(Readout):
    """A branch that torch can export."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: 2 * x, lambda x: 3 * x, (x,))


class Itself(nn.Module):
    """Gives its weights, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.expand(x.shape[0], x.shape[1], 3)


class LastStep(Readout):
    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x)[:, -1]


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 20), nn.ReLU(), nn.Linear(20, OUTPUTS))


@cache
def exported(kind: Any) -> tuple[nn.Module, Any, Any, Any]:
    """A module, its plan, its graph, and a session of it. Batch and time of 1 in the example freeze nothing."""
    module = kind()
    plan = export_module(module, torch.zeros(1, 1, FEATURES), name="own")
    files, (session,) = built(plan, {})
    (file,) = files.values()
    return module, plan, onnx.load_from_string(file), session


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Gated, Mixing, Transformer])
def test_modules_of_ones_own(kind: Any, recwarn: pytest.WarningsRecorder) -> None:
    module, plan, model, session = exported(kind)
    certificate, _ = certify(plan, [session])
    assert certificate.segments[0].spread > 0.03
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert (model.ir_version, len(model.functions)) == (8, 0)
    assert {node.domain for node in model.graph.node} == {""}
    assert all(len(node.input) == 3 for node in model.graph.node if node.op_type == "LayerNormalization")
    assert module.training
    assert not recwarn.list


@pytest.mark.slow
def test_weights_are_kept_outside_under_their_names() -> None:
    module, plan, model, _ = exported(Gated)
    assert set(plan.weights.arrays) == {f"own.{name}" for name in module.state_dict()}
    np.testing.assert_array_equal(plan.weights.arrays["own.inner.weight"], module.state_dict()["inner.weight"].T)
    for tensor in model.graph.initializer:
        outside = tensor.data_location == TensorProto.EXTERNAL
        assert outside == (tensor.name in plan.weights.arrays)
        assert outside or numpy_helper.to_array(tensor).size < 8
    file = model.SerializeToString()
    assert len(file) < 5000
    assert b".py" not in file
    # Whatever the module is given, weights alone can be what it gives.
    (got,) = exported(Itself)[3].run(["outputs"], {"inputs": np.zeros((2, 5, FEATURES), np.float32)})
    np.testing.assert_array_equal(got, np.ones((2, 5, 3)))


@pytest.mark.slow
def test_float64_stays_float64() -> None:
    plan = export_module(sequential().double(), torch.zeros(1, 1, FEATURES, dtype=torch.float64))
    assert (plan.input.dtype, plan.output.dtype) == ("float64", "float64")
    certificate, _ = certify(plan, built(plan, {})[1])
    assert certificate.segments[0].error < 1e-12

    with pytest.raises(ConfigurationError, match=r"cannot load the graph of Gated: .* Erf"):
        export_module(Gated().double(), torch.zeros(1, 1, FEATURES, dtype=torch.float64))


@pytest.mark.slow
def test_behind_a_reservoir(stack: ExitStack, tmp_path: Path) -> None:
    esn = stack.enter_context(open_reservoir({"kind": "esn", "inputs": 3, "nodes": FEATURES}))
    plan = export_module(sequential(), torch.zeros(1, 1, FEATURES), reservoir=esn.spec)
    (crossing,) = plan.crossings
    assert (plan.input.name, plan.input.shape, crossing.drive, crossing.states) == (
        "inputs",
        (3,),
        "inputs",
        "states_0",
    )
    manifest = export_model(plan, tmp_path / "own.rhw", reservoirs=esn)
    assert manifest.slots[0].nodes == FEATURES
    other = stack.enter_context(open_reservoir({"kind": "esn", "inputs": 3, "nodes": 9}))
    with pytest.raises(ConfigurationError, match="12 features of float32, the reservoir gives 9"):
        export_module(sequential(), torch.zeros(1, 1, FEATURES), reservoir=other.spec)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Recurrent, r"torch\.export refuses a module of type Recurrent: Constraints violated \(time\)"),
        (BranchOnValues, r"torch\.export refuses .* data-dependent .* a branch on values cannot be exported"),
        (BranchOnBatch, r"differs from the module by .* 1 sequences of 1 steps: a branch was dropped"),
        (Frozen, r"gives \(3, 1, 5\) where the module gives \(3, 7, 5\): an axis was frozen"),
        (Random, r"differs from the module by .* the module is random"),
        (Median, r"torch cannot write a module of type Median as ONNX: .*median"),
        (Cond, r"Cond has a branch or a loop in its graph"),
        (LastStep, r"LastStep must take \(1, 1, 12\) to \(batch, time, outputs\) .* gives \(1, 5\)"),
    ],
)
def test_what_cannot_be_exported_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        export_module(kind(), torch.zeros(1, 1, FEATURES))
    for example in (torch.zeros(3, FEATURES), torch.zeros(1, 1, 0), torch.zeros(1, 1, 12).long()):
        with pytest.raises(ConfigurationError, match=r"must be \(batch, time, features\) of float32 or float64"):
            export_module(Gated(), example)


def test_without_onnxscript(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_file, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs onnxscript: pip install 'reservoir-hw\[export\]'"):
        export_module(Gated(), torch.zeros(1, 1, FEATURES))


# ---- within language models


def language_model(stack: ExitStack, readout: nn.Module) -> ReservoirLM:
    esn: Any = stack.enter_context(open_reservoir({"kind": "esn", "inputs": 4, "nodes": FEATURES}))
    return ReservoirLM(random_embedding(OUTPUTS, 4, seed=0), ReservoirLayer(esn, limit=1.0), readout)


@pytest.mark.slow
def test_a_readout_of_ones_own_in_a_language_model(stack: ExitStack) -> None:
    plan = whole_plan(language_model(stack, Gated()))
    certify(plan, built(plan, {})[1])
    assert "readout.inner.weight" in plan.weights.arrays


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Mixing, "type Mixing mixes the positions"),
        (Echo, "type Echo mixes the positions"),
        (Positions, r"type Positions does not take sequences of 300 steps: .*300.*64"),
    ],
)
def test_a_readout_of_a_language_model_may_not_mix_positions(stack: ExitStack, kind: Any, message: str) -> None:
    model = language_model(stack, kind())
    with pytest.raises(ConfigurationError, match=message):
        plan_of(model)


# ---- from opset 18 to 17


REDUCED: dict[str, np.ndarray] = {
    "ReduceMax": X.max(2, keepdims=True),
    "ReduceMin": X.min(2, keepdims=True),
    "ReduceMean": X.mean(2, keepdims=True),
    "ReduceProd": X.prod(2, keepdims=True),
    "ReduceL1": np.abs(X).sum(2, keepdims=True),
    "ReduceL2": np.sqrt((X**2).sum(2, keepdims=True)),
    "ReduceLogSum": np.log(X.sum(2, keepdims=True)),
    "ReduceLogSumExp": np.log(np.exp(X).sum(2, keepdims=True)),
    "ReduceSumSquare": (X**2).sum(2, keepdims=True),
}


def test_what_opset_17_writes_in_another_way() -> None:
    for operator, expected in REDUCED.items():
        node = helper.make_node(operator, ["x", "axes"], ["y"], noop_with_empty_axes=0)
        np.testing.assert_allclose(run_of([node], {"axes": np.array([-1])}, X), expected, rtol=1e-6, err_msg=operator)
    everything = helper.make_node("ReduceMax", ["x"], ["y"], keepdims=1)
    np.testing.assert_array_equal(run_of([everything], {}, X), X.max(keepdims=True))
    split = helper.make_node("Split", ["x"], ["a", "b"], axis=2, num_outputs=2)
    parts = run_of([split, helper.make_node("Sub", ["a", "b"], ["y"])], {}, X)
    np.testing.assert_array_equal(parts, X[..., :2] - X[..., 2:])
    pad = helper.make_node("Pad", ["x", "pads"], ["y"])
    np.testing.assert_array_equal(run_of([pad], {"pads": np.array([0, 1, 0, 0, 0, 0])}, X)[:, 1:], X)


def run_of(nodes: list[Any], constants: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """What nodes of opset 18, brought to 17, make of x (batch, time, features)."""
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    value = helper.make_tensor_value_info
    written = helper.make_graph(
        nodes, "written", [value("x", 1, [None] * 3)], [value("y", 1, [None] * 3)], initializers
    )
    _lower(written, {tensor.name: tensor for tensor in initializers}, "the module")
    graph = Graph(0, Weights())
    read = graph.read(Value(name="inputs", shape=(x.shape[2],)))
    (result,) = graph.include(written, {"x": read}, {})
    graph.give(Value(name="outputs", shape=(1,)), result)
    session: Any = session_of(graph.build({}, {}), {}, "written")
    return session.run(["outputs"], {"inputs": x})[0]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Pad", ["x", "pads"], ["y"], mode="wrap"), "operator Pad as of opset 18"),
        (helper.make_node("ReduceMax", ["x", "computed"], ["y"]), "operator ReduceMax as of opset 18"),
        (helper.make_node("BitwiseNot", ["x"], ["y"]), "operator BitwiseNot as of opset 18"),
        (helper.make_node("Gelu", ["x"], ["y"]), "operator Gelu, which ONNX does not know"),
        (helper.make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft"), "com.microsoft.FusedMatMul"),
    ],
)
def test_other_operators_are_refused(node: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_of([node], {}, X)
