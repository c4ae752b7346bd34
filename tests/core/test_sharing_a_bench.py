"""Waiting for a device that somebody has, and keeping it for oneself: real locks, processes and sockets."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import call_here
from served import ipc_address, served
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.backends.parallel import Parallel, Part
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, DeviceTimeout
from reservoir_hw.core.hostlock import HostLock, HostLocks
from reservoir_hw.core.reservations import read_end, release, reserve
from reservoir_hw.drivers.zeromq import Allowed, make_keys

BENCH = """\
kind: python
call: film:measure
reset_call: film:rest
mode: step
inputs: 1
nodes: 1
simulated: false
resource: film-7
continuity: held
"""
FILM = "def measure(u):\n    return [u[0]]\n\ndef rest():\n    pass\n"


@pytest.fixture(autouse=True)
def _locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESERVOIR_HW_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("RESERVOIR_HW_WAIT_S", raising=False)


@pytest.fixture
def said() -> Iterator[Callable[[], str]]:
    """What a wait says when it begins; comes back when it was said."""
    lines: list[str] = []
    came = threading.Event()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            came.set()

    log, handler = logging.getLogger("reservoir_hw.core.waiting"), Lines()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    def next_line() -> str:
        assert came.wait(30)
        came.clear()
        return lines.pop()

    yield next_line
    log.removeHandler(handler)
    log.setLevel(level)
    assert not lines


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    (tmp_path / "film.py").write_text(FILM)
    (tmp_path / "bench.yaml").write_text(BENCH)
    return tmp_path


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin it; the function that is returned waits for what it gives."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()))
    thread.start()

    def result() -> Any:
        thread.join(30)
        return done[0]

    return result


def process(*arguments: object, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "reservoir_hw.cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_lock_is_waited_for(said: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    scope = HostLock("scope")
    scope.acquire()
    with pytest.raises(DeviceBusy):
        HostLock("scope").acquire()
    with pytest.raises(DeviceBusy, match="'scope' is in use by process") as caught:
        HostLock("scope").acquire(0.15)
    assert caught.value.__notes__ == ["waited 0.15 s for it"]
    assert "waiting for at most 0.15 s" in said()
    monkeypatch.setenv("RESERVOIR_HW_WAIT_S", "30")
    both = HostLocks(["scope", "generator"])
    acquired = in_thread(both.acquire)
    assert f"'scope' is in use by process {os.getpid()}" in said()
    # While it waits it has nothing: others can use the generator.
    HostLock("generator").acquire()
    scope.release()
    assert "'generator' is in use" not in repr(both._locks)
    with pytest.raises(DeviceBusy):
        HostLocks(["scope", "generator"]).acquire(0)
    assert not both._locks
    del acquired
