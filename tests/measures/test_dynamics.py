"""Echo-state index, Lyapunov exponents and spectra of systems with known answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from measures.known import Map, correlated, linear, non_normal_matrix, random, random_matrix
from toys import SnapshotToy

from reservoir_hw.core.errors import InputRangeError, NotSupported
from reservoir_hw.measures import (
    Live,
    echo_state_index,
    kaplan_yorke,
    lyapunov_from_replicas,
    lyapunov_from_transition,
    lyapunov_spectrum,
)
from reservoir_hw.tasks.lorenz import KAPLAN_YORKE_DIMENSION, LYAPUNOV_SPECTRUM

RADIUS = 0.9
MATRICES = {"random": random_matrix(40, RADIUS), "non-normal": non_normal_matrix(30, RADIUS)}


def bistable(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Two stable branches, near ±0.96: a small input never leads from one to the other."""
    return np.tanh(2 * x + 0.1 * u)


def contracting(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    return 0.5 * x + u


def chaotic(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Stretches by 1.9 and folds: its exponent is ln 1.9."""
    return (1.9 * x + 0.1 * u + 0.3) % 1.0


def after_pasts(f: Any, pasts: int, steps: int = 400) -> np.ndarray:
    """States (pasts, steps, 1) from different initial states under one drive."""
    rng = random(1)
    x, u = rng.uniform(-1, 1, (pasts, 1)), rng.uniform(-1, 1, steps)
    states = np.empty((pasts, steps, 1))
    for t in range(steps):
        x = states[:, t] = f(x, u[t])
    return states


def test_echo_state_index_counts_the_responses() -> None:
    one = echo_state_index(after_pasts(contracting, 10))
    assert one.value == 1
    assert one.interval.low == 1
    assert one.interval.high == np.inf
    two = echo_state_index(after_pasts(bistable, 10))
    assert two.value == 2
    branch = after_pasts(bistable, 10)[:, -1, 0] > 0
    assert ((two.response == two.response[0]) == (branch == branch[0])).all()
    assert echo_state_index(after_pasts(bistable, 10), window=100).value == 2
    many = echo_state_index(after_pasts(chaotic, 10))
    assert many.value == 10
    assert "chaos" in many.note


def slow(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Forgets everything, by a factor e in 500 steps."""
    return x * np.exp(-0.002) + 0.1 * u


def slow_halves(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Two attractors, about ±3, each of which is reached slowly."""
    return np.sign(x) * 3 + (x - np.sign(x) * 3) * np.exp(-0.002) + 0.01 * u


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize(("f", "index"), [(slow, 1), (slow_halves, 2)])
def test_responses_that_still_approach_are_not_counted_as_different(f: Any, index: int, noise: float) -> None:
    long = after_pasts(f, 10, 8000)
    long += noise * random(3).standard_normal(long.shape)
    early = echo_state_index(long[:, :1000], noise=noise * 2**0.5)
    assert early.value == early.interval.low == index
    assert index < early.interval.high <= 10
    assert "still approaching each other: drive longer" in early.note
    assert early.response.max() + 1 == index
    late = echo_state_index(long, noise=noise * 2**0.5)
    assert late.value == index
    assert late.interval.high == np.inf
    assert "approaching" not in late.note


@pytest.mark.parametrize("steps", [12, 60, 400, 2000])
def test_neither_chaos_nor_stable_branches_approach(steps: int) -> None:
    for f, index in ((chaotic, 10), (bistable, 2)):
        found = echo_state_index(after_pasts(f, 10, steps))
        assert found.value == index
        assert found.interval.high == np.inf


def test_slow_chaos_is_no_approach() -> None:
    """Differences that are correlated for longer than the pieces: some pairs come closer while others go apart."""
    rng = random(5)
    x = np.stack([correlated(rng, 2000, 3, 0.995) for _ in range(16)])
    assert echo_state_index(x).value >= 14


def test_noise_does_not_split_a_response() -> None:
    rng = random(2)
    x = after_pasts(bistable, 10)
    x += 0.05 * rng.standard_normal(x.shape)
    assert echo_state_index(x).value == 10
    assert echo_state_index(x, noise=0.05 * 2**0.5).value == 2


@pytest.mark.parametrize(("f", "index", "noise"), [(contracting, 1, 0.0), (bistable, 2, 0.02)])
def test_live_echo_state_index(f: Any, index: int, noise: float) -> None:
    with Map(f, noise=noise, max_batch=3, continuity="free_running") as device:
        assert Live(device, steps=2000, washout=20).echo_state_index().value == index


@pytest.mark.parametrize("name", MATRICES)
def test_exponent_of_a_linear_reservoir_is_the_logarithm_of_its_spectral_radius(name: str) -> None:
    W = MATRICES[name]
    assert np.linalg.norm(W, 2) > 1.5
    with linear(W) as reservoir:
        live = Live(reservoir, steps=10_000)
        exact, replicas = live.lyapunov_exponent(), live.lyapunov_from_replicas()
    assert "set steps" in exact.note
    assert "pairs" in replicas.note
    for found in (exact, replicas):
        assert found.value == pytest.approx(np.log(RADIUS), abs=0.01)
        assert found.interval.low - 0.01 <= np.log(RADIUS) <= found.interval.high + 0.01


def test_float32_and_traces_with_noise() -> None:
    W = MATRICES["random"]
    rng = random(3)
    x = 3 * rng.standard_normal((10, 2, len(W)))
    u = rng.uniform(-1, 1, (10, 1, 300, len(W)))
    states = np.empty((10, 2, 300, len(W)))
    for t in range(300):
        x = states[:, :, t] = x @ W.T + u[:, :, t]
    found = lyapunov_from_replicas(states.astype(np.float32))
    assert found.value == pytest.approx(np.log(RADIUS), abs=0.02)
    noisy = states + 1e-3 * rng.standard_normal(states.shape)
    found = lyapunov_from_replicas(noisy)
    assert found.value == pytest.approx(np.log(RADIUS), abs=0.03)
    assert found.last < 150
    single = lyapunov_from_replicas(noisy[0], first=10)
    assert single.first == 10
    assert lyapunov_from_replicas(noisy[0], floor=1.0).last < single.last
    assert single.value == pytest.approx(np.log(RADIUS), abs=0.1)
    assert "pieces of the fall" in single.interval.method


def test_chaos_has_a_positive_exponent() -> None:
    u = random(4).uniform(-1, 1, (3, 2000, 1))
    found = lyapunov_from_transition(lambda v, x: chaotic(x, v), u, np.full((3, 1), 0.4))
    # A pair that the fold comes between is one step in a hundred million.
    assert found.value == pytest.approx(np.log(1.9), abs=0.01)
    with pytest.raises(InputRangeError, match="do not come closer"):
        lyapunov_from_replicas(after_pasts(chaotic, 4))


def test_a_device_that_holds_whole_levels_alone() -> None:
    level, u = 2.0**-14, random(6).uniform(-0.2, 0.2, (4, 400, 1))

    def halved(v: np.ndarray, x: np.ndarray) -> np.ndarray:
        return level * np.trunc((0.5 * np.rint(x / level)) + np.rint(v / level))

    start = np.zeros((4, 30), np.float32)
    assert lyapunov_from_transition(halved, u, start).value == -np.inf
    found = lyapunov_from_transition(halved, u, start + np.float32(0.2), level=level)
    assert found.value == pytest.approx(np.log(0.5), abs=0.02)


def test_a_delay_line_forgets_at_once() -> None:
    with linear(np.diag(np.ones(5), -1)) as line:
        live = Live(line, steps=1000, washout=20)
        found = live.lyapunov_exponent()
        assert found.value == -np.inf
        assert "after 6 steps" in found.note
        found = live.lyapunov_from_replicas()
        assert found.value == -np.inf
        assert "after 5 steps" in found.note


@pytest.mark.slow
def test_intervals_hold_what_they_promise() -> None:
    # x <- exp(-0.3 + 0.5 u) x + u with u uniform on ±1: the exponent is -0.3.
    rng = random(5)
    hits = []
    for _ in range(120):
        u = rng.uniform(-1, 1, (2, 400, 1))
        exact = lyapunov_from_transition(
            lambda v, x: np.exp(-0.3 + 0.5 * v) * x + v, u, rng.standard_normal((2, 1)), settle=20
        )
        u = rng.uniform(-1, 1, (8, 1, 200, 1))
        x = rng.standard_normal((8, 2, 1))
        states = np.empty((8, 2, 200, 1))
        for t in range(200):
            x = states[:, :, t] = np.exp(-0.3 + 0.5 * u[:, :, t]) * x + u[:, :, t]
        replicas = lyapunov_from_replicas(states + 1e-6 * rng.standard_normal(states.shape))
        hits.append([found.interval.low <= -0.3 <= found.interval.high for found in (exact, replicas)])
    rates = np.mean(hits, axis=0)
    assert (rates >= 0.88).all()
    assert (rates <= 0.99).all()


@pytest.mark.parametrize("noise", [1e-2, 1e-3])
def test_noise_makes_the_exponent_a_lower_bound(noise: float) -> None:
    """Ten directions fade at 0.5, one at 0.97 with a hundredth of the size: below the noise nobody sees it."""
    rng = np.random.default_rng(0)
    rates = np.array([0.5] * 10 + [0.97])
    first = rng.standard_normal((8, 11)) * np.array([1.0] * 10 + [0.01])
    time = np.arange(200)[:, None]
    states = first[:, None] * rates**time + noise * rng.standard_normal((8, 200, 11))
    found = lyapunov_from_replicas(states)
    assert found.interval.low <= math.log(0.97) <= found.interval.high == 0.0
    assert "At least this" in found.note
    common = rng.standard_normal((1, 2000, 11))
    clean = lyapunov_from_replicas(common + first[:, None] * rates ** np.arange(2000)[:, None])
    assert clean.value == pytest.approx(math.log(0.97), abs=0.01)
    assert clean.interval.high < 0


H = 0.01


def lorenz(t: int, x: np.ndarray) -> np.ndarray:
    """One step of `H` (Runge–Kutta, order 4) from (states, 3)."""
    del t

    def slope(at: np.ndarray) -> np.ndarray:
        x, y, z = at.T
        return np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], axis=1)

    first = slope(x)
    second = slope(x + H / 2 * first)
    third = slope(x + H / 2 * second)
    return x + H / 6 * (first + 2 * (second + third) + slope(x + H * third))


def on_the_attractor(trials: int) -> np.ndarray:
    x = random(0).normal([0.0, 0.0, 25.0], 1.0, (trials, 3))
    for t in range(3000):
        x = lorenz(t, x)
    return x


@pytest.mark.slow
def test_the_lorenz_system_as_published() -> None:
    found = lyapunov_spectrum(lorenz, on_the_attractor(60), steps=5_500, settle=500)
    exponents = found.exponents / H
    # The second one is 0: what is left of it is measured by the first.
    assert exponents == pytest.approx(LYAPUNOV_SPECTRUM, rel=0.02, abs=0.02 * LYAPUNOV_SPECTRUM[0])
    assert found.dimension == pytest.approx(KAPLAN_YORKE_DIMENSION, rel=0.01)
    # The sum is exact: the divergence of the flow, -(σ + 1 + β).
    assert exponents.sum() == pytest.approx(-(10 + 1 + 8 / 3), rel=1e-3)
    first, last = found.exponent_intervals[0], found.exponent_intervals[2]
    assert first.low / H < LYAPUNOV_SPECTRUM[0] < first.high / H
    assert last.low / H < LYAPUNOV_SPECTRUM[2] < last.high / H
    assert found.dimension_interval.low < KAPLAN_YORKE_DIMENSION < found.dimension_interval.high


@pytest.mark.slow
def test_a_linear_map_has_the_logarithms_of_its_eigenvalues() -> None:
    W = random_matrix(6, 0.9)
    found = lyapunov_spectrum(lambda t, x: x @ W.T + 1, np.ones((1, 6)), steps=4000, settle=400)
    assert found.exponents == pytest.approx(np.sort(np.log(np.abs(np.linalg.eigvals(W))))[::-1], abs=2e-3)
    assert found.dimension == 0


@pytest.mark.slow
def test_a_device_that_can_be_set() -> None:
    W = random_matrix(5, 0.8)
    with linear(W) as device:
        done: list[int] = []
        live = Live(device, steps=20_000, washout=100, on_steps=done.append)
        found = live.lyapunov_spectrum()
        assert sum(done) == live.planned_steps(["lyapunov_spectrum"])
    assert found.exponents == pytest.approx(np.sort(np.log(np.abs(np.linalg.eigvals(W))))[::-1], abs=0.01)


def test_the_dimension() -> None:
    assert kaplan_yorke(np.array([0.9056, 0.0, -14.5723])) == pytest.approx(2.06215, abs=1e-5)
    assert np.isnan(kaplan_yorke(np.array([1.0, -0.5])))
    assert kaplan_yorke(np.array([-0.1, -0.2])) == 0


def test_a_device_that_rounds() -> None:
    with SnapshotToy(deterministic=True, output_bits=8, state_range=(-2.0, 2.0)) as device:
        live = Live(device, steps=1000, washout=20)
        assert live.planned_steps(["lyapunov_spectrum"]) == 0
        with pytest.raises(NotSupported, match="rounds its states to 8 bits"):
            live.lyapunov_spectrum()
