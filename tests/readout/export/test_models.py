"""Every model, cut at its reservoirs: graphs against the model's own code, and whole bundles against the model."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.networks.language_weights import reservoir_configurations
from reservoir_hw.readout import (
    LAERC,
    AttentionReadout,
    LinearReadout,
    LMSReadout,
    LowRankReadout,
    OneHot,
    ReservoirLayer,
    ReservoirLM,
    RidgeReadout,
    RLSReadout,
    given_embedding,
    random_embedding,
)
from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.runner import EdgeRunner
from reservoir_hw.readout.edge.verification import spread_of, verify
from reservoir_hw.readout.export.cutters import mapped_by
from reservoir_hw.readout.export.exporter import built, certify, export_model, random_inputs
from reservoir_hw.readout.export.recording import record_series, record_text
from reservoir_hw.readout.export.segments import plan_of, plan_of_states
from reservoir_hw.readout.export.torch_module import export_module
from reservoir_hw.readout.models.laerc import Block

BOUND = 1e-5
VOCABULARY = 23


def esn(stack: ExitStack, **keys: Any) -> Reservoir:
    return stack.enter_context(open_reservoir({"kind": "esn", "nodes": 40, "inputs": 8, "seed": 3, **keys}))


def laerc(stack: ExitStack, *, width: int = 8, layers: int = 3, shared: bool = False, **keys: Any) -> LAERC:
    torch.manual_seed(1)
    layer_keys = {name: keys.pop(name) for name in ("scale", "offset", "limit") if name in keys}
    configurations = reservoir_configurations(width, layers, dtype=keys.pop("dtype", "float32"))
    reservoirs = [stack.enter_context(open_reservoir(one)) for one in configurations[: 1 if shared else layers]]
    model = LAERC(
        VOCABULARY,
        width,
        [ReservoirLayer(reservoirs[i % len(reservoirs)], **layer_keys) for i in range(layers)],
        **keys,
    )
    return moved(model)


def moved(model: Any) -> Any:
    """Every weight away from its beginning, so that nothing multiplies by 0 or by 1."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def language_model(stack: ExitStack, readout: nn.Module, *, one_hot: bool = False, **keys: Any) -> ReservoirLM:
    torch.manual_seed(2)
    embedding = OneHot(VOCABULARY) if one_hot else random_embedding(VOCABULARY, 8, seed=1)
    layer = ReservoirLayer(esn(stack, inputs=VOCABULARY if one_hot else 8), **keys)
    return ReservoirLM(embedding, layer, moved(readout))


READOUTS = {
    "linear": lambda: LinearReadout(40, VOCABULARY),
    "without bias": lambda: LinearReadout(40, VOCABULARY, bias=False),
    "low rank": lambda: LowRankReadout(40, VOCABULARY, 4),
    "attention": lambda: AttentionReadout(40, 5, VOCABULARY),
}


def text(batch: int = 2, steps: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (batch, steps))


def within(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= BOUND * max(1.0, float(np.abs(expected).max()))


def answers_alike(model: Any, bundle: Path, devices: list[Reservoir]) -> None:
    """Whole, in two pieces and step by step; and the texts that both write."""
    tokens = text(3, 12, seed=9)
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).numpy()
    with EdgeRunner(bundle, devices) as runner:
        within(runner.run(tokens), expected)
        runner.reset(3)
        within(np.concatenate([runner.run(tokens[:, :5]), runner.run(tokens[:, 5:])], 1), expected)
        runner.reset(3)
        steps = [runner.step(tokens[:, step]) for step in range(12)]
        within(np.stack(steps, 1), expected)
        mixed = [runner.run(tokens[:, :0])] if runner.reset(3) is None else []
        mixed += [runner.step(tokens[:, 0])[:, None], runner.run(tokens[:, 1:6]), runner.step(tokens[:, 6])[:, None]]
        within(np.concatenate(mixed, 1), expected[:, :7])
        written = list(runner.generate(tokens[0], 20, temperature=0.8, top_k=7, seed=4))
        assert written == list(model.generate(tokens[0], 20, temperature=0.8, top_k=7, seed=4))


@pytest.mark.parametrize(
    ("name", "one_hot"), [("linear", True), ("without bias", False), ("low rank", True), ("attention", False)]
)
def test_language_models(stack: ExitStack, tmp_path: Path, name: str, one_hot: bool) -> None:
    model = language_model(stack, READOUTS[name](), one_hot=one_hot)
    manifest = export_model(model, tmp_path / "m.rhw", recorded=record_text(model, text()))
    assert len(manifest.segments) == 2
    for segment in manifest.certificate.segments:
        assert segment.limit is not None
        assert segment.error <= segment.limit
        assert segment.recorded_steps == 60
        assert len(segment.random_shapes) == 3
    answers_alike(model, tmp_path / "m.rhw", [model.layer.reservoir])


def test_models_that_compute_something_else_are_refused(stack: ExitStack, tmp_path: Path) -> None:
    class Own(LAERC):
        def advance(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().advance(tokens) + 1

    class OwnBlock(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    own, block, hooked = laerc(stack), laerc(stack), language_model(stack, READOUTS["linear"]())
    own.__class__ = Own
    block.blocks[1].__class__ = OwnBlock
    hooked.layer.register_forward_hook(lambda module, given, states: None)
    for model, said in (
        (own, r"Own \(the model\) has its own advance"),
        (block, r"OwnBlock \(blocks\.1\) has its own forward"),
        (hooked, r"ReservoirLayer \(layer\) has a hook"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            export_model(model, tmp_path / "m.rhw")


@pytest.mark.slow
def test_a_module_of_ones_own_in_double(stack: ExitStack, tmp_path: Path) -> None:
    model = language_model(stack, nn.Sequential(nn.Linear(40, 9), nn.GELU(), nn.Linear(9, VOCABULARY))).double()
    export_model(model, tmp_path / "m.rhw", recorded=record_text(model, text()))
    answers_alike(model, tmp_path / "m.rhw", [model.layer.reservoir])

    class Cancelling(nn.Module):
        """Casts by itself, and needs the digits of double."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(40, VOCABULARY).double()

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            large = self.net(states.to(self.net.weight.dtype)) + 1e5
            return (large - 1e5).to(states.dtype)

    casting = language_model(stack, Cancelling())
    export_model(casting, tmp_path / "casting.rhw", recorded=record_text(casting, text()))
    answers_alike(casting, tmp_path / "casting.rhw", [casting.layer.reservoir])
    with pytest.raises(ConfigurationError, match=r"Sequential does not take its example, \(1, 1, 40\) of float32"):
        export_module(model.readout, torch.zeros(1, 1, 40))


@pytest.mark.slow
def test_subclasses_are_never_exported_as_their_parents(stack: ExitStack) -> None:
    class Doubled(AttentionReadout):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(states)

    class Own(nn.Module):
        """Derived from no built-in, and says itself how it is written."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(40, VOCABULARY)

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.net(states).tanh()

        def emit(self, graph: Any, x: str, name: str) -> str:
            return graph.node("Tanh", graph.emit(self.net, x, f"{name}.net"))

    class OwnShifted(Own):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return super().forward(states) + 1

    class OwnBroken(Own):
        def emit(self, graph: Any, x: str, name: str) -> str:
            return graph.node("Tanh", graph.emit(self.missing, x, f"{name}.net"))

    with pytest.raises(ConfigurationError, match=r"readout: OwnBroken\.emit failed: AttributeError.*correct it"):
        plan_of(language_model(stack, OwnBroken()))
    replaced: Any = LinearReadout(40, VOCABULARY)
    replaced.forward = lambda states: nn.functional.linear(states, replaced.weight).relu()
    for readout in (Doubled(40, 5, VOCABULARY), OwnShifted(), replaced):
        plan = plan_of(language_model(stack, readout))
        certify(plan, built(plan, {})[1])

    class Shifted(nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + 1

    model = language_model(stack, LinearReadout(40, VOCABULARY))
    model.embedding.__class__ = Shifted
    with pytest.raises(ConfigurationError, match="embedding of type Shifted cannot be exported"):
        plan_of(model)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"gate_hidden": 8, "reservoir_hidden": 8},
        {"alpha_res": 0.5, "ffn_hidden": 10, "input_affine": "frozen"},
        {"scale": 0.5, "offset": 0.1, "limit": 0.6},
        {"dtype": "float64", "double": True},
        {"shared": True},
    ],
)
def test_laerc(stack: ExitStack, tmp_path: Path, keys: dict[str, Any]) -> None:
    double, shared = (keys.get(name, False) for name in ("double", "shared"))
    model = laerc(stack, **{name: value for name, value in keys.items() if name != "double"})
    model = model.double() if double else model
    manifest = export_model(model, tmp_path / "m.rhw", recorded=record_text(model, text()))
    assert [len(segment.reads) for segment in manifest.segments] == [1, 2, 2, 2]
    assert [crossing.slot for crossing in manifest.crossings] == ([0, 0, 0] if shared else [0, 1, 2])
    devices = [layer.reservoir for layer in model.reservoir_layers]
    answers_alike(model, tmp_path / "m.rhw", devices[: len(manifest.slots)])


def test_values_that_the_map_clips_are_counted(stack: ExitStack, tmp_path: Path) -> None:
    model = laerc(stack, limit=0.6)
    export_model(model, tmp_path / "m.rhw")
    # The certificate does not count in the model.
    assert [layer.saturations for layer in model.reservoir_layers] == [0, 0, 0]
    tokens = text(1, 40)
    with torch.no_grad():
        model(torch.from_numpy(tokens))
    clipped = sum(layer.saturations for layer in model.reservoir_layers)
    assert clipped > 100
    with EdgeRunner(tmp_path / "m.rhw", [layer.reservoir for layer in model.reservoir_layers]) as runner:
        runner.run(tokens)
        assert runner.clipped == clipped
        runner.reset()
        for token in tokens[0]:
            runner.step([token])
        assert runner.clipped == 2 * clipped


def test_a_map_that_clips_other_values_is_not_certified(stack: ExitStack) -> None:
    plan = plan_of(language_model(stack, LinearReadout(40, VOCABULARY), limit=0.6))
    _, sessions = built(plan, {})
    certify(plan, sessions)
    exact = plan.references[0]
    plan.references[0] = lambda values: (found := exact(values)) | {"clipped_0": found["clipped_0"] + 1}
    with pytest.raises(ConfigurationError, match=r"segment 0 of ReservoirLM.* clips \d+ values .*rounding explains 0"):
        certify(plan, sessions)
    # In int8, a rounded model drives its device with other values.
    certify(plan, sessions, bounded=False)


def test_rounding_may_clip_what_lies_on_the_limit(stack: ExitStack) -> None:
    layer = ReservoirLayer(esn(stack), scale=2, offset=0.1, limit=0.5)
    x = torch.tensor([0.25, -0.25, 0.250001, 0.249999, 0.26, 0.24, -0.26, 0.0]).reshape(1, 1, 8)
    counted = {name: int(value) for name, value in mapped_by(layer, x, 0).items() if name != "drive_0"}
    assert counted == {"clipped_0": 3, "clipped_0_on_the_edge": 4}
    vectors = np.full((VOCABULARY, 8), 0.5, np.float32)
    model = ReservoirLM(given_embedding(vectors), ReservoirLayer(esn(stack), limit=0.5), LinearReadout(40, VOCABULARY))
    plan = plan_of(model)
    exact = plan.references[0]
    plan.references[0] = lambda values: (found := exact(values)) | {"clipped_0": found["clipped_0"] + 8}
    certify(plan, built(plan, {})[1])


@pytest.mark.parametrize("kind", [RidgeReadout, RLSReadout, LMSReadout])
@pytest.mark.parametrize(("connected", "dtype"), [(False, "float32"), (True, "float32"), (True, "float64")])
def test_linear_readouts(stack: ExitStack, tmp_path: Path, kind: Any, connected: bool, dtype: str) -> None:
    device = esn(stack, dtype=dtype)
    u = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 400, 8)).astype(dtype)
    device.reset(2)
    states = device.run(u)
    targets = np.roll(u[..., :3], 2, 1)
    readout = kind(input_connection=connected)
    readout.fit(states, targets, u if connected else None)
    recorded = record_series(device, u)
    manifest = export_model(readout, tmp_path / "m.rhw", reservoirs=device, recorded=recorded)
    assert verify(tmp_path / "m.rhw").passed
    assert manifest.certificate.segments[0].recorded_steps == 800
    expected = readout.predict(states, u if connected else None)
    with EdgeRunner(tmp_path / "m.rhw", device) as runner:
        within(runner.run(u), expected)
        runner.reset(2)
        within(np.stack([runner.step(u[:, step]) for step in range(20)], 1), expected[:, :20])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_that_cancel_are_summed_in_double(stack: ExitStack, tmp_path: Path, dtype: str) -> None:
    """A ridge regression with a small penalty: what float32 loses is more than the certificate allows."""
    device = esn(stack, nodes=120, inputs=1, spectral_radius=0.9, dtype=dtype)
    u = np.random.default_rng(0).uniform(0, 0.02, (1, 3000, 1)).astype(dtype)
    states = np.asarray(device.run(u))
    readout = RidgeReadout(1e-12).fit(states, 50 * np.roll(u, 12, 1))
    exact = readout.predict(states.astype(np.float64))
    single = states.astype(np.float32) @ readout.weights_.T.astype(np.float32) + readout.bias_.astype(np.float32)
    assert np.abs(single - exact).max() > BOUND
    export_model(readout, tmp_path / "m.rhw", reservoirs=device, recorded=record_series(device, u))
    assert verify(tmp_path / "m.rhw").passed
    with EdgeRunner(tmp_path / "m.rhw", device) as runner:
        within(runner.run(u), exact)


def counts(nodes: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """States as a converter gives them, 8192 ± 4000, of nodes that are much alike; and what is to be read from them."""
    random = np.random.default_rng(0)
    sources = random.uniform(-1, 1, (1, 3000, 3))
    mixed = np.tanh(sources @ random.normal(size=(3, nodes)) + random.normal(size=nodes))
    states = (8192 + 4000 * mixed + random.normal(size=mixed.shape)).astype(np.float32)
    return states, np.sin(6 * sources[..., :2])


@pytest.mark.parametrize("kind", ["ridge", "rls", "loaded"])
def test_counts_of_a_converter_without_a_declared_range(tmp_path: Path, kind: str) -> None:
    """Weights that cancel are found by how large the states of the training were, not by a size of 1."""
    states, targets = counts()
    readout: Any = RLSReadout() if kind == "rls" else RidgeReadout(1e-4)
    readout.fit(states, targets)
    if kind == "loaded":
        readout.save(tmp_path / "r.safetensors")
        readout = RidgeReadout.load(tmp_path / "r.safetensors")
    identity = Identity(vendor="bench", model="converter", simulated=False)
    spec = ReservoirSpec(inputs=1, nodes=200, identity=identity)
    recorded = {"inputs": np.zeros((1, 300, 1), np.float32), "states_0": states[:, :300]}
    plan = plan_of_states(readout, spec)
    _, (session,) = built(plan, {})
    certificate, _ = certify(plan, [session], recorded=recorded)
    (certified,) = certificate.segments
    assert certified.limit is not None
    assert certified.error <= certified.limit
    drawn = random_inputs(plan, (3, 50), np.random.default_rng(0))["states_0"]
    assert drawn.dtype == np.float32
    assert drawn.mean() == pytest.approx(states.mean(), rel=0.1)
    assert drawn.std() == pytest.approx(states.std(), rel=0.2)
    exact = readout.predict(states.astype(np.float64))
    (got,) = session.run(["outputs"], {"states_0": states})
    within(got, exact)
    # What was exported while every state was taken to be of size 1.
    single = states @ readout.weights_.T.astype(np.float32) + readout.bias_.astype(np.float32)
    assert np.abs(single - exact).max() > BOUND * max(1.0, float(np.abs(exact).max()))


def test_a_transient_says_nothing_of_what_single_precision_loses(tmp_path: Path) -> None:
    """From rest, a readout that was trained behind a washout may answer with anything."""
    config = {"kind": "esn", "nodes": 60, "inputs": 1, "seed": 1, "activation": "relu", "leak_rate": 0.1}
    with open_reservoir(config) as device:
        u = np.random.default_rng(0).uniform(0, 1, (1, 5000, 1)).astype(np.float32)
        states = np.asarray(device.run(u))
        readout = RidgeReadout(1e-4, washout=500).fit(states[:, :4000], np.sin(6 * np.roll(u, 2, 1))[:, :4000])
        readout.save(tmp_path / "r.safetensors")
        for number, one in enumerate((readout, RidgeReadout.load(tmp_path / "r.safetensors"))):
            path = tmp_path / f"{number}.rhw"
            export_model(one, path, reservoirs=device, recorded=record_series(device, u[:, 4000:4300]), probe=False)
            with EdgeRunner(path, device) as runner:
                later = runner.run(u)[:, 4000:]
            within(later, readout.predict(states[:, 4000:].astype(np.float64)))


def test_states_that_float32_cannot_hold(tmp_path: Path) -> None:
    """A device in float64 that declares no range: differences of large numbers, with weights that are exact."""
    u = np.random.default_rng(0).uniform(-0.5, 0.5, 3000)
    states = 2048 + np.stack([np.roll(u, k) for k in range(6)], 1)[None]
    readout = RidgeReadout(1e-9).fit(states, np.stack([np.roll(u, 1), np.roll(u, 3)], 1)[None])
    identity = Identity(vendor="lab", model="taps", simulated=False)
    spec = ReservoirSpec(inputs=1, nodes=6, dtype="float64", identity=identity)
    recorded = {"inputs": u[None, :300, None], "states_0": states[:, :300]}
    plan = plan_of_states(readout, spec, recorded=recorded)
    certify(plan, built(plan, {})[1], recorded=recorded)


def test_inputs_are_as_large_as_the_device_takes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    states, u = random.uniform(-1, 1, (1, 500, 5)), random.uniform(999, 1001, (1, 500, 2))
    readout = RidgeReadout(1e-9, input_connection=True).fit(states, u[..., :1] - u[..., 1:], u)
    identity = Identity(vendor="lab", model="box", simulated=False)
    for limits in ((0.0, 1001.0), None):
        spec = ReservoirSpec(
            inputs=2, nodes=5, dtype="float64", identity=identity, state_range=(-1, 1), input_range=limits
        )
        recorded = {"inputs": u, "states_0": states}
        plan = plan_of_states(readout, spec, recorded=recorded)
        certify(plan, built(plan, {})[1], recorded=recorded)


def test_a_declared_range_goes_before_the_training(stack: ExitStack) -> None:
    device = esn(stack)
    u = np.random.default_rng(0).uniform(-0.1, 0.1, (1, 300, 8)).astype(np.float32)
    plan = plan_of(RidgeReadout(1e-3).fit(device.run(u), u[..., :2]), [device])
    assert np.abs(random_inputs(plan, (3, 50), np.random.default_rng(0))["states_0"]).max() > 0.9
    assert RLSReadout(standardise=False).fit(device.run(u), u[..., :2]).linear_form().scale is None


def test_the_limit_holds_for_each_trial(stack: ExitStack) -> None:
    """Large outputs for random states do not excuse an error where the task's are small."""
    device = esn(stack)
    u = np.random.default_rng(0).uniform(-0.1, 0.1, (1, 300, 8)).astype(np.float32)
    readout = RidgeReadout(1e-3).fit(device.run(u), u[..., :2])
    plan = plan_of(readout, [device])
    _, sessions = built(plan, {})
    recorded = record_series(device, u)
    exact = plan.references[0]
    spread = spread_of(exact(recorded)["outputs"])
    for error, refused in ((0.5e-4, False), (2e-4, True)):
        plan.references = [lambda values, error=error: {"outputs": exact(values)["outputs"] + error * spread}]
        said = r"differs from the model by 0\.0002 of what outputs"
        with pytest.raises(ConfigurationError, match=said) if refused else nullcontext():
            certify(plan, sessions, recorded=recorded)


def test_quantised_models_are_close(stack: ExitStack, tmp_path: Path) -> None:
    model = laerc(stack)
    export_model(model, tmp_path / "m.rhw", precision="int8")
    tokens = text(2, 50)
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).numpy()
    with EdgeRunner(tmp_path / "m.rhw", [layer.reservoir for layer in model.reservoir_layers]) as runner:
        got = runner.run(tokens)
    error = np.sqrt(np.square(got - expected).mean() / np.square(expected).mean())
    assert 1e-4 < error < 0.1
    with Bundle.open(tmp_path / "m.rhw") as bundle:
        quantised = [name for name, array in bundle.weights.items() if array.dtype == np.int8]
        assert len(quantised) == 3 * 5 + 1
        assert all(abs(bundle.weights[name]).max() == 63 for name in quantised)


@pytest.mark.slow
def test_int8_that_would_round_nothing_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    """torch.export writes such a readout, and keeps it in float32."""

    class Halved(LinearReadout):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) / 2

    model = language_model(stack, Halved(40, VOCABULARY))
    with pytest.raises(ConfigurationError, match=r"nothing of ReservoirLM.* can be rounded to int8.*in fp32"):
        export_model(model, tmp_path / "m.rhw", precision="int8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_are_finite(stack: ExitStack, tmp_path: Path, value: float, precision: Any) -> None:
    model = language_model(stack, LinearReadout(40, VOCABULARY))
    with torch.no_grad():
        next(model.readout.parameters())[0, 0] = value
    with pytest.raises(ConfigurationError, match=r"readout\.weight is not finite"):
        export_model(model, tmp_path / "m.rhw", precision=precision)
    assert not list(tmp_path.iterdir())


def test_rows_that_float32_does_not_hold(stack: ExitStack) -> None:
    """In int8 each row has a scale, which may be 0 in float32, or infinite, where the weights are in float64."""
    device = esn(stack)
    u = np.random.default_rng(0).uniform(-0.5, 0.5, (1, 300, 8)).astype(np.float32)
    states = np.asarray(device.run(u)).astype(np.float64)
    for factor, refused in ((1e-60, False), (1e60, True)):
        readout = RidgeReadout(1e-3, standardise=False).fit(states, factor * u[..., :2].astype(np.float64))
        said = r"readout\.scale is not finite"
        with pytest.raises(ConfigurationError, match=said) if refused else nullcontext():
            plan = plan_of(readout, [device], "int8")
            certify(plan, built(plan, {})[1], bounded=False)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_numbers_that_overflow_are_not_certified(stack: ExitStack, tmp_path: Path, precision: Any) -> None:
    model = language_model(stack, LowRankReadout(40, VOCABULARY, 4))
    with torch.no_grad():
        for parameter in model.readout.parameters():
            parameter.mul_(1e30)
    with pytest.raises(ConfigurationError, match=r"segment 1 of ReservoirLM.* gives infinity or NaN \(outputs\)"):
        export_model(model, tmp_path / "m.rhw", precision=precision, probe=False)
    assert not list(tmp_path.iterdir())


def test_weights_lie_in_the_file_once_and_graphs_are_plain_onnx(stack: ExitStack, tmp_path: Path) -> None:
    model = laerc(stack)
    export_model(model, tmp_path / "m")
    file = tmp_path / "m" / "graphs" / "weights.safetensors"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # The norms before the reservoirs have no weights of their own, but ones and zeros; α and β are folded into others'.
    extra = 3 * (8 + 8) - 3 * 2
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert file.stat().st_size - header == 4 * (parameters + extra)
    assert header % 64 == 0
    for path in sorted((tmp_path / "m" / "graphs").glob("*.onnx")):
        onnx.checker.check_model(str(path), full_check=True)
        loaded = onnx.load(str(path))
        assert loaded.ir_version == 8
        assert [(one.domain, one.version) for one in loaded.opset_import] == [("", 17)]
        assert {node.domain for node in loaded.graph.node} == {""}
        assert str(tmp_path) not in str(loaded.metadata_props)
        assert all(value.type.tensor_type.shape.dim[0].dim_param == "batch" for value in loaded.graph.input)


def test_a_graph_that_is_wrong_is_not_certified(stack: ExitStack) -> None:
    model = language_model(stack, LinearReadout(40, VOCABULARY))
    plan = plan_of(model)
    _, sessions = built(plan, {})
    certify(plan, sessions)
    with torch.no_grad():
        next(model.readout.parameters()).add_(1e-3)
    with pytest.raises(ConfigurationError, match=r"segment 1 of ReservoirLM.* differs from the model by 0\."):
        certify(plan, sessions)


def test_what_cannot_be_exported(stack: ExitStack, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a Linear cannot be exported"):
        export_model(nn.Linear(2, 2), tmp_path / "m.rhw")
    with pytest.raises(ConfigurationError, match="exported with its reservoir"):
        export_model(RidgeReadout(), tmp_path / "m.rhw")
