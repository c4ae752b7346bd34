"""What a configuration asks to be done: a function of a lab is called, or a command run."""

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

log = logging.getLogger(__name__)

_LONGEST_END = 300


def perform(
    action: str | Sequence[str], config: Any, folder: str | Path, timeout_s: float, section: str = "hil"
) -> Any:
    """Call the function `action` ("package.module:function") with `config`, or run the command `action` in `folder`.

    Gives what the function returns, or whether the command ended with status 0. A command that takes longer than
    `timeout_s` is killed, with the processes that it has started; a function is not timed.

    Raises `ConfigurationError` where there is no such function or program, `DeviceFault` where the function fails or
    the command takes too long, and what of this package's errors the function raises.
    """
    if isinstance(action, str):
        return call(action, config, section)
    status, said = run(list(action), folder, timeout_s, section)
    if status != 0:
        log.info("%s", said)
    return status == 0


def call(target: str, config: Any, section: str = "hil") -> Any:
    """What the function `target` returns for `config`. `section` of the configuration names it. Raises as `perform`."""
    function = import_function(target, section)
    try:
        return function(config)
    except ReservoirError:
        raise
    except (Exception, SystemExit) as error:
        raise DeviceFault(f"{target}: {type(error).__name__}: {text_of(error)}") from error


def run(command: list[str], folder: str | Path, timeout_s: float, section: str = "hil") -> tuple[int, str]:
    """Run it in `folder`: its status, and a sentence about it with the end of what it said. Raises as `perform`."""
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
            raise ConfigurationError(f"{section}: {name!r} cannot be started in {folder}: {error.strerror}") from error
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
                    f"{section}.timeout_s gives it more time"
                ) from None
            raise
        return status, f"{name!r} ended with status {status}{_end_of(output)}"


def _end_of(output: Any) -> str:
    """The end of what it said."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LONGEST_END))
    text = output.read().decode(errors="replace").strip()
    return f": {text.splitlines()[-1]}" if text else ""
