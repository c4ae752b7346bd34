"""An input acts on the states from its own row on: neither before nor later."""

from __future__ import annotations

from reservoir_hw.measures import about_latency, latency_of
from reservoir_hw.measures.comparison import Comparison
from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.plan import drives, failed, inconclusive

# Of the difference in a later row: what would have been seen in the row of the input.
_CLEARLY = 0.3


# With and without the change, for each of the inputs that are looked at.
@drives(lambda plan: plan.compared(plan.drive(plan.steps), plan.drive(plan.steps)) * len(plan.inputs))
def test_changed_input(bench: Bench) -> None:
    """One input changed at step t changes the states from row t on."""
    bench.statement.text = "; ".join(_changed(bench, number) for number in bench.plan.inputs)


def _late(bench: Bench, pair: Pair, at: int, now: Comparison) -> int | None:
    """How many rows below its own a changed input is first seen, clearly enough to have been seen before."""
    for row in range(at + 1, pair.reference.shape[1]):
        found = bench.compare(pair.rows(slice(row, row + 1)))
        if found.differs:
            return row - at if now.smallest <= _CLEARLY * found.difference else None
    return None


def _changed(bench: Bench, number: int) -> str:
    """What a change of one input does."""
    at = bench.plan.steps // 2
    low, high = bench.limits
    # Another name than the standard drive: a recording knows no changed input.
    u = bench.inputs("before a change")
    changed = u.copy()
    changed[0, at, number] = low if u[0, at, number] > (low + high) / 2 else high
    pair = bench.pair(lambda: bench.drive(u)[0], lambda: bench.drive(changed)[0])
    now, later = bench.compare(pair.rows(slice(at, at + 1))), bench.compare(pair.rows(slice(at + 1, at + 3)))
    if not now.differs and (late := _late(bench, pair, at, now) or latency_of(u[0], pair.reference)):
        failed(
            f"input {number} was changed at step {at}: states change from row {at + late} on, not in row {at}. So "
            f"{about_latency(late)}"
        )
    bench.expect_same(pair.rows(slice(0, at)), f"rows before step {at}, at which input {number} was changed")
    if not now.differs:
        inconclusive(
            f"input {number} was changed at step {at}; row {at} shows none of it: {now}; the next two: {later}"
        )
    return f"input {number} was changed at step {at}, and row {at} differs by {now.difference:.2g} standard deviations"
