"""The command line. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated

import typer

from reservoir_hw import __version__
from reservoir_hw.cli.options import CommandGroup
from reservoir_hw.core.interrupts import interrupt

app = typer.Typer(
    cls=CommandGroup,
    help="Hardware-in-the-loop framework for physical reservoir computing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reservoir-hw {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    log: Annotated[
        str, typer.Option(help="Log to standard error: debug (with tracebacks), info, warning, error.")
    ] = "warning",
) -> None:
    import logging

    level = logging.getLevelNamesMapping().get(log.upper())
    if level is None:
        raise typer.BadParameter(f"{log!r} is not one of debug, info, warning, error", param_hint="--log")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        # Of other packages, such as matplotlib with its fonts, warnings are shown alone.
        handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name.startswith("reservoir_hw"))
    if level == logging.WARNING:
        # Who has the device that one waits for is shown even if nobody asked for a log.
        logging.getLogger("reservoir_hw.core.locks").setLevel(logging.INFO)


from reservoir_hw.cli import (  # noqa: E402
    bench,
    bundle,
    check,
    compare,
    conform,
    device,
    emulate,
    infer,
    measure,
    run,
    serve,
    trace,
)

app.command("init")(check.init)
app.command("check")(check.check)
app.command("run")(run.run)
app.command("sweep")(run.sweep)
app.command("harvest")(run.harvest)
app.command("measure")(measure.measure)
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("conform")(conform.conform)
app.command("evaluate")(run.evaluate)
app.command("blimp")(run.blimp)
app.command("export")(bundle.export)
app.command("infer")(infer.infer)
app.command("schema")(check.schema)
app.add_typer(trace.app, name="trace")
app.add_typer(bundle.app, name="bundle")
app.add_typer(device.app, name="device")
app.command("serve")(serve.serve)
app.add_typer(emulate.app, name="emulate")
app.command("list")(check.list_kinds)


def main() -> None:
    """Entry point of `reservoir-hw`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode shows a question mark instead of ending the program.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # A batch system ends the job, or a terminal closes: devices are left in their safe state, as after Ctrl-C.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Under nohup it is ignored, or in the background of a shell.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    app()
