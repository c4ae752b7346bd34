"""Nobody else's inputs change the states: neither those of another sequence nor those of another user."""

from __future__ import annotations

import numpy as np

from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.plan import Plan, drives

_BATCH = 3


def batches(plan: Plan) -> int:
    """Two sequences alone, and the batch."""
    alone = plan.drive(plan.steps)
    return plan.compared(alone, alone, plan.drive(plan.steps, batch=_BATCH))


def users(plan: Plan) -> int:
    """Drives before and after, one of somebody else."""
    return plan.compared(*[plan.drive(plan.steps)] * 2) + plan.drive(plan.steps) + 2 * plan.reset_steps


@drives(batches)
def test_rows_of_a_batch(bench: Bench) -> None:
    """A sequence alone, and as the first and the last row of a batch."""
    u = bench.inputs("batch", batch=_BATCH)

    def alone() -> np.ndarray:
        return np.concatenate([bench.drive(u[row : row + 1])[0] for row in (0, _BATCH - 1)])

    def together() -> np.ndarray:
        return np.concatenate(bench.drive(u)[[0, -1]])

    bench.expect_same(bench.pair(alone, together), f"in a batch of {_BATCH}", rounds=True)


@drives(users)
def test_another_user(bench: Bench) -> None:
    """Somebody else opens the device, drives it and closes it: the next one finds it as before."""
    u = bench.inputs()
    before = bench.repeated(lambda: bench.drive(u)[0])
    with bench.another_user() as other:
        other.run(u[:, ::-1] if bench.reservoir.known_inputs() is None else u)
    bench.expect_same(Pair.of(before, bench.repeated(lambda: bench.drive(u)[0])), "after another user")
