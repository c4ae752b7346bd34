"""A linear problem for readouts, and how far two solutions of it are from each other."""

from __future__ import annotations

from typing import Any

import numpy as np


def problem(
    rows: int = 700, nodes: int = 12, outputs: int = 3, seed: int = 0, noise: float = 0.3
) -> tuple[np.ndarray, np.ndarray]:
    """Correlated states with different scales and offsets, targets linear in them plus noise."""
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((rows, nodes)) @ (np.eye(nodes) + 0.3 * rng.standard_normal((nodes, nodes)))
    states = states * rng.uniform(0.2, 3.0, nodes) + rng.uniform(-2, 2, nodes)
    targets = states @ rng.standard_normal((nodes, outputs)) + 5.0
    return states, targets + noise * rng.standard_normal(targets.shape)


def relative(a: Any, b: Any) -> float:
    return float(np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b)))
