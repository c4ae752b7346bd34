"""The functions of a lab, imported, with the parameters of the device that each takes."""

from __future__ import annotations

import difflib
import inspect
import queue
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceFault, DeviceTimeout, ReservoirError
from reservoir_hw.core.functions import import_function, without_digest

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


ARGUMENTS = {
    "call": 1,
    "set_call": 1,
    "sweep_call": 0,
    "read_call": 0,
    "setup_call": 0,
    "reset_call": 0,
    "close_call": 0,
    "stop_call": 0,
}
"""Of each key of the configuration: how many arguments its function gets beside the parameters of the device."""


def _arguments(key: str) -> int:
    """As `ARGUMENTS` says; what sets a knob gets the value, and what reads a knob or a monitor nothing."""
    return int(key.endswith(".set")) if "." in key else ARGUMENTS[key]


_OURS = Path(__file__).parents[2]
_LIBRARIES = {"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name}


class LabFunctions:
    """The functions that a configuration names, by its keys ("call", "setup_call").

    `params` are the settings of the device. With `timeout_s` the functions run in a thread. Raises `ConfigurationError`
    where one cannot be imported or needs a parameter that is not given, and for a parameter that no function takes.
    """

    def __init__(self, targets: Mapping[str, str], params: Mapping[str, Any], timeout_s: float | None) -> None:
        self._targets = targets
        self._functions: dict[str, Callable[..., Any]] = {}
        imported = {key: import_function(target, f"reservoir.{key}") for key, target in targets.items()}
        given = {key: _taken(function, params, _arguments(key)) for key, function in imported.items()}
        if unknown := [name for name in params if not any(name in taken for taken in given.values())]:
            arguments = [name for key, function in imported.items() for name in _named(function, _arguments(key))]
            close = difflib.get_close_matches(unknown[0], arguments, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            names = ", ".join(without_digest(target) for target in targets.values())
            raise ConfigurationError(
                f"reservoir.params.{unknown[0]}: {hint}no function has an argument of this name ({names})"
            )
        for key, function in imported.items():
            signature, arguments = _signature(function), _arguments(key)
            try:
                signature.bind(*range(arguments), **given[key])
            except TypeError as error:
                raise ConfigurationError(
                    f"reservoir.{key}: {without_digest(targets[key])}{signature} does not fit: {error}; arguments "
                    f"beside the {arguments} that it gets come from reservoir.params"
                ) from None
            self._functions[key] = partial(function, **given[key]) if given[key] else function
        self._thread = None if timeout_s is None else CallingThread(timeout_s)

    def has(self, key: str) -> bool:
        """Whether the configuration names a function here."""
        return key in self._functions

    def is_free(self) -> bool:
        """Whether no call is running that was given up."""
        return self._thread is None or self._thread.is_free()

    def call(
        self,
        key: str,
        *arguments: Any,
        at: str = "",
        states: np.ndarray | None = None,
        allowed_s: float = 0.0,
    ) -> Any:
        """What this function returns.

        Raises `DeviceFault`, or what of it fits, which says whose code failed, `at` which steps (" at step 3") and at
        which line. It carries `states` (batch, time, nodes). `allowed_s` is added to the longest wait.
        """
        function = self._functions[key]
        with self.faults(key, at, states):
            if self._thread is None:
                return function(*arguments)
            return self._thread.call(lambda: function(*arguments), allowed_s)

    def call_if_given(self, key: str, **how: Any) -> Any:
        """As `call`; None where the configuration names no function here."""
        return self.call(key, **how) if self.has(key) else None

    @contextmanager
    def faults(self, key: str, at: str = "", states: np.ndarray | None = None) -> Iterator[None]:
        """Name this function and steps in what goes wrong meanwhile."""
        try:
            yield
        except ConfigurationError:
            raise
        except (Exception, SystemExit) as error:
            kinds = {TimeoutError: DeviceTimeout, ConnectionError: DeviceDisconnected}
            kind = next((fault for known, fault in kinds.items() if isinstance(error, known)), DeviceFault)
            what = str(error) if isinstance(error, ReservoirError) else f"{type(error).__name__}: {error}"
            raise kind(
                f"{without_digest(self._targets[key])}{at}{_line(error)}: {what}",
                steps_done=0 if states is None else states.shape[1],
                states=states,
            ) from error

    def stop(self) -> None:
        """Call `stop_call` in this thread, beside whatever is running."""
        with self.faults("stop_call"):
            self._functions["stop_call"]()

    def close(self) -> None:
        """Call `close_call`, and `stop_call` where a function still runs or `close_call` itself does not return.

        Raises `DeviceFault` where the device may not be in its safe state.
        """
        if self._thread is None:
            self.call_if_given("close_call")
            return
        called = "stop_call was called beside it" if self.has("stop_call") else "there is no stop_call"
        try:
            self._thread.stop(self.stop if self.has("stop_call") else None)
        except DeviceFault as fault:
            left = f"{without_digest(self._targets['close_call'])} was not called" if self.has("close_call") else ""
            raise DeviceFault(f"{fault}; {called}; {left or 'the device is left as it is'}") from fault
        try:
            self.call_if_given("close_call")
        except DeviceTimeout as timeout:
            if self.has("stop_call"):
                self.stop()
            raise DeviceTimeout(f"{timeout}; {called}; see that the device is in its safe state") from timeout
        finally:
            self._thread.end()


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # What is compiled may not tell: then it takes anything.
        return inspect.Signature([inspect.Parameter("arguments", inspect.Parameter.VAR_POSITIONAL)])


def _named(function: Callable[..., Any], arguments: int) -> list[str]:
    """The arguments that it takes by name beside its first ones."""
    known = list(_signature(function).parameters.values())[arguments:]
    return [one.name for one in known if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def _taken(function: Callable[..., Any], params: Mapping[str, Any], arguments: int) -> dict[str, Any]:
    """Of the parameters, those that the function takes by name beside its first arguments."""
    if any(one.kind is one.VAR_KEYWORD for one in _signature(function).parameters.values()):
        return dict(params)
    names = _named(function, arguments)
    return {name: value for name, value in params.items() if name in names}


def _line(error: BaseException) -> str:
    """File and line of the lab's own code, the innermost before a library's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _OURS not in Path(frame.filename).parents]
    own = [frame for frame in frames if not _LIBRARIES & set(Path(frame.filename).parts)]
    if not frames:
        return ""
    innermost = (own or frames)[-1]
    file = Path(innermost.filename)
    short = file.relative_to(Path.cwd()) if Path.cwd() in file.parents else file
    return f" ({short}:{innermost.lineno})"
