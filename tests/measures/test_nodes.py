"""Dead, equal and railed nodes, and none of them where there are none; by how many steps states are late."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from reservoir_hw.measures import latency_of, nodes_of


def repeats(seed: int, *, nodes: int = 12, steps: int = 400, noise: float = 0.01, count: int = 2) -> np.ndarray:
    """Responses (count, steps, nodes) of variance 1 to one drive, each with its own noise."""
    random = np.random.default_rng(seed)
    drive = random.normal(size=(steps, nodes)) @ random.normal(size=(nodes, nodes)) / nodes**0.5
    return drive + noise * random.normal(size=(count, steps, nodes))


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("count", [2, 10])
def test_a_healthy_device_has_no_remarks(noise: float, count: int) -> None:
    for seed in range(15):
        found = nodes_of(repeats(seed, noise=noise, count=count))
        assert not found.sentences()
        assert found.noise == pytest.approx(noise, rel=0.2)


def test_dead_nodes_behind_noise_and_without() -> None:
    for seed in range(15):
        x = repeats(seed, noise=1e-4)
        x[:, :, 4] = 1e-4 * np.random.default_rng(seed + 100).normal(size=x.shape[:2])
        x[:, :, 6] = 0.25
        found = nodes_of(x)
        assert np.flatnonzero(found.still).tolist() == [4, 6]
        still, noisy = found.sentences()
        assert still.startswith("node 6 does not move")
        assert noisy.startswith("node 4 does not move: nothing but noise is seen of it")


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.03])
def test_equal_nodes(noise: float) -> None:
    """With noise of their own or without, and an offset of a converter; a node that differs by a fifth is another."""
    random = np.random.default_rng(7)
    x = repeats(3, noise=noise, count=4)
    signal = x.mean(axis=0)[:, 2]
    for node, factor, offset in ((7, 1.0, 0.0), (9, 1.0, 0.5), (5, 0.8, 0.0)):
        x[:, :, node] = factor * signal + offset + noise * random.normal(size=x.shape[:2])
    found = nodes_of(x)
    assert found.equal == ((2, 7, 9),)
    assert found.sentences() == [
        "nodes 2, 7 and 9 are equal, within their noise: a readout gains nothing by the second"
    ]


def test_too_much_noise_says_nothing_of_equal_nodes() -> None:
    x = repeats(3, noise=2.0)
    x[:, :, 7] = x[:, :, 2].mean(axis=0) + 2.0 * np.random.default_rng(1).normal(size=x.shape[:2])
    assert not nodes_of(x).equal


def test_many_nodes_are_compared_in_blocks() -> None:
    x = repeats(5, nodes=700, noise=1e-3)
    x[:, :, 650] = x[:, :, 3]
    x[:, :, 300] = x[:, :, 3]
    assert nodes_of(x).equal == ((3, 300, 650),)


@pytest.mark.parametrize(
    ("over", "railed"),
    [
        ({}, [3]),
        ({"simulated": True}, []),
        ({"state_range": (-9, 9)}, []),
        ({"state_range": (-0.5, 9), "simulated": True}, [3]),
    ],
)
def test_nodes_at_a_limit(over: dict[str, Any], railed: list[int]) -> None:
    x = np.abs(repeats(2)) + 0.1
    x[:, :, 3] = np.maximum(x[:, :, 3] - 0.8, -0.5)
    found = nodes_of(x, **over)
    assert np.flatnonzero(found.railed).tolist() == railed
    assert found.at_limit[3] > 0.1 or over.get("state_range") == (-9, 9)
    assert bool(found.sentences()) == bool(railed)


def test_rows_show_what_is_worth_a_look() -> None:
    x = repeats(5, nodes=40)
    x[:, :, 33] = 0.0
    found = nodes_of(x)
    assert [row[0] for row in found.rows(100)] == [str(node) for node in range(40)]
    assert len(found.rows(8)) == 8
    assert "33" in [row[0] for row in found.rows(8)]
    assert found.as_dict()["still"][33] is True


def response(
    seed: int, steps: int, late: int, *, noise: float = 0.0, relax: float = 0.5, even: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (time, 1), and 12 leaky nodes that answer so many steps later; `even`: they see the power of the input."""
    random = np.random.default_rng(seed)
    u = random.uniform(-1, 1, (steps, 1))
    seen = np.concatenate([np.zeros((late, 1)), u**2 if even else u])[:steps]
    x, weights, offsets = np.empty((steps, 12)), random.normal(size=12), random.normal(size=12)
    state = np.zeros(12)
    for t in range(steps):
        state = (1 - relax) * state + relax * np.tanh(weights * seen[t] + offsets)
        x[t] = state
    return u, x + noise * x.std() * random.normal(size=x.shape)


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(("steps", "noise", "relax"), [(100, 0.0, 0.5), (400, 0.5, 0.5), (2000, 0.3, 0.1)])
@pytest.mark.parametrize("late", [0, 1, 3, 6, 20])
def test_it_is_right_or_unknown(late: int, steps: int, noise: float, relax: float, even: bool) -> None:
    found = Counter(latency_of(*response(seed, steps, late, noise=noise, relax=relax, even=even)) for seed in range(5))
    assert set(found) <= {late, None}
    if steps > 100:
        assert found[late] >= 4


def test_nothing_is_made_of_what_does_not_answer() -> None:
    """Noise, slow wandering, constant states, too few steps."""
    for seed in range(60):
        random = np.random.default_rng(seed)
        u = random.uniform(-1, 1, (80, 2))
        assert latency_of(u, random.normal(size=(80, 30)).cumsum(axis=0)) is None
    random = np.random.default_rng(0)
    u = random.uniform(-1, 1, (80, 2))
    assert latency_of(u, np.ones((80, 3))) is None
    assert latency_of(u[:3], np.ones((3, 3))) is None
    assert latency_of(np.ones((80, 2)), random.normal(size=(80, 3))) is None


def test_a_delay_line_and_repeats() -> None:
    """One node sees the input at once, and that counts; the mean of repeats has less noise."""
    random = np.random.default_rng(1)
    u = random.uniform(-1, 1, (300, 1))
    line = np.stack([np.roll(u[:, 0], delay) for delay in range(9)], axis=1)
    assert latency_of(u, line) == 0
    assert latency_of(u, line[:, 4:]) == 4
    repeats = line[:, 4:] + 3.0 * random.normal(size=(40, 300, 5))
    assert latency_of(u, repeats) == 4
