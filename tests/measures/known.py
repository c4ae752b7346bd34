"""Systems whose measures are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.backends.simulated import Esn, EsnWeights
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import step_noise
from reservoir_hw.core.spec import Identity, ReservoirSpec


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def delayed(u: np.ndarray, delay: int) -> np.ndarray:
    """(time,) -> (time,), 0 before the first input."""
    return np.concatenate([np.zeros(delay), u[: len(u) - delay]])


def correlated(rng: np.random.Generator, steps: int, nodes: int, memory: float) -> np.ndarray:
    """(steps, nodes) with unit variance and the correlation `memory` from step to step."""
    fresh = rng.standard_normal((steps, nodes)) * (1 - memory**2) ** 0.5
    x = np.empty_like(fresh)
    x[0] = rng.standard_normal(nodes)
    for t in range(1, steps):
        x[t] = memory * x[t - 1] + fresh[t]
    return x


def random_matrix(nodes: int, radius: float) -> np.ndarray:
    W = random(1).standard_normal((nodes, nodes))
    return W * radius / np.abs(np.linalg.eigvals(W)).max()


def non_normal_matrix(nodes: int, radius: float) -> np.ndarray:
    """Real eigenvalues with nearly parallel eigenvectors: differences grow many times before they shrink."""
    rng = random(2)
    V = rng.standard_normal((nodes, nodes))
    V[:, 1:] += 3 * V[:, :1]
    values = np.append(radius, rng.uniform(0.2, 0.9, nodes - 1) * radius)
    return V @ np.diag(values) @ np.linalg.inv(V)


def linear(W: np.ndarray) -> Esn:
    weights = EsnWeights.from_arrays(W, random(3).uniform(-1, 1, (len(W), 1)))
    return Esn(weights, activation="identity", dtype="float64")


class Map(Reservoir):
    """x <- f(x, u), read twice; f takes (batch, 1) and (batch, 1). Noise and drift are in what is read.

    The drift is added at each reset.
    """

    def __init__(self, f: Any, noise: float = 0.0, drift: float = 0.0, **declared: Any) -> None:
        identity = Identity(vendor="tests", model="map", simulated=True)
        fixed = {"inputs": 1, "nodes": 2, "dtype": "float64", "identity": identity}
        super().__init__(ReservoirSpec(**{**fixed, **declared}))
        self._f, self._noise, self._drift = f, noise, drift
        self._resets = 0

    def _reset(self, batch: int) -> None:
        self._x = np.zeros((batch, 1))
        self._resets += 1

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        del out
        states = np.empty((*u.shape[:2], 2))
        for t in range(u.shape[1]):
            self._x = self._f(self._x, u[:, t])
            states[:, t] = self._x
        for sequence in range(len(u) if self._noise else 0):
            states[sequence] += self._noise * step_noise(self._resets, sequence, 0, u.shape[1], 2)
        return states + self._drift * self._resets
