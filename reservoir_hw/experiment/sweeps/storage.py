"""The database of a study, and the processes that are at work on it. Needs the `train` extra."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.provenance import without_password

HEARTBEAT_S, GRACE_S = 30, 300
"""A running trial shows regularly that it lives. A trial that was silent for too long counts as dead.

The grace is long because a kernel that computes for minutes keeps the sign of life waiting."""

LOCKED_S = 60
"""How long a process waits for another one that writes into the same SQLite file."""

_ATTEMPTS = 5


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """The database behind `url`, its tables made if they are not there.

    Raises `ConfigurationError` where it cannot be used, `MissingExtra` without its driver.
    """
    shown = without_password(url)
    try:
        make_url(url)
    except (ArgumentError, ValueError):
        # Its own words would show what follows an @ that was not encoded. Where a password stands in something that
        # does not even look like a URL, nobody knows.
        known = shown if "://" in url or ":" not in url else f"{url.partition(':')[0]}:***"
        raise ConfigurationError(
            f"sweep.storage: {known!r} is no database URL; write sqlite:///PATH or "
            "postgresql://USER:PASSWORD@HOST/NAME, with %40 for an @ in a password"
        ) from None
    engine = {"connect_args": {"timeout": LOCKED_S}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    for attempt in range(_ATTEMPTS):
        try:
            with silent(), experimental():
                return optuna.storages.RDBStorage(
                    url, engine_kwargs=engine, heartbeat_interval=HEARTBEAT_S, grace_period=GRACE_S
                )
        except ImportError as error:
            reason = error.__cause__ or error
            raise MissingExtra(f"sweep.storage: {shown}: {reason}; install the driver of that database") from error
        except SQLAlchemyError as error:
            # Two processes that make the tables at the same moment stand in each other's way.
            made_twice = isinstance(error, IntegrityError) or "already exists" in str(error)
            if not made_twice or attempt == _ATTEMPTS - 1:
                raise ConfigurationError(f"sweep.storage: {shown} cannot be used: {_reason(error)}") from error
            time.sleep(0.2)
        except RuntimeError as error:
            # Tables of another version of Optuna; its message names the command that converts them.
            raise ConfigurationError(f"sweep.storage: {shown} cannot be used: {error}") from error
    raise AssertionError


@contextlib.contextmanager
def connected(storage: str) -> Iterator[None]:
    """While the database is used: its loss is a `ConnectionError`."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        raise ConnectionError(f"the storage {storage} cannot be used any more: {_reason(error)}") from error


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Optuna says nothing meanwhile: what happened to a trial stands in the study."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


@contextlib.contextmanager
def experimental() -> Iterator[None]:
    """Features that some versions of Optuna warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _reason(error: BaseException) -> str:
    """What the database said, without the statement."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    return str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]


# ---- Which processes are at work on a study, and which of them have died.


log = logging.getLogger(__name__)

_ALIVE = ".alive"


@contextlib.contextmanager
def worker(folder: Path) -> Iterator[dict[str, Any]]:
    """A process at work on the study, and who it is: while it lives, it holds a lock in the sweep's folder.

    The operating system releases the lock when its owner dies, however that comes about.
    """
    name = uuid.uuid4().hex[:12]
    path = folder / f"{name}{_ALIVE}"
    with FileLock(path):
        yield {"id": name, "host": platform.node(), "pid": os.getpid()}
    # After an error, a dead trial may be left. Only its free lock shows that it is dead.
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def signs_of_life(show: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `show` every so many seconds meanwhile; one that fails is missed, not fatal."""
    ended = threading.Event()

    def live() -> None:
        while True:
            try:
                show()
            except Exception as error:
                # If the database is lost, the code that writes the result reports it.
                log.debug("no sign of life: %s", error)
            if ended.wait(every_s):
                return

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def dead_workers(folder: Path) -> set[str]:
    """Identifiers of the processes that used this folder and are no more."""
    return {path.stem for path in folder.glob(f"*{_ALIVE}") if _is_free(path)}


def forget_workers(folder: Path, dead: set[str]) -> None:
    """Remove what they left."""
    for worker in dead:
        (folder / f"{worker}{_ALIVE}").unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    try:
        with FileLock(path).acquire(timeout=0):
            return True
    except (Timeout, OSError):
        return False
