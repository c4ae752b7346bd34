"""`reservoir-hw init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import print_json
from reservoir_hw.core.errors import ConfigurationError


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.yaml"),
    data: Annotated[
        str | None, typer.Option(metavar="FILE", help="Your own data: a file, or a glob in quotes, a series each.")
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column or array to learn; several times for several. (default: the last)"),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="A table with the class of each file of the data.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a commented experiment file that runs as it is: on a benchmark, or on your own data.

    The columns of a file are looked at, and each guess stands in a comment. In a terminal it asks for a file where
    --data names none.
    """
    if path.exists():
        raise ConfigurationError(f"{path} exists already; name another file, or delete it first")
    if data is None and (targets or labels):
        raise ConfigurationError("--targets and --labels say what is in the file of --data: name it")
    if data is None and not json and sys.stdin.isatty():
        data = typer.prompt("A file of your own data (empty: a benchmark)", default="", show_default=False) or None
        if data is not None:
            said = typer.prompt("What is to be learned (empty: the last column)", default="", show_default=False)
            targets = [name.strip() for name in said.split(",") if name.strip()]
    if data is None:
        from importlib.resources import files

        template = files("reservoir_hw.experiment.run").joinpath("template.yaml").read_text(encoding="utf-8")
        text = template.replace("{path}", str(path))
    else:
        from reservoir_hw.tasks.data.first_file import first_file

        text = first_file(path, data, targets or (), labels)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from None
    if json:
        print_json({"written": str(path)})
    else:
        typer.echo(f"Wrote {path}. Now: reservoir-hw run {path}")
