"""A thread that makes calls, so that one that does not return can be given up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from reservoir_hw.core.errors import DeviceFault, DeviceTimeout

_GRACE_S = 1.0


class CallingThread:
    """Makes one call after the other, all in the same thread, as drivers of instruments may need.

    A call that was given up goes on, and nothing else is called until it returns. A process can end meanwhile. While a
    call holds the interpreter's lock, nothing else runs, and nobody can give it up.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._running: Future[Any] | None = None
        self._given_up = False
        self._began = 0.0
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any], allowed_s: float = 0.0) -> Any:
        """What the function returns or raises. Raises `DeviceTimeout` after the longest wait and `allowed_s` more."""
        if not self.is_free():
            raise DeviceFault(self.running_since())
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="functions of the lab", daemon=True)
            self._thread.start()
        self._running, self._given_up, self._began = Future(), False, time.monotonic()
        self._calls.put((self._running, function))
        timeout = self._timeout_s + allowed_s
        if not wait_for([self._running], timeout).done:
            self._given_up = True
            raise DeviceTimeout(
                f"no answer for {time.monotonic() - self._began:.3g} s (timeout_s allows {timeout:.3g}); it still runs"
            )
        return self._running.result()

    def is_free(self, *, within_s: float = 0.0) -> bool:
        """Whether nothing is running. What is running may end within so many seconds."""
        if self._running is not None and within_s:
            wait_for([self._running], within_s)
        return self._running is None or self._running.done()

    def stop(self, stop: Callable[[], None] | None) -> None:
        """End what is running. `stop` is called beside it, at once where it was given up, else after a second.

        Raises `DeviceFault` if it goes on for the longest wait.
        """
        grace_s = 0.0 if self._given_up else min(_GRACE_S, self._timeout_s)
        if stop is not None and not self.is_free(within_s=grace_s):
            stop()
        if not self.is_free(within_s=self._timeout_s):
            raise DeviceFault(self.running_since())

    def running_since(self) -> str:
        """For messages, while something is running."""
        return f"an earlier call still runs, for {time.monotonic() - self._began:.3g} s by now"

    def end(self) -> None:
        """End the thread, after what is running. The next call begins another one."""
        self._calls.put(None)
        self._thread = None

    def _serve(self) -> None:
        while (job := self._calls.get()) is not None:
            future, function = job
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
