"""Whether a device answers as the one did that the model was trained on: statistics of a golden response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator

STEPS, REPEATS = 200, 5
_MOST_REPEATS = 1000

# A device that repeats itself better than this share of a node's movement is compared to this share.
_FLOOR = 1e-3

LARGEST = 1.5
"""Deviation, in units of what means of as many repeats differ by, up to which a device passes."""


@dataclass(frozen=True)
class ProbeComparison:
    """How far a device's response is from the golden one.

    `deviation` is √(mean over steps and nodes of (new − golden)² / expected²), both being means of as many repeats, and
    `expected` of a node what such means differ by, from the repeats that were recorded: about 1 for the same device.
    `worst_node` deviates most.
    """

    deviation: float
    worst_node: int
    worst_deviation: float

    @property
    def same(self) -> bool:
        """Whether it passes for the same device."""
        return self.deviation <= LARGEST


def record_probe(reservoir: Reservoir, *, steps: int = STEPS, repeats: int = REPEATS) -> dict[str, np.ndarray]:
    """Drive an open device `repeats` times from rest with the same noise; returns `inputs`, `mean` and `spread`.

    inputs (steps, inputs) are uniform within the middle half of the device's range, or ±0.5; mean (steps, nodes) and
    spread (nodes,) are those of the responses, the spread being the standard deviation between repeats.
    """
    spec = reservoir.spec
    low, high = reservoir.safe_range
    middle, reach = (low + high) / 2, (high - low) / 4
    drawn = generator(0, "probe").uniform(-1.0, 1.0, (steps, spec.inputs))
    inputs = (middle + reach * drawn).astype(spec.dtype)
    responses = np.stack([_response(reservoir, inputs) for _ in range(repeats)])
    spread = np.sqrt(responses.var(0, ddof=1).mean(0)) if repeats > 1 else np.zeros(spec.nodes)
    return {
        "inputs": inputs,
        "mean": responses.mean(0).astype(np.float32),
        "spread": spread.astype(np.float32),
        "repeats": np.array([repeats], np.int64),
    }


def compare_probe(reservoir: Reservoir, golden: Mapping[str, np.ndarray]) -> ProbeComparison:
    """Drive an open device as the golden response was recorded, and compare."""
    missing = {"inputs", "mean", "spread", "repeats"} - set(golden)
    if missing:
        raise ConfigurationError(f"the golden response lacks {', '.join(sorted(missing))}: export the bundle again")
    inputs, mean = np.asarray(golden["inputs"]), np.asarray(golden["mean"], np.float64)
    spec = reservoir.spec
    spread, repeated = np.asarray(golden["spread"], np.float64), np.asarray(golden["repeats"])
    if spread.shape != (spec.nodes,) or repeated.shape != (1,) or not 1 <= int(repeated[0]) <= _MOST_REPEATS:
        raise ConfigurationError("the golden response does not fit together: export the bundle again")
    if inputs.ndim != 2 or inputs.shape[1] != spec.inputs or mean.shape != (len(inputs), spec.nodes):
        raise ConfigurationError(
            f"the golden response has {inputs.shape[-1]} inputs and {mean.shape[-1]} nodes, the device {spec.inputs} "
            f"and {spec.nodes}"
        )
    repeats = int(repeated[0])
    new = np.mean([_response(reservoir, inputs.astype(spec.dtype)) for _ in range(repeats)], 0)
    squared = np.square(spread) * 2 / repeats
    floor = _FLOOR * np.maximum(mean.std(0), 1e-6)
    per_node = np.square(new - mean).mean(0) / (squared + floor**2)
    worst = int(per_node.argmax())
    return ProbeComparison(float(np.sqrt(per_node.mean())), worst, float(np.sqrt(per_node[worst])))


def _response(reservoir: Reservoir, inputs: np.ndarray) -> np.ndarray:
    reservoir.reset(1)
    return np.asarray(reservoir.run(inputs[None]), np.float64)[0]
