"""A snapshot brings the device back to where it was taken."""

from __future__ import annotations

import numpy as np

from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import Plan, drives, not_offered


def planned(plan: Plan) -> int:
    """A drive in two pieces, and one that goes astray between them."""
    first = plan.past
    rest = plan.steps - first
    straight = plan.drive(first, rest)
    return plan.compared(straight, straight + plan.drive(first, rest)) if plan.spec.snapshot else 0


@drives(planned)
def test_snapshot(bench: Bench) -> None:
    """A drive that goes on at once, and one that is led astray and brought back."""
    reservoir, spec = bench.reservoir, bench.spec
    if not spec.snapshot:
        not_offered(spec.not_supported.get("snapshot", "not declared"))
    u, first = bench.inputs(), bench.plan.past

    def straight() -> np.ndarray:
        return bench.drive(u, [first, bench.plan.steps - first])[0, first:]

    def astray() -> np.ndarray:
        bench.drive(u[:, :first])
        kept = reservoir.snapshot()
        reservoir.run(u[:, first:])
        reservoir.restore(kept)
        return np.asarray(reservoir.run(u[:, first:]))[0]

    bench.expect_same(bench.pair(straight, astray), "after restore()")
