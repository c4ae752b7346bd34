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
_REPEATS = 2
# Of the standard deviation of a state: what a device without noise may have left.
_NEGLIGIBLE = 1e-4
# So many standard deviations of noise are no memory.
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
    """Compare the states after so many random inputs with those after rest, for `steps` common inputs.

    An open reservoir is reset and driven twelve times, and left at rest. Raises `ConfigurationError` for an
    `input_range` that is not (lowest, highest).
    """
    spec = reservoir.spec
    low, high = input_range or spec.input_range or (-1.0, 1.0)
    if not low < high:
        raise ConfigurationError(f"input_range {low:g} {high:g}: lowest first")
    zero = min(max(0.0, low), high)
    random = generator(0, "memory")
    runs = [(size, past) for size in _SIZES for past in (True, False)] * _REPEATS
    inputs = {size: zero + size * (random.uniform(low, high, (2 * steps, spec.inputs)) - zero) for size in _SIZES}
    for driven in inputs.values():
        driven[:steps] = random.uniform(low, high, (steps, spec.inputs))
    answers: dict[tuple[float, bool], list[np.ndarray]] = {run: [] for run in runs}
    for number, (size, past) in enumerate(runs):
        if progress is not None:
            progress("comparing two pasts", number, len(runs))
        u = inputs[size] if past else inputs[size][steps:]
        reservoir.reset(1)
        states = np.asarray(reservoir.run(u[None].astype(spec.dtype)), np.float64)[0, -steps:]
        answers[size, past].append(states)
    reservoir.reset(1)
    # Sizes, pasts, repeats, steps, nodes.
    states = np.array([[answers[size, past] for past in (True, False)] for size in _SIZES])
    variance = states.var(axis=2, ddof=1).mean()
    negligible = float(max(np.sqrt(variance), _NEGLIGIBLE * states[0].std(axis=(0, 1, 2)).mean()))
    means = states.mean(axis=2)
    differ = np.mean((means[:, 0] - means[:, 1]) ** 2, axis=2)
    # The noise of the two means makes a difference of its own.
    left = np.sqrt(np.maximum(0.0, differ - _SURE**2 * 2 * variance / _REPEATS).max(axis=0)) / max(negligible, 1e-300)
    forgotten = np.convolve(left <= 1, np.ones(_FORGOTTEN), "valid") == _FORGOTTEN
    found = max(1, int(np.argmax(forgotten))) if forgotten.any() else None
    return Memory(found, steps, negligible, left.tolist())
