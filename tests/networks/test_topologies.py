"""The links of each topology, the scale of the whole, and what a configuration may say."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from pydantic import model_validator

pytest.importorskip("scipy")

from scipy.sparse import csr_array

from reservoir_hw.core.configuration import Config, Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.networks import EsnWeights, draw_weights
from reservoir_hw.networks.random_matrices import perron_root
from reservoir_hw.networks.topologies import (
    Block,
    CycleJumps,
    DelayLine,
    Orthogonal,
    Random,
    Ring,
    ScaleFree,
    SmallWorld,
    Topology,
)

SCALABLE = [Random(), Ring(), CycleJumps(), SmallWorld(), ScaleFree(), Orthogonal(), Block()]
DRAWN = [Random(), SmallWorld(), ScaleFree(), Orthogonal(), Block(links_between=20)]


def dense(W: Any) -> np.ndarray:
    return W.toarray() if isinstance(W, csr_array) else W


def recurrent(nodes: int, topology: Any, seed: int = 0, **options: Any) -> np.ndarray:
    return dense(draw_weights(nodes, 1, seed=seed, topology=topology, **options).recurrent())


def unscaled(nodes: int, topology: Any, seed: int = 0, **options: Any) -> np.ndarray:
    return recurrent(nodes, topology, seed, spectral_radius=None, **options)


# ---- structure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 7, 300])
def test_ring_is_a_cyclic_permutation_times_the_spectral_radius(nodes: int) -> None:
    np.testing.assert_array_equal(recurrent(nodes, "ring", spectral_radius=0.7), 0.7 * np.roll(np.eye(nodes), 1, 0))


@pytest.mark.parametrize("nodes", [1, 2, 7, 300])
def test_delay_line_shifts_by_one_node_and_forgets_after_the_last(nodes: int) -> None:
    W = unscaled(nodes, DelayLine(weight=0.5))
    np.testing.assert_array_equal(W, 0.5 * np.eye(nodes, k=-1))
    assert not np.linalg.matrix_power(W, nodes).any()


def test_cycle_jumps_where_the_jump_divides_the_nodes() -> None:
    W = unscaled(12, CycleJumps(jump=4, cycle_weight=0.8, jump_weight=0.3))
    expected = 0.8 * np.roll(np.eye(12), 1, 0)
    for one, other in ((0, 4), (4, 8), (8, 0)):
        expected[one, other] = expected[other, one] = 0.3
    np.testing.assert_array_equal(W, expected)


def test_cycle_jumps_where_it_does_not() -> None:
    links = {(one, other) for one, other in np.argwhere(unscaled(14, CycleJumps(jump=4))).tolist()}
    jumps = {(0, 4), (4, 8), (8, 12)}
    assert links == {(i, (i - 1) % 14) for i in range(14)} | jumps | {(other, one) for one, other in jumps}


def test_scaled_jumps_keep_their_ratio_to_the_cycle() -> None:
    W = recurrent(60, CycleJumps(jump=6, cycle_weight=2.0, jump_weight=0.5), spectral_radius=0.9)
    assert W[0, 6] / W[1, 0] == 0.25


@pytest.mark.parametrize("nodes", [20, 21, 200])
def test_small_world_without_rewiring_is_the_lattice(nodes: int) -> None:
    distance = np.abs(np.arange(nodes)[:, None] - np.arange(nodes))
    distance = np.minimum(distance, nodes - distance)
    np.testing.assert_array_equal(unscaled(nodes, SmallWorld(rewiring=0)) != 0, (distance > 0) & (distance <= 5))


@pytest.mark.parametrize(("nodes", "rewiring"), [(20, 1.0), (400, 0.1), (400, 1.0)])
def test_small_world_rewires_that_share_and_keeps_the_links_of_each_node(nodes: int, rewiring: float) -> None:
    links = unscaled(nodes, SmallWorld(neighbours=10, rewiring=rewiring)) != 0
    assert (links.sum(axis=1) == 10).all()
    assert not links.diagonal().any()
    moved = np.count_nonzero(links & ~(unscaled(nodes, SmallWorld(neighbours=10, rewiring=0)) != 0)) / (10 * nodes)
    # A new origin is one of the old neighbours now and then.
    chance = rewiring * (1 - 10 / nodes)
    assert moved == pytest.approx(chance, abs=5 * np.sqrt(chance / (10 * nodes)) + 10 / nodes)
    if nodes == 400:
        # Origins are uniform: no node is listened to much more than others.
        assert links.sum(axis=0).max() < 10 + 5 * np.sqrt(10)


def path_length(links: np.ndarray) -> float:
    from scipy.sparse.csgraph import shortest_path

    return float(shortest_path(csr_array(links), unweighted=True).mean())


def test_small_world_has_short_paths_and_still_its_clusters() -> None:
    lattice, small, random = (unscaled(300, SmallWorld(rewiring=r)) != 0 for r in (0.0, 0.1, 1.0))
    triangles = [float(np.trace(np.linalg.matrix_power(links.astype(float), 3))) for links in (lattice, small, random)]
    assert path_length(lattice) > 2 * path_length(small)
    assert triangles[1] > 4 * triangles[2]


def test_scale_free_grows_hubs_and_carries_both_ways() -> None:
    nodes, entering = 3000, 3
    links = unscaled(nodes, ScaleFree(links_per_node=entering)) != 0
    degree = links.sum(axis=1)
    np.testing.assert_array_equal(links, links.T)
    assert degree.sum() == 2 * (entering * (entering + 1) // 2 + entering * (nodes - entering - 1))
    assert degree.min() == entering
    # Barabási & Albert 1999: P(k) = 2m(m+1) / (k(k+1)(k+2)) (Krapivsky, Redner & Leyvraz 2000), hubs near m √nodes.
    for k in (3, 4, 5, 8):
        expected = 2 * entering * (entering + 1) / (k * (k + 1) * (k + 2))
        assert np.mean(degree == k) == pytest.approx(expected, abs=5 * np.sqrt(expected / nodes))
    assert degree.max() > 0.5 * entering * np.sqrt(nodes)
    assert degree[:4].mean() > 10 * degree.mean()


def test_scale_free_of_the_fewest_nodes_is_complete() -> None:
    np.testing.assert_array_equal(unscaled(4, "scale_free") != 0, ~np.eye(4, dtype=bool))


def test_scale_free_weights_differ_in_the_two_directions() -> None:
    W = unscaled(50, "scale_free")
    assert not np.isclose(W, W.T)[W != 0].any()


@pytest.mark.parametrize("nodes", [1, 2, 200, 300])
def test_orthogonal_keeps_every_length_up_to_the_scale(nodes: int) -> None:
    W = recurrent(nodes, "orthogonal", spectral_radius=0.8)
    np.testing.assert_allclose(W.T @ W, 0.64 * np.eye(nodes), atol=1e-14)


@pytest.mark.slow
def test_orthogonal_is_uniform_over_the_group() -> None:
    # Haar: E[tr Q] = 0 and E[(tr Q)²] = 1; every entry has the variance 1/nodes; half are reflections.
    drawn = np.array([unscaled(5, "orthogonal", seed) for seed in range(2000)])
    trace = drawn.trace(axis1=1, axis2=2)
    assert abs(trace.mean()) < 5 / np.sqrt(2000)
    assert (trace**2).mean() == pytest.approx(1, abs=0.2)
    np.testing.assert_allclose((drawn**2).mean(axis=0), 0.2, atol=0.03)
    assert np.mean(np.linalg.det(drawn) < 0) == pytest.approx(0.5, abs=0.06)


def test_blocks_are_apart_and_of_nearly_the_same_size() -> None:
    links = unscaled(22, Block(blocks=4)) != 0
    block = np.repeat(np.arange(4), (6, 6, 5, 5))
    np.testing.assert_array_equal(links, block[:, None] == block)


@pytest.mark.parametrize("blocks", [3, 7])
def test_links_between_blocks_are_as_many_as_asked_for_and_anywhere(blocks: int) -> None:
    block = np.repeat(np.arange(blocks), Block(blocks=blocks).bounds(50)[1:] - Block(blocks=blocks).bounds(50)[:-1])
    apart = block[:, None] != block
    met = np.zeros((50, 50), dtype=bool)
    for seed in range(150):
        links = unscaled(50, Block(blocks=blocks, links_between=200), seed) != 0
        assert np.count_nonzero(links & apart) == 200
        met |= links
    assert met.all()
    full = unscaled(50, Block(blocks=blocks, links_between=int(apart.sum()))) != 0
    assert full.all()


def test_connections_hold_within_each_block() -> None:
    W = unscaled(100, Block(blocks=5), connections_per_node=4)
    assert (np.count_nonzero(W, axis=1) == 4).all()
    assert not W[:20, 20:].any()
    sparse = unscaled(600, Block(blocks=3), connectivity=0.1)
    assert np.count_nonzero(sparse) == pytest.approx(12_000, abs=600)
    assert not sparse[:200, 200:].any()


# ---- scale, seeds, storage -------------------------------------------------------------------------


@pytest.mark.parametrize("topology", SCALABLE, ids=lambda t: t.kind)
@pytest.mark.parametrize("nodes", [30, 151])
def test_the_recurrent_matrix_has_the_spectral_radius(topology: Any, nodes: int) -> None:
    W = recurrent(nodes, topology, spectral_radius=0.7)
    assert np.abs(np.linalg.eigvals(W)).max() == pytest.approx(0.7, rel=1e-7)


@pytest.mark.parametrize("jump", [2, 7, 50])
def test_spectral_radius_of_a_long_cycle_with_jumps(jump: int) -> None:
    # The Perron vector repeats with every jump, so λ^(jump-1) (λ - 2 r_j) = r_c^jump.
    nodes = jump * 1000
    W = draw_weights(nodes, 1, seed=0, topology=CycleJumps(jump=jump, jump_weight=0.3), spectral_radius=None).W
    radius = perron_root(W)
    assert radius ** (jump - 1) * (radius - 0.6) == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize(
    "topology",
    [CycleJumps(jump=7, jump_weight=1e-9), CycleJumps(jump=148, jump_weight=1e4), CycleJumps(jump=2), CycleJumps()],
)
def test_perron_root_at_the_extremes(topology: CycleJumps) -> None:
    W = unscaled(301, topology)
    assert perron_root(W) == pytest.approx(np.abs(np.linalg.eigvals(W)).max(), rel=2e-10)


@pytest.mark.parametrize("topology", [*SCALABLE, DelayLine()], ids=lambda t: t.kind)
def test_the_same_seed_draws_the_same(topology: Any) -> None:
    options: dict[str, Any] = {"topology": topology, "spectral_radius": None if topology.radius == 0 else 0.9}
    first, again = (draw_weights(60, 2, seed=3, **options) for _ in range(2))
    assert first.digest() == again.digest()
    # The inputs are those of any other topology.
    np.testing.assert_array_equal(first.W_in, draw_weights(60, 2, seed=3).W_in)


@pytest.mark.parametrize("topology", DRAWN, ids=lambda t: t.kind)
def test_another_seed_draws_another(topology: Any) -> None:
    assert (unscaled(60, topology, 1) != unscaled(60, topology, 2)).any()


# Changing these digests changes what every published seed means.
@pytest.mark.parametrize(
    ("topology", "digest"),
    [
        (SmallWorld(), "36c43bca8fc1c8728beffa8f5291ce7fbec8e01a4d2ffc76b817784ae926bd20"),
        (ScaleFree(), "c7aee94c853680d15f056d770faa8221a8a4bae463a075e8e01c068d6c52d0c2"),
        (Orthogonal(), "766ec642a7a34753c11c8d81f08b9d43ca0e4877aa6b9e68a8e1fbb2b0ec0986"),
        (Block(links_between=20), "042634c8466865cccc813d2ac9d3bf04f7f0372d247797e2e73ab4d3a69e4390"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_drawn_numbers_are_pinned(topology: Any, digest: str) -> None:
    assert draw_weights(40, 2, seed=7, topology=topology, spectral_radius=None).digest() == digest


@pytest.mark.parametrize("topology", [SmallWorld(), ScaleFree(), Block()], ids=lambda t: t.kind)
def test_drawn_weights_follow_the_distribution_and_leave_the_links(topology: Any) -> None:
    signs = unscaled(200, topology, weight_distribution="bernoulli")
    assert set(np.unique(signs)) == {-1.0, 0.0, 1.0}
    np.testing.assert_array_equal(signs != 0, unscaled(200, topology) != 0)


@pytest.mark.parametrize(
    ("topology", "options"),
    [
        (Ring(), {}),
        (DelayLine(), {"spectral_radius": None}),
        (CycleJumps(jump=50), {}),
        (SmallWorld(), {}),
        (ScaleFree(), {}),
        (Block(blocks=64, links_between=250), {"connections_per_node": 16}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_large_network_takes_seconds_and_no_dense_matrix(topology: Any, options: dict[str, Any]) -> None:
    begin = time.perf_counter()
    drawn = draw_weights(16_384, 1, seed=0, topology=topology, **options)
    assert time.perf_counter() - begin < 20  # nodes² numbers are 2 GB
    assert isinstance(drawn.W, csr_array)
    assert drawn.W.nnz < 16_384 * 20


def test_small_networks_are_stored_dense() -> None:
    assert isinstance(draw_weights(10, 1, seed=0, topology="ring").W, np.ndarray)
    assert isinstance(draw_weights(11, 1, seed=0, topology="ring").W, csr_array)


def test_a_given_matrix_is_rescaled_too() -> None:
    ring = unscaled(20, "ring")
    given = EsnWeights.from_arrays(ring, np.ones((20, 1)), spectral_radius=0.5)
    np.testing.assert_allclose(given.recurrent(), 0.5 * ring, rtol=1e-8)


# ---- what may be asked for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "topology", "options", "message"),
    [
        (10, "delay_line", {}, r"spectral_radius cannot scale topology: delay_line.*weight"),
        (10, "rign", {}, "unknown topology 'rign': choose one of random, ring"),
        (10, "ring", {"connectivity": 0.1}, r"connectivity means nothing to topology: ring.*\(block, random\)"),
        (10, "ring", {"weight_distribution": "normal"}, r"distribution means nothing to topology: ring.*small_world"),
        (10, "delay_line", {"spectral_radius": None, "connections_per_node": 1}, "connections_per_node means nothing"),
        (50, "small_world", {"connectivity": 0.1}, "connectivity means nothing to topology: small_world"),
        (50, "orthogonal", {"weight_distribution": "normal"}, "distribution means nothing to topology: orthogonal"),
        (11, CycleJumps(jump=5), {}, "jump = 5 needs at least 12 nodes, the network has 11"),
        (19, SmallWorld(), {}, "neighbours = 10 needs at least 20 nodes"),
        (3, ScaleFree(), {}, "links_per_node = 3 needs at least 4 nodes"),
        (3, Block(), {}, "blocks = 4 needs at least 4 nodes"),
        (10, Block(blocks=5, links_between=81), {}, "room for 80 links between its 5 blocks"),
        (10, Block(blocks=1, links_between=1), {}, "room for 0 links"),
        (
            10,
            Block(blocks=3),
            {"connections_per_node": 4},
            "connections_per_node = 4 is more than the 3 nodes of the smallest",
        ),
    ],
)
def test_what_does_not_fit_is_refused(nodes: int, topology: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        draw_weights(nodes, 1, seed=0, topology=topology, **options)


class Network(Config):
    nodes: int = 100
    topology: Topology = Random()
    connectivity: float | None = None
    weight_distribution: str = "uniform"
    spectral_radius: float | None = 0.9

    @model_validator(mode="after")
    def _fits(self) -> Network:
        self.topology.check(self.nodes, {name: getattr(self, name) for name in self.model_fields_set})
        return self


def read(topology: Any = None, **more: Any) -> Network:
    given = {"topology": topology} if topology is not None else {}
    return validate(Network, Document.from_mapping({**given, **more}, "lab.yaml:3"))


def test_a_name_is_enough_and_a_mapping_says_more() -> None:
    assert read().topology == Random()
    for kind in ("ring", "delay_line", "cycle_jumps", "small_world", "scale_free", "orthogonal", "block", "random"):
        assert read(kind).topology.kind == kind
    assert read({"kind": "cycle_jumps", "jump": 7}).topology == CycleJumps(jump=7)
    assert read("delay_line", spectral_radius=None).topology == DelayLine()
    assert read("ring").model_dump()["topology"] == {"kind": "ring"}
    assert validate(Network, Document.from_mapping(read("block").model_dump(), "again")) == read("block").model_copy()


@pytest.mark.parametrize(
    ("topology", "more", "message"),
    [
        ("rign", {}, "lab.yaml:3: topology = 'rign': unknown topology 'rign': choose one of random"),
        ({"kind": "rign"}, {}, "lab.yaml:3: topology: topology needs `kind:`, one of random"),
        ({"jump": 3}, {}, "lab.yaml:3: topology: topology needs `kind:`, one of random"),
        ({"kind": "ring", "jump": 3}, {}, r"lab.yaml:3: unknown key 'topology.jump'"),
        ({"kind": "cycle_jumps", "jump": 1}, {}, "lab.yaml:3: topology.jump = 1: input should be greater"),
        ({"kind": "small_world", "neighbours": 3}, {}, "topology.neighbours = 3: input should be a multiple of 2"),
        ({"kind": "small_world", "rewiring": 1.5}, {}, "topology.rewiring = 1.5"),
        ({"kind": "cycle_jumps", "jump": 60}, {}, "jump = 60 needs at least 122 nodes, the network has 100"),
        ("ring", {"connectivity": 0.1}, "connectivity means nothing to topology: ring"),
        ("ring", {"weight_distribution": "normal"}, "weight_distribution means nothing to topology: ring"),
        ("delay_line", {"spectral_radius": 0.9}, "spectral_radius cannot scale topology: delay_line"),
    ],
)
def test_a_wrong_configuration_names_both_sides(topology: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(topology, **more)


def test_the_schema_offers_the_name_and_the_mapping() -> None:
    schema = Network.model_json_schema()["properties"]["topology"]
    names = [option["enum"] for option in schema["anyOf"] if "enum" in option]
    assert "small_world" in names[0]
    assert any("discriminator" in option for option in schema["anyOf"])


def test_the_configuration_loads_no_scipy() -> None:
    code = "import sys, reservoir_hw.networks.topologies; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
