"""Nobody else's inputs change the states: neither those of another sequence nor those of another user."""

from __future__ import annotations

import numpy as np

from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import drives

_BATCH = 3


# Each sequence alone, and the batch.
@drives(lambda plan: plan.compared(_BATCH * plan.drive(plan.steps), plan.drive(plan.steps, batch=_BATCH)))
def test_rows_of_a_batch(bench: Bench) -> None:
    """A sequence alone, and as any row of a batch."""
    u = bench.inputs("batch", batch=_BATCH)
    alone_and_together = bench.pair(
        lambda: np.concatenate([bench.drive(row[None])[0] for row in u]), lambda: np.concatenate(bench.drive(u))
    )
    bench.expect_same(alone_and_together, f"in a batch of {_BATCH}", rounds=True)


# Drives of ours, and as many with one of somebody else before; opening ends in a reset.
@drives(lambda plan: plan.compared(*[plan.drive(plan.steps)] * 2, plan.drive(plan.past), 3 * plan.reset_steps))
def test_another_user(bench: Bench) -> None:
    """Somebody else opens the device, drives it and closes it: the next one finds it as before."""
    u = bench.inputs()
    theirs = u if bench.reservoir.known_inputs() is not None else bench.pasts()[0]

    # The noise of some simulations begins anew when they are opened, so both are.
    def after(driven: np.ndarray | None) -> np.ndarray:
        bench.lend(driven)
        return bench.drive(u)[0]

    bench.expect_same(bench.pair(lambda: after(None), lambda: after(theirs)), "after another user")
