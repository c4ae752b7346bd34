"""Small reservoirs whose answers are known, one for each class of continuity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import step_noise
from reservoir_hw.core.spec import Identity, ReservoirSpec

TOY = Identity(vendor="tests", model="toy", simulated=True)


class Toy(Reservoir):
    """x <- x/2 + u: the state is known in closed form. Records what reaches it."""

    def __init__(self, noise: float = 0.0, fails_at: int | None = None, **declared: Any) -> None:
        known = {name: declared.pop(name) for name in ("reset", "resource", "out_of_range") if name in declared}
        super().__init__(
            ReservoirSpec(**{"inputs": 2, "nodes": 2, "dtype": "float64", "identity": TOY, **declared}), **known
        )
        self.noise = noise
        self.fails_at = fails_at
        self.driven: list[np.ndarray] = []
        self.resets: list[int] = []
        self.closed = 0

    def _close(self) -> None:
        self.closed += 1

    def _reset(self, batch: int) -> None:
        self.resets.append(batch)
        self.x = np.zeros((batch, 2))
        self.t = np.zeros(batch, dtype=np.int64)

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        self.driven.append(u.copy())
        states = np.empty((*u.shape[:2], 2)) if out is None else out
        for t in range(u.shape[1]):
            if self.fails_at is not None and t == self.fails_at:
                raise DeviceFault(f"toy fault at step {t}", steps_done=t, states=states[:, :t])
            self.x = self.x / 2 + u[:, t]
            for b in range(len(u)):
                if self.noise:
                    self.x[b] += self.noise * step_noise(1, b, int(self.t[b]), 1, 2)[0]
            self.t += 1
            states[:, t] = self.x
        return states


class SnapshotToy(Toy):
    """A toy that can be frozen, set and programmed."""

    def __init__(self, **declared: Any) -> None:
        super().__init__(**{"snapshot": True, "settable": True, "programmable": True, **declared})
        self.gain = 1.0

    def _snapshot(self) -> dict[str, np.ndarray]:
        return {"x": self.x.copy(), "t": self.t.copy()}

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.x, self.t = state["x"].copy(), state["t"].copy()

    def _transition(self, u: np.ndarray, states: np.ndarray) -> np.ndarray:
        return states / 2 + self.gain * u

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        self.gain = float(weights["gain"])
        identity = Identity(vendor="tests", model="toy", simulated=True, content=f"gain {self.gain}")
        return self.spec.model_copy(update={"identity": identity})
