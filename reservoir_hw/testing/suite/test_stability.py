"""The device answers at the end of the run as at its beginning."""

from __future__ import annotations

from reservoir_hw.measures.comparison import WORTH_SEEING
from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.plan import drives, failed, inconclusive, unverified


# The repeats of the standard drive; those of the beginning are there.
@drives(lambda plan: plan.compared(plan.drive(plan.steps)))
def test_drift(bench: Bench) -> None:
    """The standard drive now and at the beginning."""
    u = bench.inputs()
    if bench.early is None or len(bench.early) < bench.repeats:
        unverified(
            f"at the beginning of the run the device was driven too few times: the group repeatability takes the "
            f"{bench.repeats} drives that this one looks back to"
        )
    # Later drives are shorter where the device turned out to scatter.
    early = bench.early[:, : u.shape[1]]
    found = bench.noted(Pair.of(early, bench.repeated(u)))
    bench.statement.text = f"after {bench.device_steps:,} device steps: {found}"
    if found.differs and found.difference > WORTH_SEEING:
        failed(f"it drifts: {bench.statement.text}")
    if not found.conclusive:
        inconclusive(bench.statement.text)
