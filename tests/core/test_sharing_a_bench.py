"""Waiting for a device that somebody has, and keeping it for oneself: real locks, processes and sockets."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import call_here, started
from served import ipc_address, served
from toys import Toy

from reservoir_hw import open_reservoir
from reservoir_hw.backends.parallel import Parallel, Part
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, DeviceTimeout
from reservoir_hw.core.locks import HostLocks, lock_folder, release, reserve
from reservoir_hw.drivers.zeromq import Allowed, make_keys

BENCH = """\
kind: python
call: shared_film:measure
reset_call: shared_film:rest
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

    log, handler = logging.getLogger("reservoir_hw.core.locks"), Lines()
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


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    (tmp_path / "shared_film.py").write_text(FILM)
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
    return started(*arguments, cwd=cwd, env={**os.environ, **environment})


def test_a_lock_is_waited_for(said: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    scope = HostLocks(["scope"])
    scope.acquire()
    with pytest.raises(DeviceBusy):
        HostLocks(["scope"]).acquire()
    with pytest.raises(DeviceBusy, match="'scope' is in use by process") as caught:
        HostLocks(["scope"]).acquire(0.15)
    assert caught.value.__notes__ == ["waited 0.15 s for it"]
    assert "waiting for at most 0.15 s" in said()
    monkeypatch.setenv("RESERVOIR_HW_WAIT_S", "30")
    both = HostLocks(["scope", "generator"])
    result = in_thread(both.acquire)
    assert f"'scope' is in use by process {os.getpid()}" in said()
    # While it waits it keeps nothing.
    generator = HostLocks(["generator"])
    generator.acquire()
    scope.release()
    scope.acquire()
    for lock in (scope, generator):
        lock.release()
    result()
    for resource in ("scope", "generator"):
        with pytest.raises(DeviceBusy):
            HostLocks([resource]).acquire(0)
    both.release()
    monkeypatch.setenv("RESERVOIR_HW_WAIT_S", "soon")
    with pytest.raises(ConfigurationError, match="variable RESERVOIR_HW_WAIT_S: 'soon' is no number of seconds"):
        scope.acquire()


@pytest.mark.parametrize("file", ["bench.yaml", pytest.param("two.yaml", marks=pytest.mark.slow)])
def test_ctrl_c_ends_the_wait_and_the_command_says_for_whom_it_waits(bench: Path, file: str) -> None:
    devices = "".join(f"  - reservoir: {{{BENCH.strip().replace(chr(10), ', ')}}}\n" for _ in range(2))
    (bench / "two.yaml").write_text(f"kind: parallel\ninputs: 1\ndevices:\n{devices.replace('film-7', 'film-8', 1)}")
    with Toy(resource="film-7"):
        waiting = process("device", "info", file, cwd=bench, RESERVOIR_HW_WAIT_S="600")
        assert waiting.stderr is not None
        line = waiting.stderr.readline()
        assert f"'film-7' is in use by process {os.getpid()} of" in line
        assert "waiting for at most 600 s" in line
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=30)
    assert (waiting.returncode, errors) == (130, "interrupted: what was finished is kept\n")


def test_a_served_device_is_waited_for(said: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ipc_address() as address:
        far = {"kind": "zmq", "address": address, "timeout_s": 0.3}
        monkeypatch.setenv("RESERVOIR_HW_WAIT_S", "30")
        started = time.monotonic()
        with pytest.raises(DeviceTimeout):
            open_reservoir(far)
        assert time.monotonic() - started < 15
        with served(Toy(), address), open_reservoir(far) as first:
            result = in_thread(lambda: open_reservoir(far))
            assert "is in use by" in said()
            first.close()
            with result() as second:
                assert second.at_rest


@pytest.mark.slow
def test_two_users(bench: Path, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    tomorrow = (datetime.now() + timedelta(days=1)).replace(microsecond=0)
    told = f"'film-7' is reserved by anna until {tomorrow:%Y-%m-%d %H:%M} .* \\(calibration\\)"
    anna = process(
        "device", "reserve", "bench.yaml", "--until", tomorrow, "--note", "calibration",
        cwd=bench, LOGNAME="anna", HOME=str(bench / "anna"),
    )  # fmt: skip
    said_to_anna, errors = anna.communicate(timeout=60)
    assert anna.returncode == 0, errors
    assert re.search(told.partition(" is ")[2], said_to_anna)

    monkeypatch.setenv("LOGNAME", "bob")
    for command in (["info", "bench.yaml"], ["reserve", "bench.yaml", "--until", "18:00"], ["release", "bench.yaml"]):
        done = call_here("device", *command, cwd=bench)
        assert done.returncode == 3
        assert re.search(told, done.stderr)
    bob = process("device", "info", "bench.yaml", cwd=bench, LOGNAME="bob", HOME=str(bench), RESERVOIR_HW_WAIT_S="60")
    assert bob.stderr is not None
    assert re.search(told, bob.stderr.readline())
    monkeypatch.setenv("LOGNAME", "anna")
    assert call_here("device", "info", "bench.yaml", cwd=bench).returncode == 0
    # Her own reservation she may change: it ends by its time, and lets him in.
    end = datetime.now().astimezone() + timedelta(seconds=0.5)
    reserve(["film-7"], end)
    _, errors = bob.communicate(timeout=60)
    assert bob.returncode == 0, errors
    assert datetime.now().astimezone() > end
    assert "was not reserved" in call_here("device", "release", "bench.yaml", cwd=bench).stdout


@pytest.mark.parametrize("hours", [-10, 10])
def test_a_clock_that_is_set_changes_no_reservation(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(hours=hours)

    def of_bob(wait_s: float) -> None:
        locks = HostLocks(["film-7"])
        locks.acquire(wait_s)
        locks.release()

    monkeypatch.setenv("LOGNAME", "anna")
    reserve(["film-7"], datetime.now().astimezone() + timedelta(seconds=0.5 if hours < 0 else 3600))
    monkeypatch.setattr("reservoir_hw.core.locks.datetime", Wrong)
    monkeypatch.setenv("LOGNAME", "bob")
    with pytest.raises(DeviceBusy, match="reserved by anna"):
        of_bob(0)
    if hours < 0:
        of_bob(60)
        return
    # After another start of the host its clock is all there is.
    (note,) = lock_folder().glob("*.reserved")
    content = json.loads(note.read_text())
    note.write_text(json.dumps({**content, "boot": "before"}))
    of_bob(0)


def test_a_server_holds_reservations_against_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bench", "anna", "bob"):
        make_keys(tmp_path, name)
    (tmp_path / "clients").mkdir()
    for name in ("anna", "bob"):
        (tmp_path / f"{name}.key").rename(tmp_path / "clients" / f"{name}.key")
    # Neither this server nor the one of its devices that has the resource minds that the lab runs it.
    monkeypatch.setenv("LOGNAME", "anna")
    reserve(["film-7"], datetime.now().astimezone() + timedelta(hours=1), "drift")
    for allowed in (None, Allowed.from_files(tmp_path / "bench.key_secret", tmp_path / "clients")):
        monkeypatch.setenv("LOGNAME", "lab")
        device = Parallel([Part(Toy(resource="film-7")), Part(Toy())], 2)
        with ipc_address() as address, served(device, address, allowed=allowed):
            for user in ("bob", "anna"):
                far: dict[str, Any] = {"kind": "zmq", "address": address}
                # With keys, what a client calls itself means nothing.
                monkeypatch.setenv("LOGNAME", user if allowed is None else "anna")
                if allowed is not None:
                    far["security"] = {
                        "server_key": str(tmp_path / "bench.key"),
                        "key": str(tmp_path / f"{user}.key_secret"),
                    }
                if user == "anna":
                    open_reservoir(far).close()
                    continue
                with pytest.raises(
                    DeviceBusy, match=r"'film-7' is reserved by anna until .* \(drift\), and this client is bob"
                ):
                    open_reservoir(far)
    # A reservoir of this process has nobody who looks after that.
    monkeypatch.setenv("LOGNAME", "bob")
    with pytest.raises(DeviceBusy, match="'film-7' is reserved by anna"):
        Parallel([Part(Toy(resource="film-7")), Part(Toy())], 2).open()
    monkeypatch.setenv("LOGNAME", "anna")
    assert release(["film-7"])
    monkeypatch.setenv("LOGNAME", "bob")
    Toy(resource="film-7").open().close()
