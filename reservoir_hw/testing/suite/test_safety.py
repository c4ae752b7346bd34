"""The device is safe after whoever drove it has gone, and belongs to one process at a time."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from reservoir_hw.core.hil import Action
from reservoir_hw.testing import owner
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.outcomes import failed, unverified
from reservoir_hw.testing.plan import drives

_PATIENCE_S = 60.0
# A server learns of it by a message.
_AT_ONCE_S = 1.0


def _safe_check(bench: Bench) -> Action:
    """What answers whether the device is safe."""
    if bench.hil.safe_check is None:
        unverified("nothing says how to see that the device is safe (hil: safe_check:)")
    return bench.hil.safe_check


def _safe_within(bench: Bench, seconds: float) -> bool:
    """Whether the device becomes safe: a lease must end first, or a guard do its work."""
    until = time.monotonic() + seconds
    check = _safe_check(bench)
    while not bench.perform(check):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@drives(lambda plan: plan.drive(3))
def test_after_close(bench: Bench) -> None:
    """Safe at once after close()."""
    _safe_check(bench)
    bench.drive(bench.inputs(steps=3))
    bench.close()
    if not _safe_within(bench, _AT_ONCE_S):
        failed("after close() the device is not in its safe state")


@drives(lambda plan: plan.drive(3))
def test_after_exception(bench: Bench) -> None:
    """Safe at once where the code in the `with` block fails."""
    _safe_check(bench)
    try:
        with bench.reservoir:
            bench.drive(bench.inputs(steps=3))
            raise RuntimeError("the code of a user fails")
    except RuntimeError:
        pass
    if not _safe_within(bench, _AT_ONCE_S):
        failed("after an exception in its `with` block the device is not in its safe state")


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_after_signal(bench: Bench, how: str) -> None:
    """Safe soon after the process that drives the device is interrupted or killed."""
    _safe_check(bench)
    u = bench.inputs()
    bench.close()
    with owner.process(bench.config, u) as child:
        owner.wait_for(child, owner.DRIVING, _PATIENCE_S)
        child.send_signal(getattr(signal, how))
        try:
            child.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            failed(f"after {how} the process that drives the device did not end within {_PATIENCE_S:g} s")
        if not _safe_within(bench, bench.hil.timeout_s):
            failed(f"{bench.hil.timeout_s:g} s after {how} the device is not in its safe state")


def test_one_owner(bench: Bench) -> None:
    """While we have the device, another process is told who has it."""
    if bench.reservoir.in_process:
        unverified("it is computed in this process: there is nothing that another one could take away")
    with owner.process(bench.config, bench.inputs()) as child:
        said = owner.wait_for(child, "", _PATIENCE_S)
    bench.statement.text = said
    if said == owner.DRIVING:
        failed("another process could open the device while we had it, and drive it")
    if not said.startswith("DeviceBusy"):
        failed(f"another process did not learn that the device is in use: {said}")
