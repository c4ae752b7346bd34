"""One process owns a device at a time: a lock file on this host for each resource."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy
from reservoir_hw.core.validation import number_in


def lock_folder() -> Path:
    """Shared by all users of this host (`RESERVOIR_HW_LOCKS` moves it)."""
    return Path(os.environ.get("RESERVOIR_HW_LOCKS") or Path(tempfile.gettempdir()) / "reservoir_hw-locks")


def lock_file(resource: str, suffix: str) -> Path:
    """The file of `resource` with this suffix."""
    return lock_folder() / f"{hashlib.sha256(resource.encode()).hexdigest()[:24]}{suffix}"


@contextlib.contextmanager
def writing_for(resource: str) -> Iterator[None]:
    """While the files of `resource` are written. Raises `ConfigurationError` where that is not possible."""
    folder = lock_folder()
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Other users of this host must be able to lock too. A folder that was there is left as it is.
            with contextlib.suppress(PermissionError):
                folder.chmod(0o777)
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot lock {resource!r} in {folder}: {error}; set RESERVOIR_HW_LOCKS to a folder that you can write to"
        ) from error


def write_note(path: Path, content: dict[str, Any]) -> None:
    """Put a JSON note there that everybody may read."""
    # Replaced, not written to: it may be the note of another user.
    note = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    note.write_text(json.dumps(content))
    note.chmod(0o644)
    os.replace(note, path)


def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"


# ---- A device kept for one user until a time: a note beside its lock.


@dataclass(frozen=True)
class Reservation:
    """Who has a device reserved, until when (with a time zone), and what for."""

    user: str
    until: datetime
    note: str = ""

    def __str__(self) -> str:
        return f"reserved by {self.user} until {shown(self.until)}" + (f" ({self.note})" if self.note else "")


def reservation_of(resource: str) -> Reservation | None:
    """The reservation of `resource`, unless it has ended."""
    try:
        note = json.loads(_note_of(resource).read_text())
        found = Reservation(str(note["user"]), datetime.fromisoformat(note["until"]), str(note["note"]))
        boot, now_s = _since_boot()
        if boot and note["boot"] == boot:
            return found if note["end_s"] > now_s else None
        return found if found.until > datetime.now().astimezone() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def reserved_for_another(resources: Iterable[str], user: str) -> str | None:
    """For people: which of `resources` is reserved by somebody who is not `user`, and how; None if none is."""
    for resource in resources:
        if (reservation := reservation_of(resource)) and reservation.user != user:
            return f"{resource!r} is {reservation}"
    return None


def reserve(resources: Iterable[str], until: datetime, note: str = "") -> Reservation:
    """Keep all `resources` for the user of this process; a reservation of the same user is replaced.

    Who uses one of them now goes on. Raises `DeviceBusy` if another user has reserved one.
    """
    resources = list(resources)
    reservation = Reservation(user_name(), until, " ".join(note.split()))
    boot, now_s = _since_boot()
    end_s = now_s + (until - datetime.now().astimezone()).total_seconds()
    with writing_for(resources[0]), _one_at_a_time():
        _refuse_if_anothers(resources)
        for resource in resources:
            content = {"user": reservation.user, "until": until.isoformat(), "note": reservation.note}
            content |= {"boot": boot, "end_s": end_s}
            write_note(_note_of(resource), content)
    return reservation


def release(resources: Iterable[str]) -> bool:
    """End the reservations of these resources; whether there was one.

    Raises `DeviceBusy` if another user has reserved one.
    """
    resources = list(resources)
    with writing_for(resources[0]), _one_at_a_time():
        _refuse_if_anothers(resources)
        was_reserved = any(reservation_of(resource) is not None for resource in resources)
        for resource in resources:
            _note_of(resource).unlink(missing_ok=True)
    return was_reserved


def read_end(text: str) -> datetime:
    """The time that is meant by 18:00 (today, or tomorrow if it has passed) or 2026-01-31 18:00.

    Raises `ConfigurationError` for anything else, and for a date that has passed.
    """
    now = datetime.now().astimezone()
    try:
        clock = datetime.strptime(text.strip(), "%H:%M").time()
    except ValueError:
        pass
    else:
        today = datetime.combine(now.date(), clock)
        return (today if today.astimezone() > now else today + timedelta(days=1)).astimezone()
    try:
        until = datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{text!r} is no time: write 18:00, or 2026-01-31 18:00") from None
    if until <= now:
        raise ConfigurationError(f"{text!r} has passed: it is {shown(now)}")
    return until


def shown(moment: datetime) -> str:
    """For people, in the time zone of this host."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M %Z}"


def _since_boot() -> tuple[str, float]:
    """Which start of this host it is (Linux; elsewhere empty), and seconds of a clock that nobody sets since then."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "", 0.0
    return boot, time.clock_gettime(time.CLOCK_BOOTTIME)


def _note_of(resource: str) -> Path:
    return lock_file(resource, ".reserved")


def _one_at_a_time() -> FileLock:
    return FileLock(lock_folder() / "reservations.lock", mode=0o666)


def _refuse_if_anothers(resources: Iterable[str]) -> None:
    if taken := reserved_for_another(resources, user_name()):
        raise DeviceBusy(f"{taken}; ask them to release it, or wait until then")


# ---- Waiting for a device that somebody else has.


log = logging.getLogger(__name__)

VARIABLE = "RESERVOIR_HW_WAIT_S"
# How often it is tried again.
EVERY_S = 0.1

T = TypeVar("T")

_ended = threading.Event()


def while_busy(attempt: Callable[[], T], wait_s: float | None = None) -> T:
    """What `attempt` returns. As long as it raises `DeviceBusy` it is tried again, for at most `wait_s` seconds.

    By default that is RESERVOIR_HW_WAIT_S of the environment, or else 0: one attempt. Who has it is logged once.
    """
    wait_s = _from_environment() if wait_s is None else wait_s
    until = time.monotonic() + wait_s
    ended, said = _ended, False
    while True:
        try:
            return attempt()
        except DeviceBusy as busy:
            left = until - time.monotonic()
            if left <= 0 or ended.is_set():
                if said:
                    busy.add_note(f"waited {wait_s:g} s for it")
                raise
            if not said:
                log.info("%s: waiting for at most %g s", busy, wait_s)
                said = True
        ended.wait(min(EVERY_S, left))


def end_waits() -> None:
    """End the waits of all threads: Ctrl-C ends only that of the main thread by itself."""
    global _ended
    ended, _ended = _ended, threading.Event()
    ended.set()


def _from_environment() -> float:
    text = os.environ.get(VARIABLE, "").strip() or "0"
    try:
        seconds = float(text)
    except ValueError:
        raise ConfigurationError(f"environment variable {VARIABLE}: {text!r} is no number of seconds") from None
    return number_in(f"environment variable {VARIABLE}", seconds, 0.0, float("inf"))


class HostLocks:
    """Exclusive ownership of resources (a VISA address, a serial port, a function's name): all of them, or none.

    They are locked in sorted order, so that two processes that want the same ones cannot wait for each other. The
    operating system releases the locks when their owner dies, so there are no stale ones.
    """

    def __init__(self, resources: Iterable[str]) -> None:
        self.resources = tuple(sorted(set(resources)))
        self._locks: dict[str, FileLock] = {}

    def acquire(self, wait_s: float | None = None, *, honour_reservations: bool = True) -> None:
        """Take all locks, or raise `DeviceBusy` naming the owner of the first that is not free within `wait_s` seconds.

        By default it waits as long as RESERVOIR_HW_WAIT_S says, or else not at all. It holds none while it waits.
        What another user has reserved is not free, unless reservations are not honoured.
        """
        while_busy(lambda: self._take(honour_reservations), wait_s)

    def release(self) -> None:
        """Give all of them back. Idempotent."""
        while self._locks:
            resource, lock = self._locks.popitem()
            with contextlib.suppress(OSError):
                lock_file(resource, ".json").unlink(missing_ok=True)
            lock.release()

    def _take(self, honour_reservations: bool) -> None:
        if honour_reservations:
            _refuse_if_anothers(self.resources)
        try:
            for resource in self.resources:
                self._locks[resource] = _locked(resource)
        except BaseException:
            self.release()
            raise


def _locked(resource: str) -> FileLock:
    lock = FileLock(lock_file(resource, ".lock"), mode=0o666)
    with writing_for(resource):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise DeviceBusy(
                f"{resource!r} is in use by {_owner_of(resource)}; close it there, or wait until it ends"
            ) from None
        try:
            with guard_lock(resource).acquire(timeout=0):
                pass
        except Timeout:
            lock.release()
            raise DeviceBusy(
                f"{resource!r}: its owner has died, and its guard is bringing it to its safe state; wait"
            ) from None
    owner = {
        "pid": os.getpid(),
        "user": user_name(),
        "command": " ".join(provenance.command())[:200],
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    # The note is for people; the lock itself is what counts.
    with contextlib.suppress(OSError):
        write_note(lock_file(resource, ".json"), owner)
    return lock


def _owner_of(resource: str) -> str:
    try:
        owner = json.loads(lock_file(resource, ".json").read_text())
        return f"process {owner['pid']} of {owner['user']} since {owner['since']} ({owner['command']})"
    except (OSError, ValueError, KeyError):
        return "another process"


@contextlib.contextmanager
def owned(resource: str, taken: str, advice: str = "") -> Iterator[None]:
    """While this process alone owns a folder or a store.

    Raises `ConfigurationError` if another one does: `taken`, who that is, and `advice`.
    """
    lock = HostLocks([resource])
    try:
        lock.acquire(0, honour_reservations=False)
    except DeviceBusy as busy:
        raise ConfigurationError(f"{taken}: {busy}{advice}") from busy
    try:
        yield
    finally:
        lock.release()


def guard_lock(resource: str) -> FileLock:
    """What a guard holds while it watches over the owner of `resource`; the device is free when both locks are."""
    return FileLock(lock_file(resource, ".guard"), mode=0o666)
