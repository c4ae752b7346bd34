"""What the section `hil:` of a reservoir names is done: a function is called, or a command run."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ReservoirError, text_of
from reservoir_hw.core.functions import import_function
from reservoir_hw.core.reservoir_config import ReservoirConfig

log = logging.getLogger(__name__)

_LONGEST_END = 300


def perform(action: str | Sequence[str], config: ReservoirConfig, folder: str | Path, timeout_s: float) -> Any:
    """Call the function `action` ("package.module:function") with `config`, or run the command `action` in `folder`.

    Gives what the function returns, or whether the command ended with status 0. A command that takes longer than
    `timeout_s` is killed, with the processes that it has started; a function is not timed.

    Raises `ConfigurationError` where there is no such function or program, `DeviceFault` where the function fails or
    the command takes too long, and what of this package's errors the function raises.
    """
    if isinstance(action, str):
        return _call(action, config)
    status, said = _run(list(action), folder, timeout_s)
    if status != 0:
        log.info("%s", said)
    return status == 0


def recover(config: ReservoirConfig) -> None:
    """Do what `hil.recover` names, if it names something.

    A function that returns anything but False has done it. Raises as `perform` does, and `DeviceFault` where it was
    not done.
    """
    hil = config.hil
    if hil is None or hil.recover is None:
        return
    if isinstance(hil.recover, str):
        done, said = _call(hil.recover, config) is not False, f"{hil.recover} returned False"
    else:
        status, said = _run(list(hil.recover), hil.folder, hil.timeout_s)
        done = status == 0
    if not done:
        raise DeviceFault(f"the device was not recovered: {said} (hil: recover:)")


def _call(target: str, config: ReservoirConfig) -> Any:
    function = import_function(target, "hil")
    try:
        return function(config)
    except ReservoirError:
        raise
    except (Exception, SystemExit) as error:
        raise DeviceFault(f"{target}: {type(error).__name__}: {text_of(error)}") from error


def _run(command: list[str], folder: str | Path, timeout_s: float) -> tuple[int, str]:
    """Its status, and a sentence about it with the end of what it said."""
    name = shlex.join(command)
    # A file, not a pipe: a server that the command leaves behind may keep it open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigurationError(f"hil: {name!r} cannot be started in {folder}: {error.strerror}") from error
        try:
            status = process.wait(timeout_s)
        except BaseException as error:
            # Its whole group, which began with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DeviceFault(
                    f"{name!r} did not end within {timeout_s:g} s and was killed{_end_of(output)}; "
                    "hil.timeout_s gives it more time"
                ) from None
            raise
        return status, f"{name!r} ended with status {status}{_end_of(output)}"


def _end_of(output: Any) -> str:
    """The end of what it said."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LONGEST_END))
    text = output.read().decode(errors="replace").strip()
    return f": {text.splitlines()[-1]}" if text else ""
