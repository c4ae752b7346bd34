"""One process owns a device at a time: a lock file on this host for each resource."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from reservoir_hw.core import passwords
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy


def lock_folder() -> Path:
    """Where the locks live: shared by all users of this host (`RESERVOIR_HW_LOCKS` moves it)."""
    return Path(os.environ.get("RESERVOIR_HW_LOCKS") or Path(tempfile.gettempdir()) / "reservoir_hw-locks")


class HostLock:
    """Exclusive ownership of `resource` (a VISA address, a serial port, a function's name).

    The operating system releases the lock when its owner dies, so there are no stale locks.
    """

    def __init__(self, resource: str) -> None:
        self.resource = resource
        name = hashlib.sha256(resource.encode()).hexdigest()[:24]
        self._path = lock_folder() / f"{name}.lock"
        self._owner_path = self._path.with_suffix(".json")
        self._lock = FileLock(self._path, mode=0o666)

    def acquire(self) -> None:
        """Take the lock at once or raise `DeviceBusy` naming the owner."""
        try:
            if not self._path.parent.exists():
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # Other users of this host must be able to lock too. A folder that was there is left as it is.
                with contextlib.suppress(PermissionError):
                    self._path.parent.chmod(0o777)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise DeviceBusy(
                f"{self.resource!r} is in use by {self._owner()}; close it there, or wait until it ends"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"cannot lock {self.resource!r} in {self._path.parent}: {error}; "
                "set RESERVOIR_HW_LOCKS to a folder that you can write to"
            ) from error
        owner = {
            "pid": os.getpid(),
            "user": _user(),
            "command": " ".join(passwords.command())[:200],
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        # The note is for people; the lock itself is what counts.
        with contextlib.suppress(OSError):
            # Replaced, not written to: it may be the note of another user, who died holding the lock.
            note = self._owner_path.with_suffix(f".{os.getpid()}")
            note.write_text(json.dumps(owner))
            note.chmod(0o644)
            os.replace(note, self._owner_path)

    def release(self) -> None:
        """Give the device back. Idempotent."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                self._owner_path.unlink(missing_ok=True)
            self._lock.release()

    def _owner(self) -> str:
        try:
            owner = json.loads(self._owner_path.read_text())
            return f"process {owner['pid']} of {owner['user']} since {owner['since']} ({owner['command']})"
        except (OSError, ValueError, KeyError):
            return "another process"


class HostLocks:
    """Exclusive ownership of several resources at once: all of them, or none.

    They are locked in sorted order, so that two processes that want the same ones cannot wait for each other.
    """

    def __init__(self, resources: Iterable[str]) -> None:
        self.resources = tuple(sorted(set(resources)))
        self._locks: list[HostLock] = []

    def acquire(self) -> None:
        """Take all locks at once, or raise `DeviceBusy` naming the owner of the first that is taken."""
        try:
            for resource in self.resources:
                lock = HostLock(resource)
                lock.acquire()
                self._locks.append(lock)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give all of them back. Idempotent."""
        while self._locks:
            self._locks.pop().release()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "an unknown user"
