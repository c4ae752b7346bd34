from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from shared import uniform

pytest.importorskip("numba")
torch = pytest.importorskip("torch")

from reservoir_hw import open_reservoir  # noqa: E402
from reservoir_hw.backends.simulated import engines as engine_choice  # noqa: E402
from reservoir_hw.backends.simulated.engines import EngineChoice, network_engine_on_gpu  # noqa: E402
from reservoir_hw.core.errors import ConfigurationError, MissingExtra, NotSupported  # noqa: E402
from reservoir_hw.core.reservoir_config import reservoir_config  # noqa: E402

WANTED: dict[str, Any] = {
    "kind": "esn", "device": "cpu", "gradients": False, "dtype": "float32",
    "offers": ("numba", "torch", "cuda_graphs", "triton"), "on_gpu": "triton",
}  # fmt: skip


def chosen(wanted: Any, over: dict[str, Any]) -> str:
    """The engine of `WANTED` with changes."""
    given = {**WANTED, **over}
    on_gpu = given.pop("on_gpu")
    return EngineChoice(wanted, **given).made(on_gpu)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch that says it has one: the choice needs no more."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("over", "triton", "engine"),
    [
        ({}, True, "numba"),
        ({"gradients": True}, True, "torch"),
        ({"gradients": True, "device": "cuda"}, True, "torch"),
        ({"device": "cuda"}, True, "triton"),
        ({"device": "cuda", "on_gpu": "cuda_graphs"}, True, "cuda_graphs"),
        ({"device": "cuda"}, False, "cuda_graphs"),
        ({"device": "cuda", "dtype": "float64"}, True, "cuda_graphs"),
        ({"device": "cuda:1", "offers": ("numba", "torch", "triton")}, False, "torch"),
    ],
)
def test_the_table(monkeypatch: pytest.MonkeyPatch, over: dict[str, Any], triton: bool, engine: str) -> None:
    monkeypatch.setattr(engine_choice, "have_triton", lambda: triton)
    assert chosen(None, over) == engine


def test_networks_on_a_gpu_as_the_documentation_says() -> None:
    def dense(nodes: int, storage_bytes: int = 4, matrices: int = 1) -> str:
        return network_engine_on_gpu(sparse=False, nonzeros=matrices * nodes**2, storage_bytes=storage_bytes)

    assert [dense(404), dense(405)] == ["triton", "cuda_graphs"]
    assert [dense(572, 2), dense(573, 2)] == ["triton", "cuda_graphs"]
    assert [dense(233, matrices=3), dense(234, matrices=3)] == ["triton", "cuda_graphs"]
    sparse = [network_engine_on_gpu(sparse=True, nonzeros=n, storage_bytes=4) for n in (200_000, 200_001)]
    assert sparse == ["triton", "torch"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("engine", "over", "error", "message"),
    [
        ("numba", {"gradients": True}, ConfigurationError, "gradients pass through torch alone"),
        ("triton", {"gradients": True}, ConfigurationError, "gradients pass through torch alone"),
        ("numba", {"device": "cuda"}, ConfigurationError, "numba, which computes on the CPU"),
        ("cuda_graphs", {}, ConfigurationError, "cuda_graphs, which needs reservoir.device cuda"),
        ("cuda_graphs", {"offers": ("torch",), "device": "cuda"}, ConfigurationError, "this esn can use only torch"),
        ("triton", {}, ConfigurationError, "TRITON_INTERPRET=1"),
        ("triton", {"device": "cuda", "dtype": "float64"}, ConfigurationError, "computes in float32"),
        ("triton", {"device": "cuda"}, MissingExtra, r"pip install 'reservoir-hw\[gpu\]'"),
    ],
)
def test_an_engine_that_does_not_fit_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, engine: Any, over: dict[str, Any], error: type[Exception], message: str
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(engine_choice, "have_triton", lambda: False)
    with pytest.raises(error, match=message) as caught:
        chosen(engine, over)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", ["esn", "gated_esn"])
def test_torch_on_the_cpu_agrees_and_the_provenance_names_it(kind: str) -> None:
    loop = {"saturation": 0.8, "bandwidth": 0.7, "noise": 0.01, "bits": 12}
    config = {"kind": kind, "nodes": 40, "inputs": 2, "nonidealities": {"loop": loop, "readout": {"noise": 0.01}}}
    u = uniform(3, 30, 2)
    states = {}
    for engine in ("numba", "torch"):
        with open_reservoir({**config, "engine": engine}) as network:
            assert network.provenance()["engine"] == engine
            assert not network.spec.differentiable
            network.reset(3)
            states[engine] = np.asarray(network.run(u))
    # Rounding in the loop: a difference in the last place may become one step of 2/2^12.
    np.testing.assert_allclose(states["torch"], states["numba"], rtol=0, atol=1e-3)
    assert np.median(np.abs(states["torch"] - states["numba"])) < 1e-6


NETWORKS: list[dict[str, Any]] = [
    {"kind": "esn", "leak_rate": [0.2, 0.9], "connections_per_node": 7, "input_scaling": 0.4, "bias_scaling": 0.1},
    {"kind": "gated_esn", "reset_spectral_radius": 1.5, "reset_input_scaling": 2.0, "update_bias": -0.4},
]


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: config["kind"])
def test_gradients_pass_where_asked_for_and_torch_agrees_with_numba(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**config, "inputs": 3, "nodes": 60, "seed": 5}
    u = torch.from_numpy(uniform(2, 30, 3)).requires_grad_()
    with open_reservoir({**config, "gradients": True}) as network:
        network.reset(2)
        states: Any = network.run(u)
        states[:, -1].sum().backward()
        assert u.grad is not None
        assert u.grad.abs().sum() > 0
        assert network.spec.differentiable
        assert network.provenance()["engine"] == "torch"
    with open_reservoir(config) as network:
        network.reset(2)
        np.testing.assert_allclose(states.detach(), network.run(u.detach().numpy()), rtol=0, atol=2e-6)
        assert network.provenance()["engine"] == "numba"
        with pytest.raises(NotSupported, match="not differentiable"):
            network.run(u)
    # Without numba torch takes over.
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "numba" else find(name))
    with open_reservoir(config) as network:
        assert network.provenance()["engine"] == "torch"
        assert network.run(u.detach().numpy()[:1]).shape == (1, 30, 60)


@pytest.mark.slow
def test_weights_of_bfloat16_are_those_of_torch() -> None:
    config = {"kind": "esn", "nodes": 30, "inputs": 2, "weight_storage": "bfloat16"}
    with open_reservoir(config) as esn:
        held: Any = esn
        W = torch.from_numpy(held.weights.recurrent())
    torch.testing.assert_close(W.bfloat16().double(), W, rtol=0, atol=0)


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "esn", "device": "cuda", "engine": "numba"},
        {"kind": "esn", "engine": "cuda_graphs"},
        {"kind": "gated_esn", "engine": "triton", "dtype": "float64"},
        {"kind": "delay_loop", "device": "cuda", "engine": "cuda_graphs"},
    ],
)
def test_a_file_that_no_machine_could_run_is_refused_as_it_is_read(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"reservoir\.engine is"):
        reservoir_config({"nodes": 5, **config})
