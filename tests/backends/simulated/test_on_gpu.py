"""Every kind, engine and non-ideality on a GPU, beside numba on the CPU. Where there is no GPU, through torch there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reservoir_hw import open_reservoir
from reservoir_hw.core import seeds

torch = pytest.importorskip("torch")

KINDS: dict[str, dict[str, Any]] = {
    "dense": {"kind": "esn", "nodes": 37, "inputs": 2, "leak_rate": [0.3, 0.9], "bias_scaling": 0.1},
    "relu": {"kind": "esn", "nodes": 37, "inputs": 2, "activation": "relu", "spectral_radius": 0.5},
    "sparse": {"kind": "esn", "nodes": 150, "inputs": 2, "connections_per_node": 2},
    "ring": {"kind": "esn", "nodes": 64, "inputs": 2, "topology": "ring"},
    "large": {"kind": "esn", "nodes": 700, "inputs": 2},
    "float16": {"kind": "esn", "nodes": 130, "inputs": 2, "weight_storage": "float16"},
    "gated": {"kind": "gated_esn", "nodes": 30, "inputs": 2},
    "mackey_glass": {"kind": "delay_loop", "nodes": 24, "inputs": 2},
    "ikeda": {"kind": "delay_loop", "nodes": 24, "inputs": 2, "physics": "ikeda"},
    "paquot": {"kind": "delay_loop", "nodes": 24, "inputs": 2, "physics": "paquot"},
}
NONIDEALITIES: dict[str, dict[str, Any]] = {
    "ideal": {},
    "noise": {"loop": {"noise": 0.05}, "readout": {"noise": 0.02}},
    "loop": {"loop": {"mismatch": 0.1, "saturation": 2.0, "bandwidth": 0.7, "dead_nodes": 0.1, "drift": 0.05}},
    "readout": {"readout": {"offset": 0.05, "stuck_nodes": 0.1, "lost_samples": 0.05}},
}
ENGINES = [
    pytest.param("torch", "cpu", id="torch on the CPU", marks=pytest.mark.slow),
    *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in ("torch", "cuda_graphs", "triton")),
]


def states(config: dict[str, Any], **more: Any) -> np.ndarray:
    """Of two sequences, in chunks, with a snapshot between two of them."""
    u = np.random.default_rng(3).uniform(-1, 1, (2, 90, config["inputs"])).astype(np.float32)
    with open_reservoir({**config, **more}) as reservoir:
        reservoir.reset(2)
        first = reservoir.run(u[:, :70])
        kept = reservoir.snapshot()
        reservoir.run(u[:, :9])
        reservoir.restore(kept)
        return np.concatenate([first, reservoir.run(u[:, 70:])], axis=1)


@pytest.mark.parametrize(("engine", "device"), ENGINES)
@pytest.mark.parametrize("nonidealities", NONIDEALITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_numba(kind: str, nonidealities: str, engine: str, device: str) -> None:
    if engine == "cuda_graphs" and kind in {"sparse", "ring", "mackey_glass", "ikeda", "paquot"}:
        pytest.skip("cuda_graphs is for dense networks")
    config = {**KINDS[kind], "nonidealities": NONIDEALITIES[nonidealities]}
    wanted = states(config, engine="numba")
    found = states(config, engine=engine, device=device)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_noise_is_made_of_the_words_of_numpy(device: str) -> None:
    from reservoir_hw.backends.simulated.nonidealities.torch_noise import step_noise, step_uniform

    sequences = torch.tensor([0, 5, 2**40], device=device)
    place = (1000, 77, 131)
    uniform, normal = step_uniform(7, sequences, *place, "lost samples"), step_noise(7, sequences, *place, "loop noise")
    for row, sequence in enumerate(sequences.tolist()):
        assert np.array_equal(uniform[row].cpu().numpy(), seeds.step_uniform(7, sequence, *place, "lost samples"))
        wanted = seeds.step_noise(7, sequence, *place, "loop noise")
        assert np.abs(normal[row].cpu().numpy() - wanted).max() < 1e-6
