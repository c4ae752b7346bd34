"""The noise budget: parts that are known, and that they add up."""

from __future__ import annotations

import numpy as np
import pytest
from measures.known import Map, random, random_matrix

from reservoir_hw.measures import Live, NoiseBudget, Recorded, noise_budget

DELAYS = (40, 20, 8, 5)
NODES = 8


def responses(steps: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (steps, 1) and noiseless states (steps, nodes) of a network that forgets."""
    W, w = random_matrix(NODES, 0.6), random(3).uniform(-0.5, 0.5, NODES)
    u = random(seed).uniform(-1, 1, (steps + 100, 1))
    x, states = np.zeros(NODES), np.empty((steps + 100, NODES))
    for t in range(steps + 100):
        x = states[t] = np.tanh(W @ x + w * u[t, 0] + 0.1)
    return u[100:], states[100:]


def budget(noise: float, seed: int, repeats: int = 4) -> NoiseBudget:
    u, states = responses(8000, seed)
    planted = noise * random(seed + 1000).standard_normal((repeats, *states.shape))
    return noise_budget(u, states + planted, max_delays=DELAYS, input_range=(-1, 1))


def lost_to(noise: float) -> float:
    """What this noise takes of the rank: tr(C⁻¹ (C - S)) of the noiseless states of a long drive."""
    S = np.cov(responses(50_000, 77)[1].T)
    return NODES - float(np.trace(np.linalg.solve(S + noise**2 * np.eye(NODES), S)))


@pytest.mark.parametrize("noise", [0.1, pytest.param(0.01, marks=pytest.mark.slow)])
def test_planted_noise_is_found_and_the_budget_adds_up(noise: float) -> None:
    true, half = lost_to(noise), lost_to(noise / 2**0.5)
    found = [budget(noise, seed) for seed in range(4)]
    for one in found:
        assert one.rank == pytest.approx(one.linear + one.nonlinear + one.lost + one.rest)
        assert one.value == one.lost[0]
        assert list(one.repetitions) == [1, 2]
        assert one.forecast[1] == pytest.approx(one.lost[1], abs=0.05)
    within = [
        of[number].low <= value <= of[number].high
        for one in found
        for number, value, of in (
            (0, true, one.lost_intervals),
            (1, half, one.lost_intervals),
            (0, 0.0, one.rest_intervals),
            (1, 0.0, one.rest_intervals),
        )
    ]
    # 16 intervals for 95 %.
    assert sum(within) >= 13
    assert abs(np.mean([one.rest[0] for one in found])) < 0.1
    assert all(part.high - part.low < 0.4 for one in found for part in one.rest_intervals)


def test_no_part_lies_beyond_what_is_possible_where_noise_is_nearly_all() -> None:
    for seed in range(3):
        one = budget(10.0, seed, repeats=3)
        assert 0 <= one.lost[0] <= one.rank[0] == NODES
        for part, interval in (
            (one.linear, one.linear_intervals),
            (one.nonlinear, one.nonlinear_intervals),
            (one.lost, one.lost_intervals),
            (one.rest, one.rest_intervals),
        ):
            assert interval[0].low <= part[0] <= interval[0].high
        assert one.rank == pytest.approx(one.linear + one.nonlinear + one.lost + one.rest)
        assert "opposed" not in one.note


def test_repetitions_that_differ_by_a_pattern_are_said() -> None:
    u, states = responses(4000, 0)
    pattern = random(1).standard_normal(states.shape)
    one = noise_budget(u, np.stack([pattern, -pattern]), max_delays=DELAYS, input_range=(-1, 1))
    assert one.lost[0] == NODES
    assert "opposed from one repetition to the next" in one.note


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.1, 10.0])
def test_intervals_hold_what_was_planted(noise: float) -> None:
    true = lost_to(noise)
    found = [budget(noise, seed) for seed in range(100, 140)]
    assert np.mean([one.lost_intervals[0].low <= true <= one.lost_intervals[0].high for one in found]) >= 0.85
    assert np.mean([one.rest_intervals[0].low <= 0 <= one.rest_intervals[0].high for one in found]) >= 0.8
    assert abs(np.mean([one.lost[0] for one in found]) - true) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1000, 3000])
def test_the_budget_of_a_short_drive_adds_up(steps: int) -> None:
    rests = []
    for seed in range(40):
        u, states = responses(steps, seed)
        rests.append(noise_budget(u, np.stack([states, states]), max_delays=DELAYS, input_range=(-1, 1)))
    intervals = [one.rest_intervals[0] for one in rests]
    assert np.mean([interval.low <= 0 <= interval.high for interval in intervals]) >= 0.85
    # They are no wider than the scatter asks for.
    scatter = float(np.std([one.rest[0] for one in rests]))
    assert np.mean([interval.high - interval.low for interval in intervals]) < 6 * scatter


def test_nothing_is_lost_without_noise() -> None:
    one = budget(0.0, 5, repeats=2)
    assert one.rank[0] == NODES
    assert abs(one.lost[0]) < 1e-9
    assert one.linear[0] + one.nonlinear[0] == pytest.approx(NODES, abs=0.2)
    assert one.nonlinear[0] > 1


def test_functions_that_were_not_tried_are_the_rest() -> None:
    u, states = responses(8000, 0)
    one = noise_budget(u, np.stack([states, states]), max_delays=(40,), input_range=(-1, 1))
    assert one.rest_intervals[0].low > 1
    assert "not tried" in one.note


def test_a_device_and_its_recording() -> None:
    with Map(lambda x, u: 0.8 * x + u, noise=0.3) as device:
        done: list[int] = []
        live = Live(device, steps=2000, washout=60, repeats=3, max_delay=30, on_steps=done.append)
        assert live.planned_steps(["noise_budget"]) == 3 * (2 * 60 + 2000)
        one = live.noise_budget()
        assert sum(done) == live.planned_steps(["noise_budget"])
        inputs, states = live.repeated_drive()
    # Both nodes read the same x: one direction is the signal, with noise, and the other noise alone.
    assert one.rank[0] == 2
    assert one.lost[0] == pytest.approx(1 + 0.045 / (1 / 3 / 0.36 + 0.045), abs=0.03)
    recorded = Recorded((np.stack([inputs] * 3), states), washout=60, max_delay=30).noise_budget()
    assert recorded.lost[0] == pytest.approx(one.lost[0], abs=0.02)


def test_what_has_no_repetitions() -> None:
    u, states = responses(8000, 0)
    noisy = states + 0.1 * random(9).standard_normal(states.shape)
    twice = noise_budget(u, np.stack([noisy, states]), max_delays=DELAYS)
    one = Recorded((u, noisy), max_delay=40).noise_budget()
    assert np.isnan(one.value)
    assert "cannot be told apart" in one.note
    assert one.linear[0] == pytest.approx(twice.linear[0], abs=0.02)
    assert one.interval.low == 0
    assert one.interval.high > lost_to(0.1)
    assert one.rank[0] == pytest.approx(one.linear[0] + one.nonlinear[0] + one.rest[0])
