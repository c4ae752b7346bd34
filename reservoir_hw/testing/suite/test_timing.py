"""How fast the device answers. It fails only against a period that it declares."""

from __future__ import annotations

import time

import numpy as np

from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.outcomes import failed
from reservoir_hw.testing.plan import Plan, drives

_STEPS = 100
_SLOWEST = 1.5
_TAIL_FROM = 10_000


def planned(plan: Plan) -> int:
    """Single steps, and a run."""
    free = plan.spec.continuity == "free_running"
    steps = _STEPS * plan.drive(1) if free else plan.drive(*[1] * _STEPS)
    return steps + plan.drive(plan.steps)


@drives(planned)
def test_pace(bench: Bench) -> None:
    """Round trip of a step (median, 99th percentile, jitter), and steps per second of a run."""
    u, spec = bench.inputs(), bench.spec
    taken = []
    bench.reservoir.reset(1)
    for number in range(_STEPS):
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
    p50, p99 = np.percentile(taken, [50, 99])
    bench.statement.text = (
        f"a step takes {p50 * 1e3:.3g} ms (median), {p99 * 1e3:.3g} ms (99th percentile), jitter "
        f"{np.std(taken) * 1e3:.2g} ms; a run {1 / period:,.3g} steps/s"
    )
    declared = spec.step_period_s
    if declared and not spec.identity.simulated and period > _SLOWEST * declared:
        failed(f"a step of a run takes {period:.3g} s, declared is a period of {declared:.3g} s")
