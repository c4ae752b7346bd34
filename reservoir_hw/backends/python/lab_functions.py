"""The functions of a lab, imported, with the parameters of the device that each takes."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.backends.python.calling_thread import CallingThread
from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceFault, DeviceTimeout, ReservoirError
from reservoir_hw.core.functions import import_function, without_digest

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
        taken: set[str] = set()
        for key, target in self._targets.items():
            function = import_function(target, f"reservoir.{key}")
            given = _taken(function, params, ARGUMENTS[key], f"reservoir.{key}: {without_digest(target)}")
            taken |= given.keys()
            self._functions[key] = partial(function, **given) if given else function
        left = [name for name in params if name not in taken]
        if left:
            names = ", ".join(without_digest(target) for target in self._targets.values())
            raise ConfigurationError(f"reservoir.params.{left[0]}: no function has an argument of this name ({names})")
        self._thread = None if timeout_s is None else CallingThread(timeout_s)

    def has(self, key: str) -> bool:
        """Whether the configuration names a function here."""
        return key in self._functions

    def call(
        self,
        key: str,
        *arguments: Any,
        step: int | None = None,
        states: np.ndarray | None = None,
        allowed_s: float = 0.0,
    ) -> Any:
        """What this function returns.

        Raises `DeviceFault`, or what of it fits, which says whose code failed, at which step and line. It carries
        `states` (batch, time, nodes) before the step. `allowed_s` is added to the longest wait.
        """
        function = self._functions[key]
        with self.faults(key, step, states):
            if self._thread is None:
                return function(*arguments)
            return self._thread.call(lambda: function(*arguments), allowed_s)

    @contextmanager
    def faults(self, key: str, step: int | None = None, states: np.ndarray | None = None) -> Iterator[None]:
        """Name this function and step in what goes wrong meanwhile."""
        try:
            yield
        except ConfigurationError:
            raise
        except (Exception, SystemExit) as error:
            kinds = {TimeoutError: DeviceTimeout, ConnectionError: DeviceDisconnected}
            kind = next((fault for known, fault in kinds.items() if isinstance(error, known)), DeviceFault)
            what = str(error) if isinstance(error, ReservoirError) else f"{type(error).__name__}: {error}"
            at = "" if step is None else f" at step {step}"
            raise kind(
                f"{without_digest(self._targets[key])}{at}{_line(error)}: {what}",
                steps_done=step or 0,
                states=None if states is None else states[:, :step],
            ) from error

    def stop(self) -> None:
        """Call `stop_call` in this thread, beside whatever is running."""
        with self.faults("stop_call"):
            self._functions["stop_call"]()

    def close(self) -> None:
        """Call `close_call`. If a function still runs, `stop_call` comes first; raises `DeviceFault` if it goes on."""
        thread = self._thread
        if thread is not None and not thread.is_free(wait=True) and self.has("stop_call"):
            self.stop()
        if thread is not None and not thread.is_free(wait=True):
            what = f"{without_digest(self._targets['close_call'])} was not called" if self.has("close_call") else ""
            raise DeviceFault(f"{thread.running_since()}; {what or 'the device is left as it is'}")
        try:
            if self.has("close_call"):
                self.call("close_call")
        finally:
            if thread is not None:
                thread.end()


def _taken(function: Callable[..., Any], params: Mapping[str, Any], arguments: int, place: str) -> dict[str, Any]:
    """Of the parameters, those that the function takes by name beside its first arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    known = list(signature.parameters.values())
    named = [one.name for one in known[arguments:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    takes_all = any(one.kind is one.VAR_KEYWORD for one in known)
    given = {name: value for name, value in params.items() if takes_all or name in named}
    try:
        signature.bind(*range(arguments), **given)
    except TypeError as error:
        raise ConfigurationError(
            f"{place}{signature} does not fit: {error}; arguments beside the {arguments} that it gets come from "
            "reservoir.params"
        ) from None
    return given


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
