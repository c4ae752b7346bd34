"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP), kept until they do no harm."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

log = logging.getLogger(__name__)

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HANGUP = getattr(signal, "SIGHUP", None)
# The attribute of an error that keeps the number of the signal.
_ASKED = "_stop_requested"

_last: int = signal.SIGINT


def interrupt(number: int, frame: FrameType | None = None, *why: str) -> None:
    """A handler of signals: what Python does on Ctrl-C, for any signal; `exit_code` knows which."""
    global _last
    _last = number
    raise KeyboardInterrupt(*why)


def exit_code() -> int:
    """Of a program that `interrupt` has ended: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + _last


_AS_CTRL_C = (signal.default_int_handler, interrupt)
_DEFAULT = (signal.SIG_DFL, *_AS_CTRL_C)


class _Deferred(ABC):
    """Takes these signals over while it is entered, and puts their handlers back.

    Only the main thread gets signals. In other threads nothing is changed.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}

    @abstractmethod
    def _takes(self, number: int, handler: Any) -> bool:
        """Whether a signal that has this handler is taken over."""

    @abstractmethod
    def _came(self, number: int, frame: FrameType | None) -> None:
        """One of the signals came."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if self._takes(number, handler):
                    # First noted: the signal may come as soon as it is taken over.
                    self._previous[number] = handler
                    signal.signal(number, self._came)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set by Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class HeldInterrupts(_Deferred):
    """A signal acts only within `allowed()`. Elsewhere it is kept until then, or until this is left.

    So a trial is either known to have been begun, with its process, or does not exist, and its end is written whole.
    Only signals with a handler in Python are kept; SIGHUP only where it means the same as Ctrl-C.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: int | None = None
        self._is_allowed = False

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """What may be interrupted."""
        self._is_allowed = True
        try:
            self._act()
            yield
        finally:
            self._is_allowed = False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._act()

    def _takes(self, number: int, handler: Any) -> bool:
        # What a program has set for SIGHUP may mean something else. A server knows itself when its device is closing.
        meant = number != _HANGUP or handler in _AS_CTRL_C
        return callable(handler) and meant and not isinstance(getattr(handler, "__self__", None), StopOnSignals)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._is_allowed:
            self._previous[number](number, frame)
        else:
            self._held = number

    def _act(self) -> None:
        if self._held is not None:
            number, self._held = self._held, None
            self._previous[number](number, None)


class _FirstAndSecond(_Deferred):
    """The first signal asks to stop, and a later one stops at once. An echo of the first one does not count."""

    echo_s: float

    def __init__(self) -> None:
        super().__init__()
        self._since: float | None = None

    @abstractmethod
    def _first(self, number: int) -> None: ...

    @abstractmethod
    def _second(self, number: int) -> None: ...

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._since is None:
            self._since = time.monotonic()
            self._first(number)
        elif time.monotonic() - self._since > self.echo_s:
            self._second(number)


class StopRequests(_FirstAndSecond):
    """The first signal is only noted, for whoever asks `requested` between two steps; a second one stops at once.

    A request that nobody could act on any more is not forgotten: after an error, which goes on to the caller, it stands
    in a note of that error, and `stop_if_asked` acts on it; after the last look at `requested`, the signal is sent
    again. `advice` says what a stop at once means.
    """

    # torchrun passes on the signal that the terminal has sent to every process already.
    echo_s = 1.0

    def __init__(self, advice: str = "") -> None:
        super().__init__()
        self.requested: int = 0
        """Number of the signal that came, or 0."""
        self._advice = advice

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if not self.requested:
            return
        if error is None:
            signal.raise_signal(self.requested)
        elif isinstance(error, Exception):
            error.add_note(f"{signal.Signals(self.requested).name} had asked to stop after the step that failed")
            setattr(error, _ASKED, self.requested)

    def _takes(self, number: int, handler: Any) -> bool:
        # Whoever wants to outlive the terminal ignores it (nohup), and to a program it may mean something of its own.
        means_to_end = handler in _DEFAULT or isinstance(getattr(handler, "__self__", None), HeldInterrupts)
        return number != _HANGUP or means_to_end

    def _first(self, number: int) -> None:
        self.requested = number
        log.warning("stopping after this step; once more to stop at once")

    def _second(self, number: int) -> None:
        interrupt(number, None, "stopped at once" + (self._advice and f"; {self._advice}"))


class StopOnSignals(_FirstAndSecond):
    """The first signal calls `stop`, and a second one interrupts, but not while `is_closing`.

    Signals for which the owner of the process has set something himself (nohup too) are left alone.

    Args:
        stop: Called in the handler of the signal: it must not wait.
        is_closing: Whether a device is on the way to its safe state.
    """

    # What stops a process and its whole group sends the same signal twice.
    echo_s = 0.5

    def __init__(self, stop: Callable[[], None], is_closing: Callable[[], bool]) -> None:
        super().__init__()
        self._stop, self._is_closing = stop, is_closing

    def _takes(self, number: int, handler: Any) -> bool:
        return handler in _DEFAULT

    def _first(self, number: int) -> None:
        self._stop()

    def _second(self, number: int) -> None:
        if not self._is_closing():
            # The device is brought to its safe state in any case.
            for other in self._previous:
                signal.signal(other, signal.SIG_IGN)
            interrupt(number)


def stop_by(number: int, message: str) -> BaseException:
    """What to raise when this signal has asked to stop."""
    return KeyboardInterrupt(message) if number == signal.SIGINT else SystemExit(128 + number)


def stop_if_asked(error: BaseException) -> None:
    """Stop if a signal asked for it in the step that failed with this error: for those who would go on after it."""
    if number := getattr(error, _ASKED, 0):
        raise stop_by(number, "stopped, as was asked in the step that failed") from error
