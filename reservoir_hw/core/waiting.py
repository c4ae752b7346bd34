"""Waiting for a device that somebody else has."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from reservoir_hw.core.errors import ConfigurationError, DeviceBusy
from reservoir_hw.core.validation import number_in

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
