"""Faults that are smaller than those of broken.py, and a healthy device whose noise is no white one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from testing.broken import fail_once, new_noise, start_noise

from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.core.hil import HilConfig
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.testing.conformance import conform

NODES = 10
_random = np.random.default_rng(4)
_W = _random.standard_normal((NODES, NODES))
_W *= 0.6 / np.abs(np.linalg.eigvals(_W)).max()
_V = _random.uniform(-0.8, 0.8, (NODES, 3))

Fault = Literal[
    "none",
    "clips at 0.95",
    "clips one of three inputs",
    "leaks into the middle row",
    "keeps one node over a reset",
    "detector, not reset",
    "detector, remembers longer",
]


class SubtleConfig(ReservoirConfig):
    """`wander` is the standard deviation of the gain of the readout, which changes within some thousand steps."""

    kind: Literal["subtle"] = "subtle"
    fault: Fault = "none"
    noise: float = 0.0
    wander: float = 0.0

    def build(self) -> Subtle:
        return Subtle(self)


class Subtle(Reservoir):
    """A network whose fault is small, or is seen only by some inputs."""

    def __init__(self, config: SubtleConfig) -> None:
        super().__init__(
            ReservoirSpec(
                inputs=3,
                nodes=NODES,
                dtype="float64",
                input_range=(-1.0, 1.0),
                memory_steps=1 if "longer" in config.fault else 24,
                deterministic=not config.noise,
                identity=Identity(vendor="tests", model="subtle", simulated=True, content=config.fault),
            )
        )
        self._fault, self._noise, self._wander = config.fault, config.noise, config.wander
        self._fails = (config.hil or HilConfig()).folder / "fails once"
        self._random = new_noise()
        self._gain = 0.0
        self._states = np.zeros((1, NODES))

    def _reset(self, batch: int) -> None:
        kept = self._states
        self._states = np.zeros((batch, NODES))
        if len(kept) == batch and self._fault == "detector, not reset":
            self._states = kept
        if len(kept) == batch and self._fault == "keeps one node over a reset":
            self._states[:, 3] = kept[:, 3]

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        if self._fails.exists():
            self._fails.unlink()
            raise DeviceFault("the supply has failed")
        u = u.copy()
        if self._fault == "clips at 0.95":
            u = np.clip(u, -0.95, 0.95)
        if self._fault == "clips one of three inputs":
            u[..., 2] = np.clip(u[..., 2], -0.3, 0.3)
        if self._fault.startswith("detector"):
            u = u**2
        states = np.empty((*u.shape[:2], NODES))
        for t in range(u.shape[1]):
            self._states = np.tanh(self._states @ _W.T + u[:, t] @ _V.T)
            if self._fault == "leaks into the middle row" and len(u) > 2:
                self._states[1] += 0.1 * self._states[0]
            self._gain += -self._gain / 2000 + self._wander * (2 / 2000) ** 0.5 * self._random.standard_normal()
            states[:, t] = (1 + self._gain) * self._states
        return states + self._noise * self._random.standard_normal(states.shape)


@pytest.mark.parametrize("noise", [0.003, pytest.param(0.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("fault", "group"),
    [
        ("clips at 0.95", "range"),
        ("clips one of three inputs", "range"),
        ("leaks into the middle row", "isolation"),
        ("keeps one node over a reset", "reset"),
        ("detector, not reset", "reset"),
        ("detector, remembers longer", "memory"),
    ],
)
def test_a_small_fault_is_seen(fault: Fault, group: str, noise: float) -> None:
    start_noise(0)
    report = conform(SubtleConfig(fault=fault, noise=noise), groups=["repeatability", group])
    assert group in report.failed_groups, [one.text for one in report.statements]


@pytest.mark.slow
def test_noise_that_wanders_is_no_fault(tmp_path: Path) -> None:
    start_noise(0)
    hil = HilConfig(folder=tmp_path, fault=f"testing.broken:{fail_once.__name__}")
    device = SubtleConfig(noise=0.003, wander=0.01, hil=hil)
    alarms = [
        f"{one.title}: {one.text}"
        for seed in range(12)
        for one in conform(device, groups=["reset", "isolation", "recovery"], seed=seed).alarms
    ]
    assert alarms == []
