from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from published_weights import load_published, published_reservoirs
from served import ipc_address, served
from torch import Tensor, nn
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, StateLost
from reservoir_hw.networks.language_weights import norm_scaled_weights, radius_schedule, reservoir_configurations
from reservoir_hw.readout.models.laerc import LAERC
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

V, D, L = 11, 6, 3
Arrays = dict[str, np.ndarray]


def configurations(width: int = D, layers: int = L, **changes: Any) -> list[dict[str, Any]]:
    return reservoir_configurations(
        width, layers, **{"nodes": 9, "seed": 3, "dtype": "float64", "bias_scaling": 0.1, **changes}
    )


@contextmanager
def opened(configs: list[dict[str, Any]]) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        yield [stack.enter_context(open_reservoir(config)) for config in configs]


def shaken(model: LAERC, seed: int = 0) -> LAERC:
    """In float64, every parameter away from where training starts, so that none of them can hide."""
    torch.manual_seed(seed)
    model.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + ("norm" in name and name.endswith("weight")))
    return model


def texts(batch: int = 2, time: int = 7, vocabulary: int = V, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocabulary, (batch, time)))


# ---- the equations of appendix A, as they are written --------------------------------------------


def layer_norm(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normed * p.get(f"{name}.weight", 1.0) + p.get(f"{name}.bias", 0.0)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def affine(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def drive(reservoir: Any, u: np.ndarray) -> np.ndarray:
    weights, s = reservoir.weights, np.zeros((len(u), reservoir.weights.nodes))
    W = weights.recurrent()
    states = np.empty((*u.shape[:2], weights.nodes))
    for t in range(u.shape[1]):
        s = np.tanh(s @ W.T + u[:, t] @ weights.W_in.T + weights.bias)  # A3
        states[:, t] = s
    return states


def equations(
    tokens: np.ndarray, p: Arrays, layers: int, reservoir: Callable[[int, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Logits (batch, time, V) by A1-A18; `reservoir(l, u)` gives the states of layer l."""
    x = p["embedding.weight"][tokens]  # A1
    for layer in range(layers):
        b = {name.removeprefix(f"blocks.{layer}."): array for name, array in p.items()}
        s = reservoir(layer, layer_norm(x, b, "norm_res"))  # A2, A3
        u = gelu(affine(layer_norm(s, b, "norm_states"), b, "reservoir_mlp.0"))  # A6, A7
        r = np.exp(b["beta"]) * affine(u, b, "reservoir_mlp.2")  # A8
        z = layer_norm(np.concatenate([x, r], -1), b, "norm_mix")  # A9, A10
        g = 1 / (1 + np.exp(-affine(z, b, "gate")))  # A11
        m = g * r + (1 - g) * x  # A12
        h = gelu(affine(layer_norm(m, b, "norm_ffn"), b, "ffn.0"))  # A13, A14
        x = m + b["alpha"] * affine(h, b, "ffn.2")  # A15, A16
    return layer_norm(x, p, "norm") @ p["embedding.weight"].T  # A17, A18


def parameters(model: LAERC) -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> float:
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))  # A19
    return -float(np.take_along_axis(log_p, targets[..., None], -1).mean())


def test_the_model_is_that_of_the_paper() -> None:
    tokens = texts()
    with opened(configurations()) as reservoirs:
        model = shaken(LAERC(V, D, [ReservoirLayer(r) for r in reservoirs]))
        expected = equations(tokens.numpy(), parameters(model), L, lambda layer, u: drive(reservoirs[layer], u))
        np.testing.assert_allclose(model(tokens).detach().numpy(), expected, rtol=0, atol=1e-10)
        targets = texts(seed=2)
        loss = model.loss(tokens, targets).item()
        assert loss == pytest.approx(cross_entropy(expected, targets.numpy()), abs=1e-10)


@pytest.mark.parametrize("gradient", ["stop", "through"])
def test_gradients_equal_finite_differences(gradient: Any) -> None:
    tokens, targets = texts(), texts(seed=2)
    with opened(configurations(gradients=gradient == "through")) as reservoirs:
        model = shaken(LAERC(V, D, [ReservoirLayer(r, gradient=gradient) for r in reservoirs]))
        model.loss(tokens, targets).backward()
        p = parameters(model)
        held: dict[int, np.ndarray] = {}

        def states(layer: int, u: np.ndarray) -> np.ndarray:
            if gradient == "through":
                return drive(reservoirs[layer], u)
            # No gradient passes the reservoir: to the trained weights, its states are constants.
            return held.setdefault(layer, drive(reservoirs[layer], u))

        def loss() -> float:
            return cross_entropy(equations(tokens.numpy(), p, L, states), targets.numpy())

        loss()
        names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert ("blocks.0.norm_res.weight" in names) == (gradient == "through")
        random = np.random.default_rng(5)
        for name in sorted(names):
            direction, at, step = random.standard_normal(p[name].shape), p[name].copy(), 1e-5
            slopes = []
            for sign in (1, -1):
                p[name][...] = at + sign * step * direction
                slopes.append(sign * loss())
            p[name][...] = at
            found = model.get_parameter(name).grad
            assert found is not None
            by_model = float((found.numpy() * direction).sum())
            assert by_model == pytest.approx(sum(slopes) / (2 * step), rel=1e-5, abs=1e-8), name


def test_the_tied_matrix_is_one() -> None:
    with opened(configurations()) as reservoirs:
        model = LAERC(V, D, [ReservoirLayer(r) for r in reservoirs])
        assert model.readout.weight is model.embedding.weight
        R, H = 9, 9
        block = 2 * R + (R * H + H) + (H * D + D) + 1 + 4 * D + (2 * D * D + D) + 2 * D + (8 * D * D + 5 * D) + 1
        assert sum(p.numel() for p in model.parameters()) == V * D + L * block + 2 * D


def test_a_fresh_block_is_gate_and_reservoir_alone() -> None:
    torch.manual_seed(0)
    with opened(configurations(width=64, layers=1, nodes=64)) as reservoirs:
        model = LAERC(300, 64, [ReservoirLayer(r) for r in reservoirs])
        scalars = {name: p.item() for name, p in model.named_parameters() if p.ndim == 0}
        assert scalars == {"blocks.0.beta": 0.0, "blocks.0.alpha": 0.0}
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                assert float(module.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
            if isinstance(module, nn.Linear) and module.bias is not None:
                assert not module.bias.any()
        assert model.trainable_upstream


def test_options_change_what_they_say() -> None:
    with opened(configurations(layers=1)) as reservoirs:
        (reservoir,) = reservoirs

        def block(**options: Any) -> Any:
            return LAERC(V, D, [ReservoirLayer(reservoir)], **options).blocks[0]

        assert block(alpha_res=0.5).reservoir_mlp[0].out_features == round(0.5 * 9)
        assert block(reservoir_hidden=D).reservoir_mlp[0].out_features == D
        assert block(ffn_hidden=5).ffn[0].out_features == 5
        assert [type(part) for part in block(gate_hidden=D).gate] == [nn.Linear, nn.GELU, nn.Linear]
        assert block().norm_res.weight is None
        frozen = block(input_affine="frozen").norm_res
        assert frozen.weight is not None
        assert not frozen.weight.requires_grad
        for options, message in (
            ({"input_affine": "trained"}, "no gradient passes"),
            ({"input_affine": "some"}, "none, frozen or trained"),
            ({"alpha_res": 0.01}, "leaves no hidden unit"),
            ({"alpha_res": -1.0}, "alpha_res"),
            ({"gate_hidden": 0}, "gate_hidden"),
            ({"reservoir_hidden": 0}, "reservoir_hidden"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                block(**options)
        layer = ReservoirLayer(reservoir)
        for layers, message in (
            ([], "at least one layer"),
            ([reservoir], "at least one layer"),
            ([layer, layer], "of its own"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                LAERC(V, D, layers)
        with pytest.raises(ConfigurationError, match="layer 1 has 6 inputs, the model's width is 5"):
            LAERC(V, 5, [layer])


# ---- one device or several, at once or token by token ------------------------------------------


def test_one_shared_device_equals_a_device_for_each_layer() -> None:
    tokens = texts()
    config = configurations(layers=1)[0]
    with opened([config] * L) as separate, open_reservoir(config) as shared:
        apart = shaken(LAERC(V, D, [ReservoirLayer(r) for r in separate]))
        together = shaken(LAERC(V, D, [ReservoirLayer(shared) for _ in range(L)]))
        torch.testing.assert_close(together(tokens), apart(tokens), rtol=0, atol=0)
        assert list(together.generate([1, 2, 3], 12, seed=4)) == list(apart.generate([1, 2, 3], 12, seed=4))


def test_reservoirs_that_a_subclass_adds_begin_too() -> None:
    class Larger(LAERC):
        def __init__(self, first: ReservoirLayer, layers: list[ReservoirLayer]) -> None:
            super().__init__(V, D, layers)
            self.first, self.back = first, torch.nn.Linear(first.nodes, D)

        def advance(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens)
            x = x + self.back(self.first.advance(x))
            for block in self.blocks:
                x = block(x)
            return self.norm(x)

    with opened(configurations()) as (first, *others):
        model = Larger(ReservoirLayer(first), [ReservoirLayer(other) for other in others])
        tokens = texts()[:1]
        torch.testing.assert_close(model(tokens), model(tokens), rtol=0, atol=0)


@pytest.mark.parametrize("shared", [False, True])
def test_token_by_token_equals_the_whole(shared: bool) -> None:
    tokens = texts()
    configs = configurations()
    with opened(configs[:1] if shared else configs) as reservoirs:
        model = shaken(LAERC(V, D, [ReservoirLayer(r) for r in (reservoirs * L)[:L]])).eval()
        with torch.no_grad():
            whole = model(tokens)
            model.begin(2)
            steps = [model.readout(model.advance(tokens[:, t : t + 1])) for t in range(tokens.shape[1])]
            torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-12)
            text = [3, 1, 4]
            for token in model.generate(text, 10, temperature=0):
                assert token == int(model_of(model, text).argmax())
                text.append(token)


def model_of(model: LAERC, text: list[int]) -> np.ndarray:
    """Logits of the next token by the equations, the whole text again."""
    reservoirs = [layer.reservoir for layer in model.reservoir_layers]
    logits = equations(np.array([text]), parameters(model), L, lambda layer, u: drive(reservoirs[layer], u))
    return logits[0, -1]


def test_a_device_that_cannot_be_frozen_serves_whole_texts_but_not_tokens_in_turn() -> None:
    with Toy(dtype="float64") as film:
        model = LAERC(V, 2, [ReservoirLayer(film) for _ in range(L)]).double()
        model(texts())
        with pytest.raises(StateLost, match="a device of its own"):
            list(model.generate([1, 2], 3))
        alone = LAERC(V, 2, [ReservoirLayer(film)]).double()
        assert len(list(alone.generate([1, 2], 3))) == 3


# ---- training ------------------------------------------------------------------------------------


def losses(model: LAERC, steps: int = 30) -> list[float]:
    """The loss curve of a model that learns to count."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    curve = []
    for step in range(steps):
        first = np.random.default_rng(step).integers(0, V, (4, 1))
        text = torch.from_numpy((first + np.arange(17)) % V)
        loss = model.loss(text[:, :-1], text[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        curve.append(loss.item())
    return curve


@pytest.mark.slow
def test_training_with_reservoirs_behind_zeromq_gives_the_same_losses() -> None:
    options: dict[str, Any] = {"scale": 0.8, "limit": 1.0}
    configs = configurations(dtype="float32")

    def train(reservoirs: list[Any]) -> tuple[list[float], list[int]]:
        torch.manual_seed(7)
        layers = [ReservoirLayer(reservoir, **options) for reservoir in reservoirs]
        return losses(LAERC(V, D, layers)), [layer.saturations for layer in layers]

    with opened(configs) as simulated:
        curve, saturations = train(simulated)
    with ExitStack() as stack:
        addresses = [stack.enter_context(ipc_address()) for _ in configs]
        for config, address in zip(configs, addresses, strict=True):
            stack.enter_context(served(open_reservoir(config), address))
        remote = stack.enter_context(opened([{"kind": "zmq", "address": address} for address in addresses]))
        assert (curve, saturations) == train(remote)
    assert curve[-1] < 0.9 * curve[0]
    assert min(saturations) > 0


def test_the_twin_policy_reaches_every_weight() -> None:
    with opened(configurations()) as devices, opened(configurations(gradients=True)) as twins:
        pairs = zip(devices, twins, strict=True)
        layers = [ReservoirLayer(device, gradient="twin", twin=twin) for device, twin in pairs]
        model = shaken(LAERC(V, D, layers))
        model.loss(texts(), texts(seed=2)).backward()
        simulated = shaken(LAERC(V, D, [ReservoirLayer(twin, gradient="through") for twin in twins]))
        simulated.loss(texts(), texts(seed=2)).backward()
        for (name, by_twin), true in zip(model.named_parameters(), simulated.parameters(), strict=True):
            assert true.grad is not None, name
            assert by_twin.grad is not None, name
            torch.testing.assert_close(by_twin.grad, true.grad, rtol=1e-9, atol=1e-12, msg=name)


def test_weights_that_are_not_numbers_are_one_clear_error() -> None:
    with opened(configurations()) as reservoirs:
        model = shaken(LAERC(V, D, [ReservoirLayer(r) for r in reservoirs]))
        with torch.no_grad():
            model.blocks[0].gate.bias[2] = float("nan")  # type: ignore[index,union-attr]
        with pytest.raises(InputRangeError, match="diverged"):
            model.loss(texts(), texts())
        with pytest.raises(InputRangeError, match="token 11"):
            model.loss(texts() + 1, texts())


# ---- the reservoirs of the paper, and those of the authors' code ------------------------------------------


def test_the_radius_schedule() -> None:
    assert radius_schedule(1) == [0.95]
    assert radius_schedule(5) == pytest.approx([0.95, 0.96, 0.97, 0.98, 0.99])
    with opened(reservoir_configurations(16, 3)) as reservoirs:
        for reservoir, radius in zip(reservoirs, (0.95, 0.97, 0.99), strict=True):
            W = reservoir.weights.recurrent()
            assert W.shape == (64, 64)
            assert np.abs(np.linalg.eigvals(W)).max() == pytest.approx(radius, rel=1e-6)
            assert reservoir.weights.W_in.var() == pytest.approx(1 / 16, rel=0.15)
    with pytest.raises(ConfigurationError, match="layers"):
        radius_schedule(0)


def test_weights_scaled_to_a_norm_can_be_uploaded() -> None:
    first, second = norm_scaled_weights(8, 2, norm=0.9)
    assert not np.array_equal(first["W"], second["W"])
    for weights in (first, second):
        assert np.linalg.norm(weights["W"], 2) == pytest.approx(0.9)
        assert (weights["W"].shape, weights["W_in"].shape) == ((32, 32), (32, 8))
        assert not weights["bias"].any()
    with open_reservoir(reservoir_configurations(8, 1)[0]) as reservoir:
        reservoir.upload(first)
        np.testing.assert_array_equal(reservoir.weights.recurrent(), first["W"])  # type: ignore[attr-defined]


class PublishedBlock(nn.Module):
    """The block of the authors' code, from its description and the names of its weights."""

    def __init__(self, width: int, nodes: int) -> None:
        super().__init__()
        self.ln_in = nn.LayerNorm(width)
        self.rnn = nn.RNN(width, nodes, batch_first=True)
        self.res_mlp = nn.Sequential(nn.LayerNorm(nodes), nn.Linear(nodes, width), nn.GELU(), nn.Linear(width, width))
        self.res_log_scale = nn.Parameter(torch.tensor(0.0))
        self.mix_ln = nn.LayerNorm(2 * width)
        self.mix_gate = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width))
        self.ln_ffn = nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.ffn_alpha = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        r = torch.exp(self.res_log_scale) * self.res_mlp(self.rnn(self.ln_in(x))[0])
        g = torch.sigmoid(self.mix_gate(self.mix_ln(torch.cat([x, r], -1))))
        m = g * r + (1 - g) * x
        return m + self.ffn_alpha * self.ffn(self.ln_ffn(m))


class Published(nn.Module):
    def __init__(self, width: int, nodes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, width)
        self.blocks = nn.ModuleList(PublishedBlock(width, nodes) for _ in range(L))
        self.norm_f = nn.LayerNorm(width)
        self.out = nn.Linear(width, V, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm_f(x))


@pytest.fixture
def published() -> Published:
    torch.manual_seed(3)
    model = Published(D, 9).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def test_published_weights_give_the_published_model_and_its_gradients(published: Published) -> None:
    state = published.state_dict()
    tokens = texts()
    with opened(configurations(gradients=True)) as reservoirs:
        for reservoir, weights in zip(reservoirs, published_reservoirs(state), strict=True):
            reservoir.upload(weights)
        layers = [ReservoirLayer(reservoir, gradient="through") for reservoir in reservoirs]
        model = LAERC(V, D, layers, reservoir_hidden=D, gate_hidden=D).double()
        load_published(model, state)
        expected = published(tokens)
        torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-11)
        nn.functional.cross_entropy(expected.flatten(0, 1), texts(seed=2).flatten()).backward()
        model.loss(tokens, texts(seed=2)).backward()
        true = dict(published.named_parameters())
        for ours, theirs in (("embedding", "embed"), ("blocks.0.norm_res", "blocks.0.ln_in"), ("norm", "norm_f")):
            torch.testing.assert_close(
                model.get_parameter(f"{ours}.weight").grad, true[f"{theirs}.weight"].grad, rtol=0, atol=1e-11
            )
