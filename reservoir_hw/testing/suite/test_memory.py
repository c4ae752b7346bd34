"""What was driven before is forgotten, and in time."""

from __future__ import annotations

import numpy as np

from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.experiment.devices.memory import LOOKED_AT
from reservoir_hw.measures import echo_state_index
from reservoir_hw.measures.comparison import ROUNDING
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import Plan, drives, failed, inconclusive, unverified

_PASTS = 4


def forgotten(plan: Plan) -> int:
    """Nothing where no memory is declared."""
    memory = plan.spec.memory_steps
    return plan.compared(*[plan.drive(plan.past + memory + LOOKED_AT)] * 2, 1) if memory else 0


@drives(forgotten)
def test_forgotten(bench: Bench) -> None:
    """After `memory_steps` common inputs two different pasts no longer matter."""
    memory = bench.spec.memory_steps
    if not memory:
        unverified("memory_steps is not declared")
    one, another = bench.pasts()
    common = bench.inputs("memory", steps=memory + LOOKED_AT)
    pair = bench.pair(lambda: _after(bench, one, common, memory), lambda: _after(bench, another, common, memory))
    bench.expect_same(pair, f"{memory} steps after different pasts", rounds=True, fades=True)


# Each past with the common drive, the first twice if the device scatters.
@drives(lambda plan: (_PASTS + (not plan.spec.deterministic)) * plan.drive(plan.past + _common(plan)))
def test_echo_state(bench: Bench) -> None:
    """Different pasts end in one response to the same inputs (echo-state index 1)."""
    past = bench.plan.past
    common = bench.inputs("echo state", steps=_common(bench.plan))
    pasts = [*bench.pasts()]
    pasts += [bench.inputs(f"past {number}", steps=past) for number in range(_PASTS - 2)]
    states = np.stack([_after(bench, before, common) for before in pasts])
    noise = 0.0
    if not bench.deterministic:
        last = slice(-len(common[0]) // 4, None)
        noise = float(np.sqrt(np.mean((_after(bench, pasts[0], common)[last] - states[0, last]) ** 2)))
    try:
        found = echo_state_index(states, tolerance=10 * ROUNDING, noise=noise)
    except InputRangeError as error:
        inconclusive(str(error))
    bench.statement.text = f"{found.value:g} response to {len(states)} pasts"
    if found.value > 1:
        failed(f"{found.value:g} different responses to the same inputs after {len(states)} pasts: {found.note}")


def _after(bench: Bench, past: np.ndarray, common: np.ndarray, forgetting: int = 0) -> np.ndarray:
    """States (time, nodes) of the common inputs after a past, without the first `forgetting` steps."""
    return bench.drive(np.concatenate([past, common], axis=1))[0, past.shape[1] + forgetting :]


def _common(plan: Plan) -> int:
    return max(2 * plan.steps, plan.spec.memory_steps + LOOKED_AT)
