"""Networks on a GPU, each engine beside numba. The kernels themselves are also interpreted, in `test_triton.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
torch = pytest.importorskip("torch")

from reservoir_hw import open_reservoir  # noqa: E402
from reservoir_hw.backends.simulated.engines import have_triton  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

DEVICE = "cuda"
DENSE = [("torch", {}), ("cuda_graphs", {}), ("triton", {})]
SPARSE = [("torch", {"connections_per_node": 6}), ("triton", {"connections_per_node": 6})]
LOOP = {"noise": 0.02, "saturation": 0.8, "bandwidth": 0.7, "mismatch": 0.05, "drift": 0.01, "dead_nodes": 0.1}


def skip_without_triton(engine: str) -> None:
    if engine == "triton" and not have_triton():
        pytest.skip("triton is not installed")


def states_of(config: dict[str, Any], u: np.ndarray, cuts: tuple[int, ...] = ()) -> np.ndarray:
    with open_reservoir(config) as network:
        network.reset(len(u))
        return np.concatenate([np.asarray(network.run(part)) for part in np.split(u, cuts, axis=1)], axis=1)


# Registers hold the weights of 20 and, of an esn, 100 nodes. Larger networks read them; 600 sequences come in tiles.
@pytest.mark.parametrize(("nodes", "batch", "steps"), [(20, 4, 150), (100, 1, 150), (300, 3, 150), (100, 600, 70)])
@pytest.mark.parametrize("loop", [{}, LOOP], ids=["ideal", "noisy"])
@pytest.mark.parametrize(("engine", "links"), [*DENSE, *SPARSE])
@pytest.mark.parametrize("kind", ["esn", "gated_esn"])
def test_states_are_those_of_the_cpu_and_chunks_leave_no_seam(
    kind: str, engine: str, links: dict[str, Any], loop: dict[str, Any], nodes: int, batch: int, steps: int
) -> None:
    skip_without_triton(engine)
    config = {"kind": kind, "nodes": nodes, "inputs": 3, "nonidealities": {"loop": loop}, **links}
    u = np.random.default_rng(0).uniform(-1, 1, (batch, steps, 3)).astype(np.float32)
    on_gpu = {**config, "device": DEVICE, "engine": engine}
    whole = states_of(on_gpu, u)
    np.testing.assert_allclose(whole, states_of(config, u), rtol=0, atol=1e-5)
    # Again and to the bit: a race would show in some of so many programs.
    np.testing.assert_array_equal(states_of(on_gpu, u), whole)
    np.testing.assert_array_equal(states_of(on_gpu, u, cuts=(1, 65, 67)), whole)


@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("storage", [None, "float16", "bfloat16"])
def test_activations_and_weights_of_16_bits(activation: str, storage: str | None) -> None:
    skip_without_triton("triton")
    config = {"kind": "esn", "nodes": 120, "inputs": 3, "activation": activation, "leak_rate": [0.3, 0.9],
              "bias_scaling": 0.2, "weight_storage": storage}  # fmt: skip
    u = np.random.default_rng(0).uniform(-1, 1, (2, 100, 3)).astype(np.float32)
    expected = states_of(config, u)
    found = states_of({**config, "device": DEVICE, "engine": "triton"}, u)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("kind", ["esn", "gated_esn"])
def test_rounding_in_the_loop(kind: str) -> None:
    """A difference in the last place may become one step of the rounding, seldom."""
    skip_without_triton("triton")
    config = {"kind": kind, "nodes": 60, "inputs": 3, "nonidealities": {"loop": {"bits": 12}}}
    u = np.random.default_rng(0).uniform(-1, 1, (2, 60, 3)).astype(np.float32)
    found = states_of({**config, "device": DEVICE, "engine": "triton"}, u)
    lsb = 2 / 2**12
    steps = found / lsb
    np.testing.assert_allclose(steps, np.round(steps), rtol=0, atol=1e-3)
    assert np.median(np.abs(found - states_of(config, u))) <= lsb
