"""How fast the device answers. It fails only against a period that it declares."""

from __future__ import annotations

import time

import numpy as np

from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import TAIL_STEPS, Plan, drives, failed

_SLOWEST = 1.5


def planned(plan: Plan) -> int:
    """Single steps, and a run."""
    if plan.spec.continuity == "free_running":
        return plan.single_steps * plan.drive(1) + plan.drive(plan.steps)
    drives, rest = divmod(plan.single_steps, plan.steps)
    return drives * plan.drive(*[1] * plan.steps) + plan.drive(*[1] * rest) + plan.drive(plan.steps)


@drives(planned)
def test_pace(bench: Bench) -> None:
    """Round trip of a step (median, 99th percentile, of many steps 99.9th, jitter), and steps per second of a run."""
    u, spec = bench.inputs(), bench.spec
    taken = []
    for number in range(bench.plan.single_steps):
        at = number % u.shape[1]
        # A recording ends somewhere; a free running device takes one run after each reset.
        if spec.continuity == "free_running" or not at:
            bench.reservoir.reset(1)
        started = time.perf_counter()
        bench.reservoir.step(u[:, at])
        taken.append(time.perf_counter() - started)
    bench.reservoir.reset(1)
    started = time.perf_counter()
    bench.reservoir.run(u)
    period = (time.perf_counter() - started) / u.shape[1]
    slow = {"99th": 99, "99.9th": 99.9} if len(taken) >= TAIL_STEPS else {"99th": 99}
    tail = ", ".join(f"{np.percentile(taken, at) * 1e3:.3g} ms ({name} percentile)" for name, at in slow.items())
    bench.statement.text = (
        f"a step takes {np.median(taken) * 1e3:.3g} ms (median), {tail}, jitter {np.std(taken) * 1e3:.2g} ms; a run "
        f"{1 / period:,.3g} steps/s"
    )
    declared = spec.step_period_s
    if declared and not spec.identity.simulated and period > _SLOWEST * declared:
        failed(f"a step of a run takes {period:.3g} s, declared is a period of {declared:.3g} s")
