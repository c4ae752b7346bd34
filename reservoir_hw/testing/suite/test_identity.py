"""It is the same device as before."""

from __future__ import annotations

from reservoir_hw.testing import golden
from reservoir_hw.testing.bench import Bench, Pair
from reservoir_hw.testing.plan import drives, failed, unverified


@drives(lambda plan: plan.reset_steps)
def test_fingerprint(bench: Bench) -> None:
    """The fingerprint is the same after the device was closed and opened."""
    before = bench.spec.identity
    bench.close()
    bench.open()
    after = bench.spec.identity
    bench.statement.text = after.fingerprint[:12]
    if before.fingerprint != after.fingerprint:
        failed(f"the fingerprint was {before.fingerprint[:12]}, and is {after.fingerprint[:12]} after reopening")


@drives(lambda plan: plan.compared(plan.drive(plan.golden_steps)) if plan.golden_steps else 0)
def test_golden_trace(bench: Bench) -> None:
    """The device answers as its golden trace says."""
    path = bench.hil.golden
    if path is None:
        unverified("no golden trace is named (hil: golden:)")
    trace = golden.read(path)
    trace.check(bench.spec)
    drive = trace.inputs.astype(bench.spec.numpy_dtype)[None]
    pair = Pair.of(trace.repeats(bench.repeats), bench.repeated(drive))
    bench.expect_same(pair, "the golden trace", rounds=bench.deterministic)
