from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from scipy.sparse import csr_array  # noqa: E402

from reservoir_hw.backends.simulated.esn import cpu_loop as kernels  # noqa: E402
from reservoir_hw.backends.simulated.esn.cpu_loop import prepare, run  # noqa: E402
from reservoir_hw.backends.simulated.kernels import compiled, llvm_products, panels  # noqa: E402
from reservoir_hw.backends.simulated.nonidealities.noise import to_float16  # noqa: E402
from reservoir_hw.networks import EsnWeights, draw_weights  # noqa: E402

FUNCTIONS = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "identity": lambda x: x}
STORAGE = {"dense": {}, "sparse": {"connectivity": 0.04}}
TOLERANCE = {np.float32: 2e-6, np.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


@cache
def network(nodes, inputs, storage="dense", leak=(0.3, 0.9)) -> EsnWeights:
    drawn = draw_weights(
        nodes,
        inputs,
        seed=5,
        spectral_radius=None,
        bias_scaling=0.2,
        leak_rate=leak,
        input_scaling=0.5,
        **STORAGE[storage],
    )
    # The radius that the circular law gives, 0.9 of it, spares the tests the eigenvalues.
    density = STORAGE[storage].get("connectivity", 1.0)
    return replace(drawn, spectral_scale=0.9 / np.sqrt(nodes * density / 3))


def drive(batch, steps, inputs, dtype, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (batch, steps, inputs)).astype(dtype)


def naive(weights, u, state, activation="tanh"):
    """The equation, word for word, in float64."""
    W, function = weights.recurrent(), FUNCTIONS[activation]
    W = W.toarray() if isinstance(W, csr_array) else W
    a, s = weights.leak, state.astype(np.float64)
    states = np.empty((*u.shape[:2], weights.nodes))
    for t in range(u.shape[1]):
        s = (1 - a) * s + a * function(s @ W.T + u[:, t].astype(np.float64) @ weights.W_in.T + weights.bias)
        states[:, t] = s
    return states


@pytest.fixture(params=["one thread", "all threads"])
def threading_rule(request, monkeypatch):
    """Small networks would never reach the threaded kernels."""
    limit = 0 if request.param == "all threads" else 1 << 60
    monkeypatch.setattr(kernels, "THREADED_DENSE", limit)
    monkeypatch.setattr(kernels, "_THREADED_SPARSE", limit)
    monkeypatch.setattr(kernels, "THREADED_BATCH", limit)
    monkeypatch.setattr(kernels, "cores", lambda: 2)


@pytest.mark.usefixtures("threading_rule")
@pytest.mark.parametrize("leak", [1.0, 0.4, (0.2, 0.9)], ids=["no leak", "leak", "leak range"])
@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("storage", STORAGE)
@DTYPES
def test_states_equal_the_equation(dtype, storage, batch, activation, leak):
    weights = network(101, 3, storage, leak)
    u = drive(batch, 40, 3, dtype)
    state = drive(batch, 1, 101, dtype, seed=1)[:, 0].copy()
    expected = naive(weights, u, state, activation)
    states = run(prepare(weights, dtype), u, state, activation=activation)
    scale = max(1.0, np.abs(expected).max())
    assert states.dtype == dtype
    np.testing.assert_allclose(states, expected, rtol=0, atol=TOLERANCE[dtype] * scale)
    np.testing.assert_array_equal(state, states[:, -1])


@pytest.mark.parametrize("nodes", [1, 2, 16, 17, 1030])
@pytest.mark.parametrize(
    "inputs", [0, 1, pytest.param(4, marks=pytest.mark.slow), 24, pytest.param(100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("storage", STORAGE)
@DTYPES
def test_every_size(dtype, storage, inputs, nodes):
    weights = network(nodes, inputs, storage)
    for batch in (1, 9):
        u, state = drive(batch, 5, inputs, dtype), np.zeros((batch, nodes), dtype)
        expected = naive(weights, u, state)
        states = run(prepare(weights, dtype), u, state)
        np.testing.assert_allclose(states, expected, rtol=0, atol=3 * TOLERANCE[dtype])


@pytest.mark.parametrize(
    "inputs", [1, pytest.param(8, marks=pytest.mark.slow), pytest.param(24, marks=pytest.mark.slow), 100]
)
@pytest.mark.parametrize("batch", [1, 3, 4, 64])
@pytest.mark.parametrize(("nodes", "steps"), [(37, 20), (150, 16), (600, 9)])
@pytest.mark.parametrize("storage", STORAGE)
@DTYPES
def test_chunks_and_single_steps_give_the_same_bits(dtype, storage, nodes, steps, batch, inputs):
    prepared = prepare(network(nodes, inputs, storage), dtype)
    u, state = drive(batch, steps, inputs, dtype), np.zeros((batch, nodes), dtype)
    whole = run(prepared, u, state)
    random_cuts = np.sort(np.random.default_rng(nodes + inputs).choice(np.arange(1, steps), 4, replace=False))
    for cuts in (random_cuts, np.arange(1, steps)):
        part_state = np.zeros((batch, nodes), dtype)
        parts = [run(prepared, np.ascontiguousarray(part), part_state) for part in np.split(u, cuts, axis=1)]
        np.testing.assert_array_equal(np.concatenate(parts, 1), whole)
        np.testing.assert_array_equal(part_state, state)


@pytest.mark.slow
@pytest.mark.parametrize("storage", [None, np.float16])
@pytest.mark.parametrize("inputs", [1, 24])
@pytest.mark.parametrize("nodes", [37, 600])
def test_batched_states_depend_neither_on_the_batch_nor_on_the_threads(monkeypatch, nodes, inputs, storage):
    weights = network(nodes, inputs)
    if storage is not None:
        weights = weights.rounded(to_float16)
    u = drive(21, 9, inputs, np.float32)
    whole = run(replace(prepare(weights, storage=storage), threads=1), u, np.zeros((21, nodes), np.float32))
    np.testing.assert_allclose(whole, naive(weights, u, np.zeros((21, nodes))), rtol=0, atol=2e-6)
    monkeypatch.setattr(kernels, "THREADED_BATCH", 0)
    for batch in (1, 2, 4, 9, 21):
        # `threads=` is bounded by the cores of this machine, the division of a batch is not.
        prepared = replace(prepare(weights, storage=storage), threads=3)
        states = run(prepared, np.ascontiguousarray(u[-batch:]), np.zeros((batch, nodes), np.float32))
        np.testing.assert_array_equal(states, whole[-batch:])


AS_MANY_AS_BEFORE = """
import torch
import numpy as np
from reservoir_hw import open_reservoir
assert torch.get_num_threads() == 1
with open_reservoir({"kind": "esn", "inputs": 2, "nodes": 700, "connectivity": 0.1}) as reservoir:
    for batch in (4, 1):
        reservoir.reset(batch)
        reservoir.run(np.ones((batch, 40, 2), np.float32))
        assert torch.get_num_threads() == 1
import numba
assert numba.threading_layer()  # It raises where no parallel kernel has run.
"""


@pytest.mark.slow
def test_torch_has_as_many_threads_as_before():
    """With another number its sums have another order, so that a training would depend on what was driven before."""
    pytest.importorskip("torch")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", AS_MANY_AS_BEFORE], check=True, timeout=60, env=environment)


FORKED = """
import os, sys
import numpy as np, torch
from reservoir_hw import open_reservoir
torch.set_num_threads(2)
u = np.ones((16, 128, 64), np.float32)
def driven():
    with open_reservoir({"kind": "esn", "inputs": 64, "nodes": 256}) as reservoir:
        reservoir.reset(16)
        return reservoir.run(u)
if sys.argv[1] == "before":
    driven()
torch.randn(1000, 1000) @ torch.randn(1000, 1000)
if not (child := os.fork()):
    os._exit(0 if driven().shape == (16, 128, 256) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("loaded", ["before", "after"])
def test_a_fork_does_not_wait_for_threads_of_its_parent(loaded):
    """Whether the kernels were loaded before the fork or after."""
    pytest.importorskip("torch")
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", FORKED, loaded], check=True, timeout=60, env=environment)


def test_chunks_inside_a_batched_run_give_the_same_bits(monkeypatch):
    prepared = prepare(network(150, 3, "sparse"))
    u = drive(10, 30, 3, np.float32)
    whole = run(prepared, u, np.zeros((10, 150), np.float32))
    monkeypatch.setattr(kernels, "_CHUNK", 10 * 153 * 7)
    np.testing.assert_array_equal(run(prepared, u, np.zeros((10, 150), np.float32)), whole)


@pytest.mark.parametrize("order", ["C", "F", "time first"])
@pytest.mark.parametrize("batch", [2, 10])
@pytest.mark.parametrize("storage", STORAGE)
def test_out_is_filled_whatever_its_memory_order(storage, batch, order):
    prepared = prepare(network(60, 2, storage))
    u = drive(batch, 15, 2, np.float32)
    expected = run(prepared, u, np.zeros((batch, 60), np.float32))
    if order == "time first":
        out = np.empty((15, 60, batch), np.float32).transpose(2, 0, 1)
    else:
        out = np.empty((batch, 15, 60), np.float32, order=order)
    assert run(prepared, u, np.zeros((batch, 60), np.float32), out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_rational_tanh_is_within_its_bound_and_never_beyond_one():
    weights = EsnWeights.from_arrays(np.zeros((1, 1)), np.ones((1, 1)))
    u = np.concatenate((np.linspace(-12, 12, 1_000_000), np.geomspace(1e-30, 1, 1000), [0.0, 1e30, -1e30]))
    u = u.astype(np.float32).reshape(1, -1, 1)
    states = run(prepare(weights), u, np.zeros((1, 1), np.float32))
    assert np.abs(states - np.tanh(u.astype(np.float64))).max() < 3.2e-7
    assert np.abs(states).max() <= 1.0


@pytest.mark.parametrize("storage", STORAGE)
@DTYPES
def test_overflow_is_not_hidden(dtype, storage):
    weights = network(50, 1, storage)
    large = replace(weights, spectral_scale=1e30)
    states = run(prepare(large, dtype), drive(1, 60, 1, dtype), np.zeros((1, 50), dtype), activation="identity")
    assert not np.isfinite(states[0, -1]).all()


def test_states_equal_those_of_reservoirpy():
    reservoirpy = pytest.importorskip("reservoirpy")
    for storage in STORAGE:
        weights = network(200, 3, storage)
        u = drive(1, 100, 3, np.float64)
        peer = reservoirpy.nodes.Reservoir(
            W=weights.recurrent(), Win=weights.W_in, bias=weights.bias, lr=weights.leak, input_dim=3
        )
        expected = peer.run(u[0])
        ours = run(prepare(weights), u.astype(np.float32), np.zeros((1, 200), np.float32))[0]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_the_callers_thread_setting_is_kept():
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        run(prepare(network(600, 1)), drive(1, 5, 1, np.float32), np.zeros((1, 600), np.float32))
        assert numba.get_num_threads() == 1
    finally:
        numba.set_num_threads(before)


@pytest.mark.parametrize("storage", STORAGE)
def test_runs_in_several_python_threads(storage):
    prepared = prepare(network(1000, 1, storage))
    u = drive(1, 50, 1, np.float32)
    expected = run(prepared, u, np.zeros((1, 1000), np.float32))
    with ThreadPoolExecutor(4) as pool:
        for states in pool.map(lambda _: run(prepared, u, np.zeros((1, 1000), np.float32)), range(8)):
            np.testing.assert_array_equal(states, expected)


# ---- what stands on the inside of a library: it works here, and there is a plain way where it does not --------------


@pytest.mark.parametrize(("stored", "dtype"), [("f4", "f4"), ("f8", "f8"), ("f2", "f4")])
@pytest.mark.parametrize("columns", [37, 1100])
def test_the_products_in_llvms_words_compile_and_are_those_of_numpy(columns, stored, dtype):
    rng = np.random.default_rng(0)
    width, most = compiled.TILE_BYTES // np.dtype(dtype).itemsize, compiled.MOST_PANELS
    vectors = rng.normal(size=(compiled.ROWS, columns)).astype(dtype)
    weights = rng.normal(size=(most, columns, width)).astype(stored)
    given = weights.view(np.uint16) if stored == "f2" else weights
    expected, tolerance = vectors.astype("f8") @ weights.astype("f8"), 4e-6 * np.sqrt(columns)
    assert panels.multiply_tile is llvm_products.multiply_tile
    assert panels.multiply_panels is llvm_products.multiply_panels
    quick, plain = np.empty((2, compiled.ROWS, width), dtype)
    llvm_products.multiply_one_tile(vectors, given[0], quick)
    panels.plain_tile(vectors, given[0], plain)
    np.testing.assert_allclose(quick, expected[0], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(plain, quick)
    for count in range(1, most + 1):
        quick, plain = np.empty((2, count * width), dtype)
        llvm_products.multiply_some_panels(vectors[1], given[:count], quick)
        panels.plain_panels(vectors[1], given[:count], plain, 0, count)
        np.testing.assert_allclose(quick, expected[:count, 1].ravel(), rtol=0, atol=tolerance)
        np.testing.assert_array_equal(plain, quick)


ANOTHER_NUMBA = """
import sys
import threading
import time
import numpy as np
import numba.extending
def refuse(function):
    raise NotImplementedError("no such words")
from reservoir_hw.backends.simulated.kernels import compiled  # It has an intrinsic of its own.
numba.extending.intrinsic = refuse
from reservoir_hw.backends.simulated.esn.cpu_loop import prepare, run
from reservoir_hw.networks import EsnWeights
u = np.load(sys.argv[1] + "/u.npy")
weights = EsnWeights.load(sys.argv[1] + "/weights.safetensors")
for batch in (1, 6):
    states = run(prepare(weights), u[:batch].copy(), np.zeros((batch, weights.nodes), np.float32))
    np.save(sys.argv[1] + f"/states{batch}.npy", states)
"""


@pytest.mark.slow
def test_states_are_the_same_where_another_numba_refuses_it(tmp_path):
    weights, u = network(60, 2), drive(6, 9, 2, np.float32)
    weights.save(tmp_path / "weights.safetensors")
    np.save(tmp_path / "u.npy", u)
    # The kernels that are cached know the other product.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_NUMBA, str(tmp_path)],
        env=environment,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "slower ones are used: no such words" in done.stderr
    states = run(prepare(weights), u, np.zeros((6, 60), np.float32))
    for batch in (1, 6):
        np.testing.assert_array_equal(np.load(tmp_path / f"states{batch}.npy"), states[:batch])
