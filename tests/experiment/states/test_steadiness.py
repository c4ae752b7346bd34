"""A device that drifts during a long drive is warned of; one that is only noisy, or driven otherwise, is not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.signal import lfilter

from reservoir_hw.experiment.states.watch import Steadiness


def drive(kind: str, seed: int, steps: int) -> np.ndarray:
    """Inputs (time, 1): independent, slow, periodic, of growing size."""
    random = np.random.default_rng(seed)
    u = random.uniform(-1, 1, steps)
    if kind == "slow":
        u[1:] *= 0.2
        u = np.asarray(lfilter([1.0], [1.0, -0.99], u))
    if kind == "periodic":
        u = 0.8 * np.sin(2 * np.pi * np.arange(steps) / 97.3)
    if kind == "growing":
        u *= np.linspace(1, 2, steps)
    if kind == "positive":
        u = u / 4 + 0.25
    return u[:, None]


def answers(u: np.ndarray, seed: int, *, noise: float, relax: float = 0.5) -> np.ndarray:
    """States (time, 10) of leaky nodes that saturate, with noise in parts of their deviation."""
    random = np.random.default_rng(seed + 1000)
    weights, offsets = 1.5 * random.normal(size=10), random.normal(size=10)
    x = np.asarray(lfilter([relax], [1.0, relax - 1], np.tanh(weights * u + offsets), axis=0))
    return x + noise * x.std(axis=0) * random.normal(size=x.shape)


def warnings(u: np.ndarray, x: np.ndarray, chunk: int = 700) -> list[str]:
    watch = Steadiness(x.shape[1])
    for begin in range(0, len(u), chunk):
        watch.look(u[None, begin : begin + chunk], x[None, begin : begin + chunk])
    return watch.warnings()


@pytest.mark.parametrize("kind", ["independent", "slow", "periodic", "growing", "positive"])
def test_an_undisturbed_device_is_not_warned_of(kind: str) -> None:
    """Over 90 seeds, with little noise and much, quick and slow: one may be warned of by chance."""
    alarms = 0
    for seed in range(90):
        u = drive(kind, seed, (900, 2500)[seed % 2])
        x = answers(u, seed, noise=(0.0, 0.02, 0.5)[seed % 3], relax=(0.5, 0.1)[seed // 3 % 2])
        alarms += bool(warnings(u, x))
    assert alarms <= 1


@pytest.mark.parametrize("noise", [0.01, 0.2])
@pytest.mark.parametrize(("kind", "chunk"), [("independent", 700), ("slow", 4096), ("independent", 9)])
def test_what_drifts_is_named(kind: str, chunk: int, noise: float) -> None:
    steps = 8000
    u, aged = drive(kind, 1, steps), np.linspace(0, 1, steps)[:, None]
    x = answers(u, 1, noise=noise)
    random = np.random.default_rng(0)
    spread = x.std(axis=0)
    # Gains are hard to tell of nodes that saturate, and where the inputs are slow.
    fewest = {"gain": 5 if kind == "independent" else 1, "mean": 8, "noise": 8}
    for what, changed in (
        ("gain", x * (1 - 0.4 * aged)),
        ("mean", x + 0.6 * spread * aged),
        ("noise", x + 0.8 * spread * aged * random.normal(size=x.shape)),
    ):
        (said,) = warnings(u, changed, chunk)
        match = re.search(rf"the {what} of (\d+) of 10 nodes changed", said)
        assert match, said
        assert int(match[1]) >= fewest[what], said
    one = x.copy()
    one[:, 6:7] += spread[6] * aged
    (said,) = warnings(u, one, chunk)
    assert "the mean of 1 of 10 nodes changed (node 6 by +0." in said
    assert not warnings(u, x, chunk)


def test_a_short_drive_says_nothing() -> None:
    u = drive("independent", 0, 300)
    assert not warnings(u, answers(u, 0, noise=0.0) * np.linspace(1, 2, 300)[:, None])
    assert not Steadiness(3).warnings()


def test_of_many_nodes_some_are_looked_at() -> None:
    """Also nodes that never move, many channels, and sequences side by side."""
    random = np.random.default_rng(4)
    u = random.uniform(-1, 1, (2, 3000, 9))
    x = np.tanh(u @ random.normal(size=(9, 500)) / 3)
    x[:, :, ::3] = 0.5
    aged = np.linspace(0, 1, 3000)[:, None]
    for factor, drifts in ((0.0, False), (0.3, True)):
        watch = Steadiness(500)
        watch.look(u, x * (1 - factor * aged) if drifts else x)
        assert bool(watch.warnings()) == drifts
    assert "of the 64 nodes looked at changed" in watch.warnings()[0]
