"""After how many steps a device has forgotten what was before: a proposal for `memory_steps`.

`reservoir-hw conform` looks at a declared memory in the same way: the same unlike pasts, and the same comparison of as
many steps. So what is proposed here passes there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.measures.comparison import ALPHA, REPEATS, Comparison, compare, spread_of

LOOKED_AT = 24
"""Steps that are compared after the memory."""

# A device may remember longer if its inputs are small: parts of the input range.
_SIZES = (1.0, 0.3)
# Of the standard deviation of a state: what a device without noise may have left.
_NEGLIGIBLE = 1e-4
# So many steps after one another must agree, each with a p-value that is nothing special.
_AGREEING = 5
_ORDINARY = 0.1


@dataclass(frozen=True)
class Memory:
    """`steps` is None where the device still remembered at the end.

    Up to step `surely` unlike pasts surely differ (p ≤ `alpha`), and from `steps` on they agree within the repeat
    error. A difference of `threshold` would have been seen there; `repeat_error` is what a single state scatters by.
    Both are in standard deviations of the states. `differences` has what was seen of the past from each step on that
    was looked at.
    """

    steps: int | None
    surely: int
    looked_at: int
    threshold: float
    repeat_error: float
    alpha: float
    differences: dict[int, float]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.steps is None:
            return f"after {self.looked_at} steps the device still remembers what was before: look at more (--steps)"
        surely = f"up to step {self.surely} unlike pasts differ for sure" if self.surely else "no past was seen"
        within = f"within the repeat error ({self.repeat_error:.2g})" if self.repeat_error else "but for rounding"
        return (
            f"memory_steps: {self.steps}\n"
            f"between {min(self.surely + 1, self.steps)} and {self.steps}: {surely}, from step {self.steps} on they "
            f"agree {within}, where a difference of {self.threshold:.2g} would have been seen (standard deviations)"
        )


def unlike_pasts(low: float, high: float, *, steps: int, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Two pasts (1, steps, inputs) that leave other states behind: a high input, and one beside the middle.

    A photodetector, which sees the square of its input, cannot tell the lowest from the highest.
    """
    # One step longer: what counts steps, and is not reset, is then in another phase.
    levels = ((high, steps), (low + 0.45 * (high - low), steps + 1))
    one, another = (np.full((1, length, inputs), level) for level, length in levels)
    return one, another


def memory_of(
    reservoir: Reservoir,
    steps: int = 200,
    *,
    input_range: tuple[float, float] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Memory:
    """Compare the states after unlike pasts of `steps` inputs, under as many common inputs that follow.

    An open reservoir is reset and driven 32 times, in turn after the one past and the other; one that is deterministic
    4 times. It is left at rest. Small inputs are compared with those after rest. Raises `ConfigurationError` for an
    `input_range` that is not (lowest, highest).
    """
    spec = reservoir.spec
    low, high = input_range or reservoir.safe_range
    if not low < high:
        raise ConfigurationError(f"input_range {low:g} {high:g}: lowest first")
    zero = min(max(0.0, low), high)
    random, length = generator(0, "memory"), steps + LOOKED_AT
    one, another = unlike_pasts(low, high, steps=steps, inputs=spec.inputs)
    rest = one[:, :0]
    repeats = 1 if spec.deterministic else REPEATS
    answers = np.empty((len(_SIZES), 2, repeats, length, spec.nodes))
    runs = [(size, repeat, which) for size in range(len(_SIZES)) for repeat in range(repeats) for which in (0, 1)]
    common = [zero + size * (random.uniform(low, high, (1, length, spec.inputs)) - zero) for size in _SIZES]
    for number, (size, repeat, which) in enumerate(runs):
        if progress is not None:
            progress("comparing pasts", number, len(runs))
        # In turn, so that slow drift falls on both: A B, B A, A B, ...
        condition = which ^ (repeat % 2)
        past = (one, (another, rest)[size])[condition]
        reservoir.reset(1)
        driven = np.concatenate([past, common[size]], axis=1).astype(spec.dtype)
        answers[size, condition, repeat] = np.asarray(reservoir.run(driven))[0, -length:]
    reservoir.reset(1)
    return _forgetting(answers, steps)


def _forgetting(answers: np.ndarray, steps: int) -> Memory:
    """From answers (sizes, pasts, repeats, time, nodes) to common inputs."""
    differences: dict[int, float] = {}
    spreads = [spread_of(np.concatenate(list(of_size))) for of_size in answers]
    scatter = answers.std(axis=2, ddof=1) if answers.shape[2] > 1 else np.zeros(1)
    repeat_error = float(np.sqrt(np.mean(scatter**2))) / max(spreads)

    def after(step: int) -> Comparison:
        rows = slice(step, step + LOOKED_AT)
        found = [
            compare(one[:, rows], another[:, rows], spread=max(spreads), tolerance=_NEGLIGIBLE)
            for one, another in answers
        ]
        most = max(found, key=lambda one: (one.differs, -(1.0 if one.p is None else one.p), one.difference))
        differences[step] = most.difference
        return most

    # Of so many comparisons one may differ by chance, and then by little.
    whole = {begin: after(begin) for begin in range(0, steps, LOOKED_AT)}
    remembered = [at for at, one in whole.items() if one.differs and (one.p is None or one.difference > one.smallest)]
    surely, agreeing, last = 0, 0, None
    for step in range(remembered[-1] if remembered else 0, steps + 1):
        last = after(step)
        if last.differs:
            surely, agreeing = step, 0
            continue
        agrees = last.p is None or last.p > _ORDINARY / len(_SIZES) or last.difference <= _NEGLIGIBLE
        agreeing = agreeing + 1 if agrees else 0
        if agreeing == _AGREEING or (agreeing and last.p is None):
            found = max(1, step + 1 - agreeing)
            return Memory(found, surely, steps, last.smallest, repeat_error, ALPHA, differences)
    return Memory(None, surely, steps, 0.0 if last is None else last.smallest, repeat_error, ALPHA, differences)
