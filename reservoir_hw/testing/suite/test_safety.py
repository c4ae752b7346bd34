"""The device is safe after whoever drove it has gone, and belongs to one process at a time."""

from __future__ import annotations

import signal
import subprocess
import time

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import Action
from reservoir_hw.testing import owner
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import drives, failed, unverified

_PATIENCE_S = 60.0
_STEPS = 12
# A server learns of it by a message.
_AT_ONCE_S = 1.0


def _safe_check(bench: Bench) -> Action:
    """What answers whether the device is safe."""
    if bench.hil.safe_check is None:
        unverified("nothing says how to see that the device is safe (hil: safe_check:)")
    return bench.hil.safe_check


def _is_safe(bench: Bench) -> bool:
    """What `safe_check` says now."""
    said = bench.perform(_safe_check(bench))
    if not isinstance(said, (bool, np.bool_)):
        raise ConfigurationError(f"hil: safe_check: it answered {said!r}; it must answer True or False")
    return bool(said)


def _becomes(bench: Bench, seconds: float, *, safe: bool = True) -> bool:
    """Whether the device becomes safe, or unsafe: a lease must end first, or a guard do its work."""
    until = time.monotonic() + seconds
    while _is_safe(bench) is not safe:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@drives(lambda plan: plan.drive(3))
def test_after_close(bench: Bench) -> None:
    """Safe at once after close()."""
    _safe_check(bench)
    bench.drive(bench.inputs(steps=3))
    bench.close()
    if not _becomes(bench, _AT_ONCE_S):
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
    if not _becomes(bench, _AT_ONCE_S):
        failed("after an exception in its `with` block the device is not in its safe state")


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
# One drive here; about two of the other process until it is stopped.
@drives(lambda plan: 3 * plan.drive(_STEPS))
def test_after_signal(bench: Bench, how: str) -> None:
    """Safe soon after the process that drives the device is interrupted or killed."""
    _safe_check(bench)
    u, patience = _timed(bench)
    bench.close()
    with owner.process(bench.config, u) as child:
        owner.wait_for(child, owner.DRIVING, patience)
        if not _becomes(bench, _AT_ONCE_S, safe=False):
            unverified("safe_check says that the device is safe while it is driven: it cannot tell")
        child.send_signal(getattr(signal, how))
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            failed(f"after {how} the process that drives the device did not end within {patience:g} s")
        if not _becomes(bench, bench.hil.timeout_s):
            failed(f"{bench.hil.timeout_s:g} s after {how} the device is not in its safe state")


@drives(lambda plan: plan.drive(_STEPS))
def test_one_owner(bench: Bench) -> None:
    """While we have the device, another process is told who has it."""
    if bench.reservoir.in_process:
        unverified("it is computed in this process: there is nothing that another one could take away")
    u, patience = _timed(bench)
    with owner.process(bench.config, u) as child:
        said = owner.wait_for(child, "", patience)
    bench.statement.text = said
    if said == owner.DRIVING:
        failed("another process could open the device while we had it, and drive it")
    if not said.startswith("DeviceBusy"):
        failed(f"another process did not learn that the device is in use: {said}")


def _timed(bench: Bench) -> tuple[np.ndarray, float]:
    """Inputs for another process, and how long to wait for it: some devices take a second for a step."""
    u = bench.inputs(steps=_STEPS)
    started = time.perf_counter()
    bench.drive(u)
    return u, _PATIENCE_S + 3 * (time.perf_counter() - started)
