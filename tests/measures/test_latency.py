"""By how many steps states are late, of responses whose latency is known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from reservoir_hw.measures import latency_of


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
