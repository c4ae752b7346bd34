"""One process owns a device at a time: a lock file on this host for each resource."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable

from filelock import FileLock, Timeout

from reservoir_hw.core import passwords
from reservoir_hw.core.errors import DeviceBusy
from reservoir_hw.core.lock_files import lock_file, user_name, write_note, writing_for
from reservoir_hw.core.reservations import reserved_for_another
from reservoir_hw.core.waiting import while_busy


class HostLock:
    """Exclusive ownership of `resource` (a VISA address, a serial port, a function's name).

    The operating system releases the lock when its owner dies, so there are no stale locks.
    """

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self._owner_path = lock_file(resource, ".json")
        self._lock = FileLock(lock_file(resource, ".lock"), mode=0o666)

    def acquire(self, wait_s: float | None = None) -> None:
        """Take the lock, or raise `DeviceBusy` naming the owner if it is not free within `wait_s` seconds.

        By default it waits as long as RESERVOIR_HW_WAIT_S says, or else not at all.
        """
        while_busy(self._take, wait_s)

    def release(self) -> None:
        """Give the device back. Idempotent."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._owner_path.unlink(missing_ok=True)
            self._lock.release()

    def _take(self) -> None:
        with writing_for(self.resource):
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise DeviceBusy(
                    f"{self.resource!r} is in use by {self._owner()}; close it there, or wait until it ends"
                ) from None
            if _is_guarded(self.resource):
                self._lock.release()
                raise DeviceBusy(
                    f"{self.resource!r}: its owner has died, and its guard is bringing it to its safe state; wait"
                )
        owner = {
            "pid": os.getpid(),
            "user": user_name(),
            "command": " ".join(passwords.command())[:200],
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        # The note is for people; the lock itself is what counts.
        with contextlib.suppress(OSError):
            write_note(self._owner_path, owner)

    def _owner(self) -> str:
        try:
            owner = json.loads(self._owner_path.read_text())
            return f"process {owner['pid']} of {owner['user']} since {owner['since']} ({owner['command']})"
        except (OSError, ValueError, KeyError):
            return "another process"


def guard_lock(resource: str) -> FileLock:
    """What a guard holds while it watches over the owner of `resource`; the device is free when both locks are."""
    return FileLock(lock_file(resource, ".guard"), mode=0o666)


def _is_guarded(resource: str) -> bool:
    try:
        with guard_lock(resource).acquire(timeout=0):
            return False
    except Timeout:
        return True


class HostLocks:
    """Exclusive ownership of several resources at once: all of them, or none.

    They are locked in sorted order, so that two processes that want the same ones cannot wait for each other.
    """

    def __init__(self, resources: Iterable[str]) -> None:
        self.resources = tuple(sorted(set(resources)))
        self._locks: list[HostLock] = []

    def acquire(self, wait_s: float | None = None, *, honour_reservations: bool = True) -> None:
        """Take all locks, or raise `DeviceBusy` naming the owner of the first that is not free within `wait_s` seconds.

        By default it waits as long as RESERVOIR_HW_WAIT_S says, or else not at all. It holds none while it waits.
        What another user has reserved is not free, unless reservations are not honoured.
        """
        while_busy(lambda: self._take(honour_reservations), wait_s)

    def release(self) -> None:
        """Give all of them back. Idempotent."""
        while self._locks:
            self._locks.pop().release()

    def _take(self, honour_reservations: bool) -> None:
        reserved = reserved_for_another(self.resources, user_name()) if honour_reservations else None
        if reserved is not None:
            raise DeviceBusy(f"{reserved}; ask them to release it, or wait until then")
        try:
            for resource in self.resources:
                lock = HostLock(resource)
                lock.acquire(0)
                self._locks.append(lock)
        except BaseException:
            self.release()
            raise
