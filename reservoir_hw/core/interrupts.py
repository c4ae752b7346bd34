"""Ctrl-C that waits until the books are written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class HeldInterrupts:
    """While this is entered, Ctrl-C (and SIGTERM and SIGHUP where they mean the same) acts only within `allowed()`.

    Elsewhere it is kept until then, or until this is left. So a trial is either known to have been begun, with its
    process, or does not exist, and its end is written whole. In other threads than the main one, which no signal
    reaches, it does nothing.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._held: int | None = None
        self._is_allowed = False

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            hangup = getattr(signal, "SIGHUP", None)
            for number in filter(None, (signal.SIGINT, signal.SIGTERM, hangup)):
                previous = signal.getsignal(number)
                # What a program has set for SIGHUP may mean something else.
                if callable(previous) and (number != hangup or previous is signal.default_int_handler):
                    self._previous[number] = previous
                    signal.signal(number, self._hold)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._act()

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """What may be interrupted."""
        self._is_allowed = True
        try:
            self._act()
            yield
        finally:
            self._is_allowed = False

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._is_allowed:
            self._previous[number](number, frame)
        else:
            self._held = number

    # As `StopRequests` asks of the handler that it finds.
    _hold.interrupts = True  # type: ignore[attr-defined]

    def _act(self) -> None:
        if self._held is not None:
            number, self._held = self._held, None
            self._previous[number](number, None)
