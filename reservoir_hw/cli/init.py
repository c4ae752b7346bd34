"""`reservoir-hw init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import print_json
from reservoir_hw.core.errors import ConfigurationError


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.yaml"),
    json: JsonOption = False,
) -> None:
    """Write a commented experiment file that runs as it is."""
    from importlib.resources import files

    template = files("reservoir_hw.experiment.run").joinpath("template.yaml").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template.replace("{path}", str(path)))
    except FileExistsError:
        raise ConfigurationError(f"{path} exists already; name another file, or delete it first") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from None
    if json:
        print_json({"written": str(path)})
    else:
        typer.echo(f"Wrote {path}. Now: reservoir-hw run {path}")
