"""After a fault nothing goes on as if nothing had happened; then the device is right again."""

from __future__ import annotations

import numpy as np

from reservoir_hw.core.errors import DeviceError, StateLost
from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.plan import drives, failed, unverified

# One drive is held against the scatter of eight, row by row: so many standard deviations are no chance.
_SURELY = 5


# Drives before and after, and the one with the fault.
@drives(lambda plan: plan.compared(*[plan.drive(plan.steps)] * 2) + plan.drive(plan.past, plan.steps - plan.past))
def test_fault(bench: Bench) -> None:
    """A fault in the middle of a drive is told, or does no harm; what follows it is refused until a reset."""
    if bench.hil.fault is None:
        unverified("nothing says how to make the device fail (hil: fault:)")
    u, first, reservoir = bench.inputs(), bench.plan.past, bench.reservoir
    before = bench.repeated(u)
    bench.drive(u[:, :first])
    bench.perform(bench.hil.fault)
    try:
        rest = np.asarray(reservoir.run(u[:, first:]))
    except DeviceError as error:
        bench.statement.text = f"told as {type(error).__name__}"
        _expect_state_lost(bench, u[:, first:])
    else:
        _expect_going_on(bench, before[:, first:], rest[0])
    bench.reopen()
    pair = Pair.of(before, bench.repeated(u))
    # A fault is too rude to be repeated as often as a comparison in turn needs it.
    bench.expect_same(pair, "after the recovery", wanders=not bench.deterministic)


def _expect_state_lost(bench: Bench, u: np.ndarray) -> None:
    what = "the run after the fault"
    try:
        refused = bench.refused(lambda: bench.reservoir.run(u), StateLost, what)
    except DeviceError:
        failed(f"{what} reached the device, which failed again: StateLost must come first")
    if not refused:
        failed(f"{what} went on as if nothing had happened")


def _expect_going_on(bench: Bench, expected: np.ndarray, found: np.ndarray) -> None:
    """No fault was told: then the drive went on from the right state."""
    mean = expected.astype(np.float64).mean(axis=0)
    scatter = float(np.sqrt(np.mean((expected - mean) ** 2)))
    spread = float(np.sqrt(np.mean((mean - mean.mean(axis=0)) ** 2))) or 1.0
    # A device forgets: only the first rows after the fault may be wrong.
    moved = float(np.sqrt(np.mean((found - mean) ** 2, axis=1)).max())
    bench.statement.text = "no fault was told, and the drive went on rightly"
    if moved > _SURELY * scatter + 1e-3 * spread:
        failed(
            f"the device failed, nobody was told, and the states that followed are off by {moved / spread:.2g} "
            "standard deviations: the state was lost unnoticed"
        )
