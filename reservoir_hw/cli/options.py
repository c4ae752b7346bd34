"""Arguments and options that several commands share, and exit codes: 2 wrong configuration, 3 device fault, or a live
stream that cannot go on, 1 all else.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from reservoir_hw.core.interrupts import exit_code
from reservoir_hw.core.provenance import as_plain

ExperimentFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment file (YAML or JSON).")]
ReservoirOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--reservoir", metavar="FILE", help="Reservoir file that replaces the section `reservoir`."),
]
StrictOption: TypeAlias = Annotated[
    bool,
    typer.Option("--strict", help="With --reservoir: an error where the experiment cannot be kept whole."),
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one value, for instance reservoir.nodes=300. May be repeated."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
AcceptChangeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--accept-change", metavar="REASON", help="Go on though the device reports other settings than before."
    ),
]
OnlyOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME", help="Take this measure alone, e.g. consistency. May be repeated."),
]
InputRangeOption: TypeAlias = Annotated[
    tuple[float, float] | None,
    typer.Option("--input-range", metavar="LOW HIGH", help="Inputs to drive with. (default: the device's range)"),
]
InputsOption: TypeAlias = Annotated[
    int | None, typer.Option("--inputs", min=1, metavar="N", help="Input channels, where neither file nor task says.")
]


# ---- Exit codes: 2 wrong configuration, 3 device fault, or a live stream that cannot go on, 1 all else.
#
# 128 + N: ended by signal N (130: Ctrl-C).


log = logging.getLogger(__name__)

CONFIGURATION, DEVICE, OTHER = 2, 3, 1


class CommandGroup(TyperGroup):
    """Turns the package's errors into one readable message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            _say("interrupted: what was finished is kept", stop)
            raise typer.Exit(exit_code()) from None
        except SystemExit as stop:
            # A training that SIGTERM has stopped between two steps.
            if hasattr(stop, "__notes__"):
                _say("terminated: what was finished is kept", stop)
            raise
        except Exception as error:
            from reservoir_hw.core.errors import DeviceError, ReservoirError, StateLost, StreamStopped
            from reservoir_hw.core.lazy import missing_extra

            if isinstance(error, DeviceError | StateLost):
                steps = error.steps_done if isinstance(error, DeviceError) else 0
                done = f" ({steps} steps of this call were done)" if steps else ""
                code, told = DEVICE, f"{'stopped' if isinstance(error, StreamStopped) else 'device'}: {error}{done}"
            elif isinstance(error, ReservoirError):
                code, told = CONFIGURATION, f"error: {error}"
            elif isinstance(error, OSError):
                # Its own text has the number of the error and quotes, which say less.
                said, name = error.strerror or str(error), error.filename
                name = os.fsdecode(name) if isinstance(name, bytes) else name
                where = "" if name is None or not error.strerror else f"{name}: "
                code, told = OTHER, f"error: {where}{said}; what was finished before is kept"
            elif isinstance(error, ModuleNotFoundError) and (missing := missing_extra(error)):
                code, told = CONFIGURATION, f"error: {missing}"
            # That of torch on a GPU is none of Python's.
            elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
                code, told = OTHER, f"error: not enough memory on this machine: {error}; choose smaller sizes"
            else:
                raise
            _say(told, error)
            raise typer.Exit(code) from error


def _notes(error: BaseException) -> list[str]:
    """Those of the error. A signal that came while another one was on its way does not hide what that had to say."""
    before = error.__context__ if isinstance(error, KeyboardInterrupt) else None
    return [*getattr(error, "__notes__", []), *(_notes(before) if before is not None else [])]


def _say(message: str, error: BaseException) -> None:
    """The message and, below it, the notes of the error; with --log debug, first where it came from."""
    log.debug("this is where it came from", exc_info=error)
    # Of several that torchrun has started, the first says that all were stopped.
    rank = os.environ.get("RANK", "0")
    if rank != "0" and not isinstance(error, Exception):
        return
    who = "" if rank == "0" else f"process {rank}: "
    for line in (f"{who}{message}", *_notes(error)):
        typer.echo(line, err=True)


# ---- Log records as JSON, one object on each line.


_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Time, level, logger and message, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _KNOWN},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=as_plain)
