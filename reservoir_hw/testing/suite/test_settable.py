"""A step from given states is the step that the device makes from them."""

from __future__ import annotations

import numpy as np

from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.plan import drives, not_offered


# Runs; transitions leave the device's own state as it is.
@drives(lambda plan: plan.compared(plan.drive(plan.steps)) if plan.spec.settable else 0)
def test_transition(bench: Bench) -> None:
    """Each step of a run, and a transition from the states before it."""
    if not bench.spec.settable:
        not_offered(bench.spec.not_supported.get("settable", "not declared"))
    u = bench.inputs()
    runs = bench.repeated(u)
    steps = np.stack([np.asarray(bench.reservoir.transition(u[0, 1:], run[:-1])) for run in runs])
    bench.expect_same(Pair.of(runs[:, 1:], steps), "transition()", rounds=True)
