"""Which processes are at work on a study, and which of them have died."""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

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
            # After an error, a dead trial may be left. Only its free lock shows that it is dead.
            self._path.unlink(missing_ok=True)


class SignsOfLife:
    """Calls `show` every so many seconds while it is entered; one that fails is missed, not fatal."""

    def __init__(self, show: Callable[[], None], every_s: float) -> None:
        self._show, self._every_s = show, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _live(self) -> None:
        while True:
            try:
                self._show()
            except Exception as error:
                # If the database is lost, the code that writes the result reports it.
                log.debug("no sign of life: %s", error)
            if self._ended.wait(self._every_s):
                return


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
