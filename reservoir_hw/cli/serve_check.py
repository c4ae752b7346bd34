"""`reservoir-hw serve --check`: what a server does, rule by rule of docs/protocol.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.files import must_be_writable

if TYPE_CHECKING:
    from reservoir_hw.testing.protocol.device import Device

# Of each frame of a broken rule; JSON and JUnit XML have more.
_SHOWN_BYTES = 96
# What goes together with --check.
_WITH_CHECK = {"check", "control", "junit", "json"}


def must_be_alone(ctx: typer.Context) -> None:
    """Raise `ConfigurationError` if something was given that only says how to serve."""
    given = [
        "FILE" if name == "file" else parameter.opts[0]
        for parameter in ctx.command.params
        if (name := parameter.name or "") not in _WITH_CHECK
        and getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ConfigurationError(
            f"--check looks at a server that is running already, and serves nothing: leave out {', '.join(given)}"
        )


def look(address: str, control: str | None, junit: Path | None, *, as_json: bool) -> None:
    """Look at the server that listens there, rule by rule, and print what was found.

    Exits with 1 if a rule is broken. Raises as `testing.protocol.check.check`.
    """
    from reservoir_hw.cli.show import print_facts, print_json, print_tables, progress_bar, say

    with extra("zmq", "looking at a server needs pyzmq"):
        from reservoir_hw.testing.protocol import lease
        from reservoir_hw.testing.protocol.check import check
        from reservoir_hw.testing.protocol.ledger import Broken
    if junit is not None:
        # Before the device is driven: what is found must have a place.
        must_be_writable(junit, "the JUnit XML")

    def begin(device: Device, rules: int) -> None:
        try:
            told = f"; the leases of {device.lease_s:g} s take {lease.seconds_of(device):.0f} s of it"
        except Broken:
            told = ""
        say(f"Looking at {device.address}: {rules} rules{told}.")

    with progress_bar() as progress:
        report = check(address, control=control, on_start=begin, progress=progress)
    if junit is not None:
        report.write_junit(junit)
    if as_json:
        print_json(report.as_dict())
    else:
        print_tables(report.tables())
        for row in report.broken:
            typer.echo(f"\nbroken: {row.rule.group}: {row.rule.title}")
            frames = [("frame", frame) for frame in row.frames_in_hex(_SHOWN_BYTES)]
            print_facts([("what", row.detail), ("the page", row.page), *frames], indent="  ")
        typer.echo(f"\n{report.summary()}")
    if report.interrupted:
        raise KeyboardInterrupt
    if report.broken:
        raise typer.Exit(1)
