from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba")
torch = pytest.importorskip("torch")

from scipy.sparse import csr_array  # noqa: E402

from reservoir_hw import open_reservoir  # noqa: E402
from reservoir_hw.backends.simulated.esn.cpu_loop import prepare, run  # noqa: E402
from reservoir_hw.backends.simulated.esn.torch_loop import TorchWeights, prepare_members, run_members  # noqa: E402
from reservoir_hw.backends.simulated.esn.torch_loop import prepare as to_torch  # noqa: E402
from reservoir_hw.backends.simulated.esn.torch_loop import run as torch_run  # noqa: E402
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms  # noqa: E402
from reservoir_hw.networks import draw_weights  # noqa: E402

STORAGE = {"dense": {}, "sparse": {"connections_per_node": 4}}


def small(storage: str, leak=(0.3, 0.9), nodes: int = 60, inputs: int = 3):
    return draw_weights(nodes, inputs, seed=3, bias_scaling=0.2, leak_rate=leak, **STORAGE[storage])


@pytest.mark.parametrize("leak", [1.0, (0.3, 0.9)])
@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("activation", ["tanh", "relu", "identity"])
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_torch_agrees_with_the_kernels(storage, activation, batch, leak, dtype, tolerance):
    weights = small(storage, leak)
    u = np.random.default_rng(0).uniform(-1, 1, (batch, 30, 3)).astype(dtype)
    state = np.full((batch, 60), 0.1, dtype)
    first = torch.from_numpy(state.copy())
    expected = run(prepare(weights, dtype), u, state, activation=activation)
    on_torch = to_torch(weights, dtype)
    states, final = torch_run(on_torch, torch.from_numpy(u), first, activation=activation)
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(states.numpy(), expected, rtol=0, atol=tolerance * scale)
    np.testing.assert_allclose(final.numpy(), state, rtol=0, atol=tolerance * scale)


@pytest.mark.slow
@pytest.mark.parametrize("own_inputs", [True, False])
def test_a_population_agrees_with_its_members(own_inputs):
    leaks = (1.0, 0.4, (0.3, 0.9))
    members = [draw_weights(20, 3, seed=seed, bias_scaling=0.2, leak_rate=leak) for seed, leak in enumerate(leaks)]
    numbers = np.random.default_rng(0)
    u = numbers.uniform(-1, 1, (3 if own_inputs else 1, 4, 15, 3)).astype(np.float32)
    states = numbers.uniform(-1, 1, (3, 4, 20)).astype(np.float32)
    one = np.ones(20, np.float32)
    noise = numbers.normal(0, 0.1, (4, 15, 20)).astype(np.float32)
    loops = [
        None,
        LoopTerms(0.6, 0.2 * one, 0.7 * one, noise, 0.0, 1.0),
        LoopTerms(np.inf, 0 * one, one, noise, 0.01, 0.9),
    ]
    found, last = run_members(prepare_members(members), torch.from_numpy(u), torch.from_numpy(states), loops)
    for k, weights in enumerate(members):
        state = states[k].copy()
        expected = run(prepare(weights), u[k if own_inputs else 0], state, loop=loops[k])
        np.testing.assert_allclose(found[k].numpy(), expected, rtol=0, atol=2e-6)
        np.testing.assert_array_equal(last[k], found[k, :, -1])


@pytest.mark.parametrize("storage", STORAGE)
def test_gradients_of_input_and_state(storage):
    source = small("dense", nodes=6)
    if storage == "sparse":
        source = replace(source, W=csr_array(np.where(np.abs(source.W) > 0.5, source.W, 0)))
    weights = to_torch(source, np.float64)
    u = torch.rand(2, 3, 3, dtype=torch.float64, requires_grad=True)
    state = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, s: torch_run(weights, u, s), (u, state))


def test_gradients_of_the_dense_weights():
    source = to_torch(small("dense", nodes=5), np.float64)
    assert source.leak is not None
    tensors = tuple(t.clone().requires_grad_() for t in (source.W, source.W_in, source.bias, source.leak))
    u, state = torch.rand(2, 3, 3, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *w: torch_run(TorchWeights(*w), u, state)[0], tensors)


@pytest.mark.parametrize("storage", STORAGE)
def test_chunks_continue(storage):
    weights = to_torch(small(storage))
    u, state = torch.rand(2, 20, 3), torch.zeros(2, 60)
    whole, final = torch_run(weights, u, state)
    first, middle = torch_run(weights, u[:, :7], state)
    second, last = torch_run(weights, u[:, 7:], middle)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
    torch.testing.assert_close(last, final)


@pytest.mark.parametrize("connectivity", [1.0, 0.05])
@pytest.mark.parametrize("kind", ["esn", "gated_esn"])
def test_steps_round_as_a_run_does_for_many_inputs(kind, connectivity):
    u = np.random.default_rng(0).uniform(-1, 1, (4, 12, 130)).astype(np.float32)
    config = {"kind": kind, "nodes": 130, "inputs": 130, "connectivity": connectivity, "gradients": True}
    with open_reservoir(config) as esn:
        esn.reset(4)
        whole = np.asarray(esn.run(u))
        esn.reset(4)
        steps = np.stack([np.asarray(esn.step(u[:, t])) for t in range(12)], axis=1)
    np.testing.assert_array_equal(steps, whole)


@pytest.mark.parametrize("kind", ["esn", "gated_esn"])
def test_autocast_around_a_reservoir_changes_nothing(kind):
    u = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, 9, 3)).astype(np.float32))
    with open_reservoir({"kind": kind, "nodes": 40, "inputs": 3, "gradients": True}) as esn:
        esn.reset(2)
        expected = esn.run(u)
        esn.reset(2)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(esn.run(u), expected, rtol=0, atol=0)
