from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.readout.baselines import fir as module
from reservoir_hw.readout.baselines.fir import FirConfig


def drawn(seed: int, batch: int = 1, steps: int = 400, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (batch, steps, channels)).astype(np.float32)


def filtered(u: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """y(t) = 0.3 + Σ_k weights[k] · u(t - k), with zeros before the first input: (batch, time, 1)."""
    y = np.full((*u.shape[:2], 1), 0.3)
    for k, weight in enumerate(weights):
        y[:, k:, 0] += u[:, : u.shape[1] - k] @ np.atleast_1d(weight)
    return y


def learned(taps: int, u: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    return FirConfig(kind="fir", taps=taps).filtered(u, y, test)


@pytest.mark.parametrize("channels", [1, 3])
def test_it_finds_a_filter_and_continues_the_training(channels: int) -> None:
    u = drawn(0, steps=600, channels=channels)
    weights = np.random.default_rng(1).normal(size=(5, channels))
    y = filtered(u, weights)
    found = learned(5, u[:, :400], y[:, :400], u[:, 400:])
    assert found.dtype == np.float32
    # From its first step on: the register holds the end of the training.
    np.testing.assert_allclose(found, y[:, 400:], atol=1e-4)


def test_a_filter_too_short_does_not() -> None:
    u = drawn(0, steps=600)
    y = filtered(u, np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    assert np.abs(learned(4, u[:, :400], y[:, :400], u[:, 400:]) - y[:, 400:]).max() > 0.5


def test_the_empty_register_is_not_learned_from() -> None:
    u = drawn(0)
    y = filtered(u, np.array([1.0, 2.0, 3.0]))
    spoilt = y.copy()
    spoilt[:, :2] = 1e6
    expected = learned(3, u, y, u)
    np.testing.assert_array_equal(learned(3, u, spoilt, u), expected)


def test_batches() -> None:
    u = drawn(0, batch=3)
    y = filtered(u, np.array([1.0, -1.0]))
    np.testing.assert_allclose(learned(2, u[:, :300], y[:, :300], u[:, 300:]), y[:, 300:], atol=1e-4)
    twice = learned(2, u[:, :300], y[:, :300], drawn(2, batch=2))
    assert twice.shape == (2, 400, 1)
    # Sequences of another batch begin after the first of the training.
    np.testing.assert_allclose(twice[:, 0, 0], 0.3 + drawn(2, batch=2)[:, 0, 0] - u[0, 299, 0], atol=1e-4)


def test_refused() -> None:
    u = drawn(0)
    with pytest.raises(ConfigurationError, match="13 taps need more than the 13 train"):
        learned(13, u[:, :13], u[:, :13], u)
    with pytest.raises(ShapeError, match="targets"):
        learned(13, u, u[:, :, 0], u)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    u = drawn(0)
    y = filtered(u, np.arange(4.0))
    whole = learned(4, u, y, u)
    monkeypatch.setattr(module, "_CHUNK", 4 * 37)
    np.testing.assert_allclose(learned(4, u, y, u), whole, atol=1e-5)
