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


class CallingThread:
    """Makes one call after the other, all in the same thread, as drivers of instruments may need.

    A call that was given up goes on, and nothing else is called until it returns. A process can end meanwhile. While a
    call holds the interpreter's lock, nothing else runs, and nobody can give it up.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._running: Future[Any] | None = None
        self._began = 0.0
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any], allowed_s: float = 0.0) -> Any:
        """What the function returns or raises. Raises `DeviceTimeout` after the longest wait and `allowed_s` more."""
        if not self.is_free():
            raise DeviceFault(self.running_since())
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="functions of the lab", daemon=True)
            self._thread.start()
        self._running, self._began = Future(), time.monotonic()
        self._calls.put((self._running, function))
        timeout = self._timeout_s + allowed_s
        if not wait_for([self._running], timeout).done:
            raise DeviceTimeout(
                f"no answer for {time.monotonic() - self._began:.3g} s (timeout_s allows {timeout:.3g}); it still runs"
            )
        return self._running.result()

    def is_free(self, *, wait: bool = False) -> bool:
        """Whether nothing is running; it may end within the longest wait."""
        if self._running is not None and wait:
            wait_for([self._running], self._timeout_s)
        return self._running is None or self._running.done()

    def running_since(self) -> str:
        """For messages, while something is running."""
        return f"an earlier call still runs, for {time.monotonic() - self._began:.3g} s by now"

    def end(self) -> None:
        """End the thread, after what is running."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (job := self._calls.get()) is not None:
            future, function = job
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
