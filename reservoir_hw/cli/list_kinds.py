"""`reservoir-hw list`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import print_json, print_tables


def list_kinds(
    group: Annotated[
        Literal["backends", "readouts", "tasks", "baselines", "instruments"],
        typer.Argument(help="Which kinds to list."),
    ],
    json: JsonOption = False,
) -> None:
    """List the kinds that a configuration can name, built in and from other installed packages."""
    from reservoir_hw.core.errors import ConfigurationError
    from reservoir_hw.core.registry import available
    from reservoir_hw.tasks.task import Table

    rows = []
    for kind, plugin in sorted(available(group).items()):
        try:
            about = (plugin.load().__doc__ or "").strip().partition("\n")[0]
        except ConfigurationError as error:
            about = f"broken: {error}"
        rows.append([kind, plugin.origin, about])
    if json:
        print_json([dict(zip(("kind", "package", "about"), row, strict=True)) for row in rows])
    else:
        print_tables([Table(group, ["kind", "package", "about"], rows, "" if rows else "none installed")])
