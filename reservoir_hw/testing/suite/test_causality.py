"""An input acts on the states from its own row on: neither before nor later."""

from __future__ import annotations

from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.comparison import WORTH_SEEING
from reservoir_hw.testing.outcomes import failed, inconclusive
from reservoir_hw.testing.plan import Plan, drives


def planned(plan: Plan) -> int:
    """With and without the change."""
    return plan.compared(plan.drive(plan.steps), plan.drive(plan.steps))


@drives(planned)
def test_changed_input(bench: Bench) -> None:
    """One input changed at step t changes the states from row t on."""
    at = bench.plan.steps // 2
    low, high = bench.limits
    # Another name than the standard drive: a recording knows no changed input.
    u = bench.inputs("before a change")
    changed = u.copy()
    changed[0, at] = low if u[0, at].mean() > (low + high) / 2 else high
    pair = bench.pair(lambda: bench.drive(u)[0], lambda: bench.drive(changed)[0])
    bench.expect_same(pair.rows(slice(0, at)), f"rows before step {at}, at which an input was changed")
    now, later = bench.compare(pair.rows(slice(at, at + 1))), bench.compare(pair.rows(slice(at + 1, at + 3)))
    bench.statement.text = (
        f"row {at}, at which an input was changed, differs by {now.difference:.2g} standard deviations"
    )
    if now.differs:
        return
    if not later.differs or now.smallest > WORTH_SEEING * later.difference:
        inconclusive(f"an input changed at step {at} was not seen in row {at}: {now}; in the next two: {later}")
    failed(f"an input changed at step {at} changes the states from row {at + 1 + later.step} on, and not row {at}")
