from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("scipy")

from scipy.sparse import block_diag, coo_array, csr_array, linalg

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.networks import EsnWeights, draw_weights
from reservoir_hw.networks.random_matrices import block_power_radius, spectral_radius


def dense(W) -> np.ndarray:
    return W.toarray() if isinstance(W, csr_array) else W


# Changing these digests changes what every published seed means.
@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "3ad378375c231b2284b850bdf3446dd9a9e755554434de80cf995ae38905f512"),
        ({"topology": "random"}, "3ad378375c231b2284b850bdf3446dd9a9e755554434de80cf995ae38905f512"),
        (
            {"connections_per_node": 3},
            "c0642d9f53e9de6345153482b7d6848d5c9a30701c8eb1fbe54bc0dbaa11599d",
        ),
        (
            {"weight_distribution": "normal", "connectivity": 0.2},
            "22b9f7aa73bf32f9f64409db86e9317cceda8543ee8d693330e1ea22afa6dd90",
        ),
        (
            {"weight_distribution": "bernoulli", "connectivity": 0.05},
            "ca6ab093085887fdba5b05581af66dac272711ce4a2fc94520afc24f4378e082",
        ),
    ],
)
def test_drawn_numbers_are_pinned(options, digest):
    drawn = draw_weights(40, 2, seed=7, spectral_radius=None, bias_scaling=0.1, leak_rate=(0.2, 0.8), **options)
    assert drawn.digest() == digest


def test_the_same_seed_draws_the_same_and_another_seed_another():
    first, again, other = (draw_weights(50, 3, seed=s, connectivity=0.2).digest() for s in (1, 1, 2))
    assert first == again != other
    assert draw_weights(50, 3, seed=np.random.SeedSequence(1), connectivity=0.2).digest() == first


def test_each_quantity_has_its_own_stream():
    plain = draw_weights(50, 3, seed=1, connectivity=0.2)
    changed = draw_weights(
        50, 5, seed=1, connectivity=0.2, input_connectivity=0.5, bias_scaling=1.0, leak_rate=(0.1, 0.2)
    )
    np.testing.assert_array_equal(dense(plain.W), dense(changed.W))
    assert plain.spectral_scale == changed.spectral_scale
    normal = draw_weights(50, 3, seed=1, connectivity=0.2, weight_distribution="normal")
    np.testing.assert_array_equal(dense(plain.W) != 0, dense(normal.W) != 0)
    np.testing.assert_array_equal(plain.W_in, normal.W_in)


@pytest.mark.parametrize(("distribution", "deviation"), [("uniform", 3**-0.5), ("normal", 1.0), ("bernoulli", 1.0)])
@pytest.mark.parametrize("connectivity", [1.0, 0.3, 0.02])
def test_distribution_and_connectivity(distribution, deviation, connectivity):
    W = dense(
        draw_weights(
            600,
            1,
            seed=0,
            spectral_radius=None,
            weight_distribution=distribution,
            connectivity=connectivity,
        ).W
    )
    values = W[W != 0]
    assert values.size == pytest.approx(connectivity * W.size, abs=5 * np.sqrt(W.size * connectivity) + 1)
    assert values.mean() == pytest.approx(0, abs=5 * deviation / np.sqrt(values.size))
    assert values.std() == pytest.approx(deviation, rel=0.05)
    if distribution != "normal":
        assert np.abs(values).max() <= 1.0
    if distribution == "bernoulli":
        assert set(np.abs(values)) == {1.0}


@pytest.mark.parametrize("links", [1, 7, 100, 200])
def test_connections_per_node_are_exact_and_spread_evenly(links):
    W = dense(draw_weights(200, 1, seed=0, connections_per_node=links, spectral_radius=None).W)
    assert (np.count_nonzero(W, axis=1) == links).all()
    expected = links
    assert np.abs(np.count_nonzero(W, axis=0) - expected).max() <= 6 * np.sqrt(expected)


def test_input_bias_and_leak():
    drawn = draw_weights(
        500,
        3,
        seed=0,
        spectral_radius=None,
        connections_per_node=5,
        input_connectivity=0.4,
        input_distribution="bernoulli",
        input_scaling=[1.0, 2.0, 0.5],
        bias_scaling=0.3,
        leak_rate=(0.2, 0.6),
    )
    assert [sorted(set(np.abs(column))) for column in drawn.W_in.T] == [[0, 1], [0, 2], [0, 0.5]]
    assert np.count_nonzero(drawn.W_in) == pytest.approx(600, abs=90)
    assert 0.25 < np.abs(drawn.bias).max() <= 0.3
    assert 0.2 <= drawn.leak.min() < 0.25 < 0.55 < drawn.leak.max() <= 0.6
    assert draw_weights(5, 0, seed=0).W_in.shape == (5, 0)


@pytest.mark.parametrize(
    ("nodes", "options", "sparse"),
    [
        (300, {"connectivity": 0.15}, False),
        (300, {"connectivity": 0.05}, True),
        (1000, {"connectivity": 0.27}, False),
        (1000, {"connectivity": 0.1}, True),
        (1000, {"connections_per_node": 32}, True),
    ],
)
def test_storage_follows_the_density(nodes, options, sparse):
    drawn = draw_weights(nodes, 1, seed=0, spectral_radius=None, **options)
    assert isinstance(drawn.W, csr_array) is sparse


@pytest.mark.slow
def test_a_large_network_is_drawn_without_a_dense_matrix():
    begin = time.perf_counter()
    drawn = draw_weights(65_536, 1, seed=0, connections_per_node=32, spectral_radius=None)
    assert time.perf_counter() - begin < 20  # nodes² random numbers take minutes, and 34 GB
    assert drawn.W.nnz == 65_536 * 32


@pytest.mark.parametrize("options", [{}, {"connectivity": 0.5}, {"connections_per_node": 4}])
def test_the_recurrent_matrix_has_the_spectral_radius(options):
    recurrent = dense(draw_weights(150, 1, seed=0, spectral_radius=0.7, **options).recurrent())
    assert np.abs(np.linalg.eigvals(recurrent)).max() == pytest.approx(0.7, rel=1e-7)


@pytest.mark.slow
def test_spectral_radius_of_ten_thousand_nodes():
    W = draw_weights(10_000, 1, seed=3, connections_per_node=10, spectral_radius=None).W
    # scipy.sparse.linalg.eigs(W, k=4, ncv=150, tol=1e-10), which takes seconds.
    tight = 1.8367401914950758
    assert spectral_radius(W) == pytest.approx(tight, rel=1e-3)
    assert block_power_radius(W) == pytest.approx(tight, rel=0.02)


def test_spectral_radius_where_arpack_gives_up(monkeypatch):
    def give_up(*_args, **_options):
        raise linalg.ArpackError(-9999)

    W = np.diag(np.linspace(0.1, 2.5, 1200))
    monkeypatch.setattr(linalg, "eigs", give_up)
    assert spectral_radius(W) == pytest.approx(2.5, rel=0.01)


def permuted_delay_line(nodes: int) -> np.ndarray:
    order = np.random.default_rng(0).permutation(nodes)
    return np.eye(nodes, k=1)[np.ix_(order, order)]


@pytest.mark.parametrize(
    "W",
    [
        np.zeros((5, 5)),
        csr_array((1500, 1500)),
        permuted_delay_line(100),
        csr_array(permuted_delay_line(1500)),
        np.array([[1.0, -1.0], [1.0, -1.0]]),
    ],
    ids=["zero", "zero sparse", "delay line", "delay line sparse", "full nilpotent"],
)
def test_a_matrix_without_spectral_radius_is_refused(W):
    with pytest.raises(ConfigurationError, match="no scaling can change that"):
        EsnWeights.from_arrays(W, np.ones((W.shape[0], 1)), spectral_radius=0.9)
    assert EsnWeights.from_arrays(W, np.ones((W.shape[0], 1))).spectral_scale == 1.0


@pytest.mark.parametrize("options", [{}, {"connections_per_node": 3}])
def test_saved_and_loaded_weights_are_identical(tmp_path, options):
    drawn = draw_weights(50, 2, seed=0, bias_scaling=0.1, leak_rate=(0.1, 0.9), **options)
    drawn.save(tmp_path / "weights.safetensors")
    loaded = EsnWeights.load(tmp_path / "weights.safetensors")
    assert loaded.digest() == drawn.digest()
    assert type(loaded.W) is type(drawn.W)
    assert loaded.spectral_scale == drawn.spectral_scale != 1.0
    np.testing.assert_array_equal(dense(loaded.recurrent()), dense(drawn.recurrent()))
    for name in ("W_in", "bias", "leak"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(drawn, name))


def test_files_that_are_no_weights_are_refused(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "weights.safetensors"
    with pytest.raises(ConfigurationError, match=r"weights\.safetensors"):
        EsnWeights.load(path)
    path.write_bytes(b"not a weights file at all")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        EsnWeights.load(path)
    save_file({"W": np.eye(3)}, path)
    with pytest.raises(ConfigurationError, match=r"not a weights file of reservoir_hw\.esn_weights, version 1: "):
        EsnWeights.load(path)
    save_file({"W": np.eye(3)}, path, metadata={"format": "reservoir_hw.esn_weights", "version": "1"})
    with pytest.raises(ConfigurationError, match="damaged"):
        EsnWeights.load(path)


def test_given_arrays():
    W = np.eye(4)
    given = EsnWeights.from_arrays(W, np.ones((4, 2)), bias=0.5, leak=[0.1, 0.2, 0.3, 0.4])
    assert (given.nodes, given.inputs) == (4, 2)
    np.testing.assert_array_equal(given.bias, np.full(4, 0.5))
    W[0, 0] = 7.0
    assert given.W[0, 0] == 1.0
    # Duplicate entries of the coordinate format add up.
    pairs = coo_array(([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    sparse = EsnWeights.from_arrays(pairs, np.ones((2, 1)), spectral_radius=1.5)
    assert isinstance(sparse.W, csr_array)
    np.testing.assert_allclose(sparse.recurrent().toarray(), [[0, 1.5], [1.5, 0]], rtol=1e-8)
    ordered = csr_array(np.array([[0, 3.0], [3.0, 0]]))
    assert EsnWeights.from_arrays(ordered, np.ones((2, 1)), spectral_radius=1.5).digest() == sparse.digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"W": np.ones((3, 4))}, r"\(nodes, nodes\)"),
        ({"W": np.ones(3)}, r"\(nodes, nodes\)"),
        ({"W": csr_array(np.ones((3, 4)))}, r"\(nodes, nodes\)"),
        ({"W": np.full((3, 3), np.nan)}, "W holds 9 value"),
        ({"W": csr_array(np.diag([1.0, np.inf, 1.0]))}, "W holds 1 value"),
        ({"W": np.ones((3, 3)) * 1j}, "real numbers"),
        ({"W": [["a"]]}, "real numbers"),
        ({"W_in": np.ones((4, 1))}, r"\(3, inputs\)"),
        ({"W_in": np.ones(3)}, r"\(3, inputs\)"),
        ({"bias": np.ones(2)}, r"one per node, shape \(3,\)"),
        ({"bias": [0, 1, np.nan]}, "bias holds 1 value"),
        ({"leak": 1.5}, r"0\.\.1"),
        ({"leak": [-0.1, 0.5, 0.5]}, r"0\.\.1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        EsnWeights.from_arrays(**({"W": np.eye(3), "W_in": np.ones((3, 1))} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 0}, "nodes"),
        ({"inputs": -1}, "inputs"),
        ({"connectivity": 0.0}, "connectivity"),
        ({"connectivity": 1.1}, "connectivity"),
        ({"connections_per_node": 11}, r"1\.\.10"),
        ({"connections_per_node": 2, "connectivity": 0.1}, "not both"),
        ({"input_connectivity": 2.0}, "input_connectivity"),
        ({"weight_distribution": "cauchy"}, "uniform, normal, bernoulli"),
        ({"input_scaling": [1.0, 2.0]}, "input_scaling"),
        ({"spectral_radius": -1.0}, "spectral_radius"),
        ({"leak_rate": (0.9, 0.1)}, "leak"),
        ({"leak_rate": 2.0}, "leak"),
    ],
)
def test_options_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        draw_weights(**({"nodes": 10, "inputs": 1, "seed": 0} | changes))


@pytest.mark.parametrize(
    ("name", "position", "value"), [("indices", 5, 399_999), ("indices", 5, -1), ("indptr", 3, 10**6), ("indptr", 3, 0)]
)
def test_indices_that_point_outside_are_refused(name: str, position: int, value: int) -> None:
    weights = draw_weights(400, 2, seed=0, connections_per_node=10)
    matrix = csr_array(weights.W, copy=True)
    getattr(matrix, name)[position] = value
    with pytest.raises(ConfigurationError, match="not a valid sparse matrix"):
        EsnWeights.from_arrays(matrix, weights.W_in)


def ring(weights: np.ndarray) -> csr_array:
    nodes = len(weights)
    return csr_array((weights, (np.arange(nodes), np.roll(np.arange(nodes), 1))), shape=(nodes, nodes))


@pytest.mark.slow
def test_eigenvalues_on_one_circle_do_not_keep_arpack_for_minutes():
    rng = np.random.default_rng(0)
    uneven = rng.uniform(0.5, 1.5, 4000) * rng.choice([-1, 1], 4000)
    shortcut = ring(uneven[:1200]).toarray()
    shortcut[5, 900] = 0.3
    for W, radius in (
        (ring(np.ones(1200)), 1.0),
        (ring(np.ones(1200)).toarray(), 1.0),
        (ring(uneven), np.exp(np.log(np.abs(uneven)).mean())),
        (block_diag([ring(np.full(700, 0.5)), ring(np.full(600, 0.7)), np.triu(np.ones((9, 9)), 1)]), 0.7),
        (np.linalg.qr(rng.normal(size=(1200, 1200)))[0], 1.0),
        (shortcut, np.abs(np.linalg.eigvals(shortcut)).max()),
    ):
        begin = time.process_time()
        assert spectral_radius(W if isinstance(W, np.ndarray) else csr_array(W)) == pytest.approx(radius, rel=2e-4)
        assert time.process_time() - begin < 100
