"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

log = logging.getLogger(__name__)

# torchrun passes on the signal that the terminal has sent to every process already.
_ECHO_S = 1.0
# The attribute of an error that keeps the number of the signal.
_ASKED = "_stop_requested"


class StopRequests:
    """While this is entered, the first SIGINT, SIGTERM or SIGHUP is only noted; another, later one stops at once.

    A request that nobody could act on any more is not forgotten: after an error, which goes on to the caller, it stands
    in a note of that error, and `stop_if_asked` acts on it; after the last look at `requested`, the signal is sent
    again. Only the main thread can do this; elsewhere signals act as ever.
    """

    def __init__(self) -> None:
        self.requested: int = 0
        """Number of the signal that came, or 0."""
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set by Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if not self.requested:
            return
        if error is None:
            signal.raise_signal(self.requested)
        elif isinstance(error, Exception):
            error.add_note(f"{signal.Signals(self.requested).name} had asked to stop after the step that failed")
            setattr(error, _ASKED, self.requested)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self._since = number, time.monotonic()
            log.warning("stopping after this step; once more to stop at once")
        elif time.monotonic() - self._since > _ECHO_S:
            raise KeyboardInterrupt("stopped at once; the training goes on from its last checkpoint")


def _signals() -> list[int]:
    found: list[int] = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None:
        handler = signal.getsignal(hangup)
        # Whoever wants to outlive the terminal ignores it (nohup), and to a program it may mean something of its own.
        if handler in (signal.SIG_DFL, signal.default_int_handler) or getattr(handler, "interrupts", False):
            found.append(hangup)
    return found


def stop_by(number: int, message: str) -> BaseException:
    """What to raise when this signal has asked to stop."""
    return KeyboardInterrupt(message) if number == signal.SIGINT else SystemExit(128 + number)


def stop_if_asked(error: BaseException) -> None:
    """Stop if a signal asked for it in the step that failed with this error: for those who would go on after it."""
    number = getattr(error, _ASKED, 0)
    if number:
        raise stop_by(number, "stopped, as was asked in the step that failed") from error
