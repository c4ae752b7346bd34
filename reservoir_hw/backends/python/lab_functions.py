"""The functions of a lab, imported, with the parameters of the device that each takes."""

from __future__ import annotations

import difflib
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
        unknown = [name for name in params if not any(name in taken for taken in given.values())]
        if unknown:
            arguments = [name for key, function in imported.items() for name in _named(function, _arguments(key))]
            close = difflib.get_close_matches(unknown[0], arguments, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            names = ", ".join(without_digest(target) for target in targets.values())
            raise ConfigurationError(
                f"reservoir.params.{unknown[0]}: {hint}no function has an argument of this name ({names})"
            )
        for key, function in imported.items():
            _refuse_misfit(function, _arguments(key), given[key], f"reservoir.{key}: {without_digest(targets[key])}")
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
            self._close()
            return
        called = "stop_call was called beside it" if self.has("stop_call") else "there is no stop_call"
        try:
            self._thread.stop(self.stop if self.has("stop_call") else None)
        except DeviceFault as fault:
            left = f"{without_digest(self._targets['close_call'])} was not called" if self.has("close_call") else ""
            raise DeviceFault(f"{fault}; {called}; {left or 'the device is left as it is'}") from fault
        try:
            self._close()
        except DeviceTimeout as timeout:
            if self.has("stop_call"):
                self.stop()
            raise DeviceTimeout(f"{timeout}; {called}; see that the device is in its safe state") from timeout
        finally:
            self._thread.end()

    def _close(self) -> None:
        if self.has("close_call"):
            self.call("close_call")


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _named(function: Callable[..., Any], arguments: int) -> list[str]:
    """The arguments that it takes by name beside its first ones."""
    signature = _signature(function)
    known = list(signature.parameters.values()) if signature else []
    return [one.name for one in known[arguments:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def _taken(function: Callable[..., Any], params: Mapping[str, Any], arguments: int) -> dict[str, Any]:
    """Of the parameters, those that the function takes by name beside its first arguments."""
    signature = _signature(function)
    if signature and any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
        return dict(params)
    names = _named(function, arguments)
    return {name: value for name, value in params.items() if name in names}


def _refuse_misfit(function: Callable[..., Any], arguments: int, given: Mapping[str, Any], place: str) -> None:
    """Raise `ConfigurationError` where the function cannot be called with its arguments and parameters."""
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*range(arguments), **given)
    except TypeError as error:
        raise ConfigurationError(
            f"{place}{signature} does not fit: {error}; arguments beside the {arguments} that it gets come from "
            "reservoir.params"
        ) from None


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
