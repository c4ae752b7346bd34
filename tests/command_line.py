"""The command line inside the test's own process: no interpreter to start, nothing to import again.

The program writes to the descriptors 1 and 2 and finds its modules in the current folder, as `python -m` does. Tests of
what only a process of its own shows (signals, limits, two at once, the first import) start one.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from unittest import mock

import typer
from typer.testing import CliRunner

from reservoir_hw.cli import main
from reservoir_hw.cli.options import CommandGroup


@contextlib.contextmanager
def _descriptor(number: int, file: IO[bytes], name: str) -> Iterator[None]:
    kept = os.dup(number)
    os.dup2(file.fileno(), number)
    stream = io.TextIOWrapper(io.FileIO(number, "r+" if number else "r", closefd=False), "utf-8")  # type: ignore[arg-type]
    try:
        with mock.patch.object(sys, name, stream):
            yield
    finally:
        stream.close()
        os.dup2(kept, number)
        os.close(kept)


@contextlib.contextmanager
def _fresh(folder: Path) -> Iterator[None]:
    """As in a new process: no handlers of the log, the folder on the path; what the call changed is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # Another test may have left modules with the names of those that lie here.
    hidden = {
        name: sys.modules.pop(name) for name in [path.stem for path in folder.glob("*.py")] if name in sys.modules
    }
    known = set(sys.modules)
    root.handlers[:] = []
    try:
        with contextlib.chdir(folder), mock.patch.object(sys, "path", [str(folder), *sys.path]):
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for number, handler in signals.items():
            signal.signal(number, handler)
        for name in set(sys.modules) - known:
            if os.path.dirname(getattr(sys.modules[name], "__file__", None) or "") == str(folder):
                del sys.modules[name]
        sys.modules.update(hidden)


def command(*arguments: object, python: object = sys.executable) -> list[str]:
    """What starts the program in a process of its own."""
    return [str(python), "-m", "reservoir_hw.cli", *map(str, arguments)]


def started(*arguments: object, **how: Any) -> subprocess.Popen[str]:
    """The program in a process of its own, which tells a test what it says."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command(*arguments), text=True, **{**pipes, **how})


def ended(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, **how)


def call_here(*arguments: object, cwd: Path | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
    """What `python -m reservoir_hw.cli` would print and return."""
    code: object = 0
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(text.encode())
        given.seek(0)
        folder = Path.cwd() if cwd is None else cwd.absolute()
        with (
            _descriptor(0, given, "stdin"),
            _descriptor(1, out, "stdout"),
            _descriptor(2, errors, "stderr"),
            mock.patch.object(sys, "argv", ["reservoir-hw", *map(str, arguments)]),
            _fresh(folder),
        ):
            try:
                main()
            except SystemExit as stop:
                code = stop.code or 0
            except BaseException:
                traceback.print_exc()
                code = 1
        said = []
        for file in (out, errors):
            file.seek(0)
            said.append(file.read().decode())
    assert isinstance(code, int)
    return subprocess.CompletedProcess([*map(str, arguments)], code, *said)


def alone(name: str, command: Any) -> Callable[..., Any]:
    """Calls one command, or one group, without the imports of the others; the call is to end with this code."""
    app = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)

    def call(*arguments: object, code: int = 0) -> Any:
        done = CliRunner().invoke(app, [name, *map(str, arguments)])
        assert done.exit_code == code, done.output
        return done

    return call


def called(*arguments: object, code: int = 0, **how: Any) -> subprocess.CompletedProcess[str]:
    """What `call_here` gives, which is to end with this code, and never with a traceback."""
    done = call_here(*arguments, **how)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done
