"""Delay loops on a GPU, each engine beside numba. The Triton kernel is also interpreted, in `test_triton.py`."""

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
LINEAR = {"noise": 0.02, "bandwidth": 0.7, "mismatch": 0.05, "drift": 0.01, "dead_nodes": 0.1}
LOOPS = {"ideal": {}, "linear": LINEAR, "in turn": {**LINEAR, "saturation": 0.8}}


def states_of(config: dict[str, Any], u: np.ndarray, cuts: tuple[int, ...] = ()) -> np.ndarray:
    with open_reservoir(config) as loop:
        loop.reset(len(u))
        return np.concatenate([np.asarray(loop.run(part)) for part in np.split(u, cuts, axis=1)], axis=1)


# Blocks of one warp and of several, of a part of a round, and rounds of more than one block.
@pytest.mark.parametrize(
    ("nodes", "delay", "batch", "steps"), [(23, 24, 4, 150), (400, 401, 600, 12), (400, 150, 3, 12), (2500, 5000, 2, 5)]
)
@pytest.mark.parametrize("terms", LOOPS)
@pytest.mark.parametrize("physics", ["mackey_glass", "ikeda", "paquot"])
@pytest.mark.parametrize("engine", ["torch", "triton"])
def test_states_are_those_of_the_cpu_and_chunks_leave_no_seam(
    engine: str, physics: str, terms: str, nodes: int, delay: int, batch: int, steps: int
) -> None:
    if engine == "triton" and not have_triton():
        pytest.skip("triton is not installed")
    if engine == "torch" and terms == "in turn" and nodes > 23:
        pytest.skip("node by node in torch: too slow to tell anything new")
    config = {
        "kind": "delay_loop", "nodes": nodes, "inputs": 3, "physics": {"kind": physics, "input_gain": 0.7},
        "tau": 0.2 * delay, "nonidealities": {"loop": LOOPS[terms]},
    }  # fmt: skip
    u = np.random.default_rng(0).uniform(-1, 1, (batch, steps, 3)).astype(np.float32)
    on_gpu = {**config, "device": DEVICE, "engine": engine}
    whole = states_of(on_gpu, u)
    np.testing.assert_allclose(whole, states_of(config, u), rtol=0, atol=1e-5)
    # Again and to the bit: a race would show in some of so many programs.
    np.testing.assert_array_equal(states_of(on_gpu, u), whole)
    np.testing.assert_array_equal(states_of(on_gpu, u, cuts=(1, 4)), whole)
