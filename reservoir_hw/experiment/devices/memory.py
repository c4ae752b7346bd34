"""After how many steps a device has forgotten what was before: a proposal for `memory_steps`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator

# A device may remember longer if its inputs are small: parts of the input range.
_SIZES = (1.0, 0.3, 0.1)
_PASTS = 4
# Of the standard deviation of a state: what a device without noise may have left.
_NEGLIGIBLE = 1e-4
_SURE = 2.0
# So many steps after one another must have forgotten.
_FORGOTTEN = 5


@dataclass(frozen=True)
class Memory:
    """`steps` is None where the device still remembered at the end.

    `left` has for each step what was left of the past in a state, rms, in parts of `negligible`. That is the noise of a
    state, or 1e-4 of its standard deviation where there is less noise.
    """

    steps: int | None
    looked_at: int
    negligible: float
    left: list[float]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.steps is None:
            return f"after {self.looked_at} steps the device still remembers what was before: look at more (--steps)"
        return f"memory_steps: {self.steps}"


def memory_of(
    reservoir: Reservoir,
    steps: int = 200,
    *,
    input_range: tuple[float, float] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Memory:
    """Compare the states after random pasts of `steps` inputs with those after rest, for as many common inputs.

    An open reservoir is reset and driven 24 times, and left at rest. Raises `ConfigurationError` for an
    `input_range` that is not (lowest, highest).
    """
    spec = reservoir.spec
    low, high = input_range or reservoir.safe_range
    if not low < high:
        raise ConfigurationError(f"input_range {low:g} {high:g}: lowest first")
    zero = min(max(0.0, low), high)
    random = generator(0, "memory")
    pasts = random.uniform(low, high, (_PASTS, steps, spec.inputs))
    common = [zero + size * (random.uniform(low, high, (steps, spec.inputs)) - zero) for size in _SIZES]
    answers = np.empty((len(_SIZES), _PASTS, 2, steps, spec.nodes))
    runs = list(np.ndindex(answers.shape[:3]))
    for number, (size, past, at_rest) in enumerate(runs):
        if progress is not None:
            progress("comparing pasts", number, len(runs))
        u = common[size] if at_rest else np.concatenate([pasts[past], common[size]])
        reservoir.reset(1)
        answers[size, past, at_rest] = np.asarray(reservoir.run(u[None].astype(spec.dtype)))[0, -steps:]
    reservoir.reset(1)
    after_rest = answers[:, :, 1]
    variance = after_rest.var(axis=1, ddof=1).mean()
    negligible = float(max(np.sqrt(variance), _NEGLIGIBLE * answers[0].std(axis=(0, 1, 2)).mean()))
    differ = np.mean((answers[:, :, 0] - after_rest.mean(axis=1, keepdims=True)) ** 2, axis=(1, 3)).max(axis=0)
    # Noise makes a difference of its own, whose largest lies some deviations above its mean where there are few nodes.
    by_noise = variance * (1 + 1 / _PASTS) * (1 + _SURE * np.sqrt(2 / (_PASTS * spec.nodes)))
    left = np.sqrt(np.maximum(0.0, differ - by_noise)) / max(negligible, 1e-300)
    forgotten = np.convolve(left <= 1, np.ones(_FORGOTTEN), "valid") == _FORGOTTEN
    found = max(1, int(np.argmax(forgotten))) if forgotten.any() else None
    return Memory(found, steps, negligible, left.tolist())
