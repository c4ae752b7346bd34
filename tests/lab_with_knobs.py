"""A device that no example knows: interferometers that see the last inputs, with a bias, a monitor, faults to plant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

NODES = 8


@dataclass
class Lab:
    """One device. `log` has what was done to it, in order."""

    noise: float = 0.0
    step_v: float = 0.0
    """Of the converter that reads the states; 0: none."""
    drift: float = 0.0
    """What the gain loses with each drive."""
    hysteresis: float = 0.0
    """How far the bias that acts stays behind the one that is set, on the way up and on the way down."""
    stuck: bool = False
    """Whether the bias takes no other value."""
    seed: int = 0
    log: list[str] = field(default_factory=list)
    bias: float = 0.0
    acting: float = 0.0
    drives: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.past = np.zeros(NODES)

    def setup(self) -> None:
        self.log.append("open")

    def close(self) -> None:
        self.log.append("close")

    def rest(self) -> None:
        self.past = np.zeros(NODES)
        self.log.append("rest")

    def set_bias(self, value: float) -> None:
        self.log.append(f"bias {value:.6g}")
        if not self.stuck:
            self.acting = min(max(self.acting, value - self.hysteresis), value + self.hysteresis)
            self.bias = value

    def read_bias(self) -> float:
        return self.bias

    def temperature(self) -> float:
        return 20 + 5 * self.bias

    def measure(self, u: np.ndarray) -> np.ndarray:
        self.drives += 1
        taps = np.lib.stride_tricks.sliding_window_view(np.concatenate([self.past, u[:, 0]]), NODES)[1:, ::-1]
        self.past = np.concatenate([self.past, u[:, 0]])[-NODES:]
        states = (1 - self.drift * self.drives) * np.sin(taps * np.linspace(1, 2, NODES) + self.acting) ** 2
        states = states + self.noise * self.random.normal(size=states.shape)
        return np.round(states / self.step_v) * self.step_v if self.step_v else states

    def file(self, **more: Any) -> dict[str, Any]:
        """What a lab would write."""
        bias = {
            "set": self.set_bias, "read": self.read_bias, "value": 0.2, "limits": [0, 1.5], "unit": "V",
            "resolution": 0.05, "ramp_step": 0.25, "ramp_wait_s": 0, "closing": 0,
        }  # fmt: skip
        temperature = {"read": self.temperature, "unit": "°C", "every_s": 1e-6, "limits": [19, 26]}
        return {
            "kind": "python", "call": self.measure, "setup_call": self.setup, "reset_call": self.rest,
            "close_call": self.close, "nodes": NODES, "inputs": 1, "simulated": False, "continuity": "held",
            "input_range": [-1, 1], "label": "interferometers", "knobs": {"bias_v": bias},
            "monitors": {"temperature": temperature}, **more,
        }  # fmt: skip
