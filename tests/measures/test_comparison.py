"""The exact permutation test: its false alarms, what it sees, and what it says it could have seen."""

from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.measures.comparison import ALPHA, REPEATS, Comparison, compare_exactly, compare_repeats, spread_of

STEPS, NODES = 30, 8


def drives(random: np.random.Generator, white: float, common: float) -> np.ndarray:
    """(repeats, time, nodes): the same response, noise of its own in each number, and noise that all numbers share."""
    response = np.sin(np.arange(STEPS)[:, None] * np.linspace(0.3, 1.5, NODES))
    shared = common * random.standard_normal((REPEATS, 1, 1))
    return response + white * random.standard_normal((REPEATS, STEPS, NODES)) + shared


def compared(random: np.random.Generator, white: float = 0.1, common: float = 0.1, moved: float = 0.0) -> Comparison:
    first, second = drives(random, white, common), drives(random, white, common)
    return compare_repeats(first, second + moved, spread=1.0)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("white", "common"), [(0.1, 0.1), pytest.param(0.1, 0.0, marks=SLOW), pytest.param(0.0, 0.1, marks=SLOW)]
)
def test_false_alarms_are_rare_whatever_the_noise_looks_like(white: float, common: float) -> None:
    random = np.random.default_rng(0)
    p = np.array([compared(random, white, common).p for _ in range(100)])
    for level in (0.05, 0.2, 0.5):
        # Five standard errors. The three distances are akin, so that fewer than the level are due, but not none.
        assert level / 5 <= np.mean(p <= level) <= level + 5 * (level * (1 - level) / len(p)) ** 0.5


@pytest.mark.slow
def test_what_could_have_been_seen_is_seen() -> None:
    random = np.random.default_rng(1)
    smallest = float(np.median([compared(random).smallest for _ in range(40)]))
    found = [compared(random, moved=1.5 * smallest) for _ in range(40)]
    assert sum(one.differs for one in found) >= 36
    assert np.mean([one.difference for one in found]) == pytest.approx(1.5 * smallest, rel=0.2)
    # A twentieth of it is not seen: the bound is no mere formality.
    assert not any(compared(random, moved=smallest / 20).differs for _ in range(40))


def test_drives_without_scatter() -> None:
    response = np.random.default_rng(2).standard_normal((STEPS, NODES))
    same = np.repeat(response[None], REPEATS, axis=0)
    found = compare_repeats(same, same, spread=1.0)
    assert (found.p, found.effect, found.smallest, found.differs, found.conclusive) == (1.0, 0.0, 0.0, False, True)
    moved = same.copy()
    moved[:, 3, 5] += 0.5
    found = compare_repeats(same, moved, spread=1.0)
    assert found.differs
    assert found.p is not None
    assert found.p <= ALPHA
    assert found.effect == np.inf
    assert (found.step, found.node) == (3, 5)


def test_single_drives_are_compared_bit_by_bit() -> None:
    a = np.random.default_rng(3).standard_normal((STEPS, NODES))
    b = a.copy()
    b[7, 2] = np.nextafter(b[7, 2], 2)
    spread = spread_of(a[None])
    assert not compare_exactly(a, a, spread=spread).differs
    found = compare_exactly(a, b, spread=spread)
    assert found.differs
    assert (found.step, found.node) == (7, 2)
    assert not compare_exactly(a, b, spread=spread, tolerance=1e-3).differs
