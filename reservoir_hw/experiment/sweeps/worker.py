"""Which processes are at work on a study, and which of them have died."""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

_ALIVE = ".alive"


class Worker:
    """A process at work on the study: while it lives, it holds a lock in the sweep's folder.

    The operating system releases the lock when its owner dies, however that comes about.
    """

    def __init__(self, folder: Path) -> None:
        self.record = {"id": uuid.uuid4().hex[:12], "host": platform.node(), "pid": os.getpid()}
        self._path = folder / f"{self.record['id']}{_ALIVE}"
        self._lock = FileLock(self._path)

    def __enter__(self) -> Self:
        self._lock.acquire(timeout=0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._lock.release()
        if kind is None:
            # After an error a trial may be left that only the free lock tells to be dead.
            self._path.unlink(missing_ok=True)


def dead_workers(folder: Path) -> set[str]:
    """Identifiers of the processes that used this folder and are no more."""
    return {path.stem for path in folder.glob(f"*{_ALIVE}") if _is_free(path)}


def forget_workers(folder: Path, dead: set[str]) -> None:
    """Remove what they left."""
    for worker in dead:
        (folder / f"{worker}{_ALIVE}").unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return False
    lock.release()
    return True
