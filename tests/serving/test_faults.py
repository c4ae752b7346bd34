"""Behind a bad network results are right, or there are none: never a wrong state, never a hang."""

from __future__ import annotations

import faulthandler
import logging
import time

import pytest

from .random_runs import LONGEST_RUN_S, Outcome, random_runs


def check(outcome: Outcome, runs: int) -> None:
    if outcome.wrong:
        faulthandler.dump_traceback(all_threads=True)
    assert not outcome.wrong, "\n".join(outcome.wrong[:5])
    assert outcome.runs >= runs
    assert outcome.runs == outcome.correct + outcome.exceptions.total()
    assert outcome.longest_s < LONGEST_RUN_S
    # Both must have been frequent, or nothing was shown.
    assert outcome.correct > runs / 4
    assert outcome.exceptions.total() > runs / 10
    assert all(outcome.faults.values())


def test_300_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "reservoir_hw")
    started = time.monotonic()
    outcome = random_runs(300, benches=6, seed=5, limit_s=240)
    print(f"{outcome}\n{time.monotonic() - started:.1f} s")
    check(outcome, 300)


# As a client and a server come, payloads have no checksums, and small ones are inline: there only what has a checksum
# is struck. In shared memory nothing strikes a payload, so all of a packet is.
UNIX: dict[str, dict[str, bool]] = {
    "checksums": {"checksums": True},
    "as they come": {"spares_payloads": True},
    "shared memory": {},
}


@pytest.mark.parametrize("how", UNIX)
@pytest.mark.parametrize("runs", [pytest.param(40, id="few"), pytest.param(400, id="many", marks=pytest.mark.slow)])
def test_over_unix(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str, runs: int) -> None:
    caplog.set_level(logging.CRITICAL, "reservoir_hw")
    if how == "shared memory":
        monkeypatch.setattr("reservoir_hw.drivers.zeromq.unix_sockets.INLINE_BYTES", 0)
    outcome = random_runs(runs, benches=4, seed=3, limit_s=240, scheme="unix", **UNIX[how])
    print(outcome)
    if runs >= 400:
        check(outcome, runs)
    else:
        assert not outcome.wrong, "\n".join(outcome.wrong[:5])
        assert outcome.correct
        assert outcome.exceptions


@pytest.mark.slow
def test_10000_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "reservoir_hw")
    started = time.monotonic()
    outcome = random_runs(10_000, benches=12, seed=2, limit_s=1500)
    print(f"{outcome}\n{time.monotonic() - started:.1f} s")
    check(outcome, 10_000)
    assert outcome.after_a_fault > 0
