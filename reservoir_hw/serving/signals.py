"""How a process that serves a device is ended from outside."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# What stops a process and its whole group sends the same signal twice.
_ONE_SIGNAL_S = 0.5


def stop_on_signals(stop: Callable[[], None], is_closing: Callable[[], bool]) -> Callable[[], None]:
    """Have the first Ctrl-C, SIGTERM or closed terminal call `stop`, and a second one interrupt; returns the way back.

    While `is_closing`, that is on the way to the safe state, nothing interrupts. Outside the main thread, and for
    signals for which the owner of the process has set something himself (nohup too), nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    first: list[float] = []
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in names}
    before = {each: was for each, was in before.items() if was in (signal.SIG_DFL, signal.default_int_handler)}

    def end(number: int, frame: Any) -> None:
        del number, frame
        now = time.monotonic()
        if not first:
            first.append(now)
            stop()
        elif now > first[0] + _ONE_SIGNAL_S and not is_closing():
            # The device is brought to its safe state in any case.
            for each in before:
                signal.signal(each, signal.SIG_IGN)
            raise KeyboardInterrupt

    def back() -> None:
        for each, was in before.items():
            signal.signal(each, was)

    for each in before:
        signal.signal(each, end)
    return back


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None], is_closing: Callable[[], bool]) -> Iterator[None]:
    """`stop_on_signals` meanwhile."""
    back = stop_on_signals(stop, is_closing)
    try:
        yield
    finally:
        back()
