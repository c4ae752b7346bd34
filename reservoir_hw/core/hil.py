"""The section `hil:` of a reservoir: what its tests need to know, and the device is not made of."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, ValidationInfo, field_validator

from reservoir_hw.core.configuration import Config, Document
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ReservoirError, text_of
from reservoir_hw.core.functions import FUNCTION, import_function

Group = Literal[
    "repeatability",
    "declaration",
    "shapes",
    "reset",
    "continuity",
    "isolation",
    "causality",
    "memory",
    "range",
    "timing",
    "stability",
    "snapshot",
    "settable",
    "programmable",
    "recovery",
    "safety",
    "identity",
]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The groups of tests, in the order in which they run."""


def _reason(text: str) -> str:
    if not text.strip():
        raise ValueError("say why the device does not offer it")
    return text


def _action(action: Any) -> Any:
    if isinstance(action, str):
        known = re.match(FUNCTION, action) is not None
    else:
        known = isinstance(action, list | tuple) and bool(action) and all(isinstance(text, str) for text in action)
    if not known:
        raise ValueError("it must be module:function, or a command as a list of texts")
    return tuple(action) if isinstance(action, list) else action


Action = Annotated[str | tuple[str, ...], BeforeValidator(_action)]
"""A function, "package.module:function", or a command and its arguments."""


class HilConfig(Config):
    """What tests with hardware in the loop need to know. Nothing in it decides about states."""

    folder: Path = Field(
        default=Path(),
        description="where commands run and relative paths begin; by default the folder of this file",
    )
    not_offered: dict[Group, Annotated[str, AfterValidator(_reason)]] = Field(
        default_factory=dict, description="groups of tests that mean nothing to this device, each with the reason"
    )
    recover: Action | None = Field(default=None, description="brings the device back after a fault")
    safe_check: Action | None = Field(
        default=None,
        description="says whether the device is in its safe state now, by another path than its driver",
    )
    fault: Action | None = Field(default=None, description="makes the device fail once")
    twin: str | None = Field(default=None, description="the reservoir file of a simulation of this device")
    golden: str | None = Field(default=None, description="a trace of this device that it is compared with")
    timeout_s: PositiveFloat = Field(default=30.0, description="a command may take so long")

    @field_validator("twin", "golden")
    @classmethod
    def _in_folder(cls, path: str | None, info: ValidationInfo) -> str | None:
        # A trace may be a URL.
        return path if path is None or "://" in path else str(info.data.get("folder", Path()) / path)


def place_hil(document: Document) -> None:
    """Write into each section `hil` of a reservoir the folder of the file in which it stands."""
    _place(document.data, (), document)


def _place(node: Any, at: tuple[str | int, ...], document: Document) -> None:
    if isinstance(node, dict):
        hil = node.get("hil")
        if "kind" in node and isinstance(hil, dict) and isinstance(hil.get("folder", ""), str):
            hil["folder"] = str((document.folder((*at, "hil")) / hil.get("folder", "")).resolve())
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _place(value, (*at, key), document)


# ---- What a configuration asks to be done: a function of a lab is called, or a command run.


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
