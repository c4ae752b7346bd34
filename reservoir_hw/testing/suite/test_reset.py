"""A reset makes the device forget."""

from __future__ import annotations

import numpy as np

from reservoir_hw.core.spec import NoReset
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import drives, not_offered


# A past and a drive for each condition.
@drives(lambda plan: plan.compared(*[plan.drive(plan.past), plan.drive(plan.steps)] * 2, 1))
def test_different_pasts(bench: Bench) -> None:
    """The same drive after a reset, whatever was driven before it."""
    policy = bench.reservoir.reset_policy
    if isinstance(policy, NoReset):
        not_offered(policy.reason)
    u = bench.inputs()
    one, another = bench.pasts()

    def after(past: np.ndarray) -> np.ndarray:
        bench.drive(past)
        return bench.drive(u)[0]

    bench.expect_same(bench.pair(lambda: after(one), lambda: after(another)), "after another past")
