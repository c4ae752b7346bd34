"""Commands about files: `reservoir-hw init`, `check`, `schema`, `list`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from reservoir_hw.cli.options import JsonOption, ReservoirOption, SetOption, StrictOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables, say
from reservoir_hw.core.errors import ConfigurationError


def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Experiment or reservoir file (YAML or JSON).")],
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    strict: StrictOption = False,
    json: JsonOption = False,
) -> None:
    """Validate a file and estimate what a run would cost. Imports functions that it names; opens no device."""
    from reservoir_hw.core.configuration import ENVIRONMENT_PREFIX
    from reservoir_hw.core.reservoir_config import parse_reservoir
    from reservoir_hw.experiment.configuration.document import load_document
    from reservoir_hw.experiment.run.experiment import Experiment
    from reservoir_hw.experiment.run.swapped import mask_text, points_text, swapped
    from reservoir_hw.experiment.run.trainer import about_device_memory
    from reservoir_hw.experiment.sweeps.sweep import Sweep, describe
    from reservoir_hw.tasks.task import Table

    document = load_document(file, reservoir=reservoir, set=set_ or [], strict=strict)
    if "kind" in document.data:
        config = parse_reservoir(document, varies=True)
        config.check_machine()
        if json:
            print_json({"valid": True, "reservoir": config.model_dump(mode="json")})
        else:
            typer.echo(f"{file} is a valid reservoir file of kind {config.kind}")
            if about := about_device_memory(config):
                typer.echo(about)
        return
    with own_stdout(json):
        experiment = Experiment(document)
        searches = experiment.config.sweep is not None or experiment.config.reservoir.search
        sweep = Sweep(document) if searches else None
        (sweep or experiment).check_machine()
        cost = (sweep or experiment).estimate()
        remarks = experiment.about_export()
        change = None
        if reservoir is not None:
            # What is set in the new section means nothing to the file's own.
            own = [one for one in set_ or [] if not one.startswith("reservoir.")]
            # A simulation has nothing to draw again.
            own.append("run.draws=1")
            theirs = ENVIRONMENT_PREFIX + "RESERVOIR__"
            variables = {name: text for name, text in os.environ.items() if not name.startswith(theirs)}
            change = swapped(Experiment(load_document(file, set=own, environment=variables)), experiment)
    if json:
        found = {"valid": True, "points": len(experiment.points), "estimate": asdict(cost)}
        found |= {"remarks": remarks} if remarks else {}
        found |= {} if change is None else {"rows": change, "left_out": experiment.left_out}
        print_json(found)
        return
    over = f" over {points_text(experiment.config)}" if len(experiment.points) > 1 else ""
    typer.echo(f"{file} is a valid experiment{over}")
    if change is not None:
        print_tables([Table("", ["", "the file's own", f"with {reservoir}"], change)])
        for sentence in experiment.left_out:
            typer.echo(f"left out: {sentence}")
    elif about := mask_text(experiment.points[0], experiment):
        typer.echo(about)
    for remark in remarks:
        say(f"warning: {remark}")
    if sweep is not None:
        typer.echo(f"with {describe(sweep)}; each trial is")
    typer.echo(str(cost))
    if cost.on_device is not None:
        typer.echo(f"A run takes {cost.on_device}")


# ---- `reservoir-hw init`.


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


# ---- `reservoir-hw schema`.


def schema(json: JsonOption = True) -> None:
    """Print the JSON schema of experiment files, with every kind that is installed, for editors."""
    from reservoir_hw.experiment.configuration.experiment import schema as experiment_schema

    print_json(experiment_schema())


# ---- `reservoir-hw list`.


def list_kinds(
    group: Annotated[
        Literal["backends", "readouts", "tasks", "baselines", "instruments"],
        typer.Argument(help="Which kinds to list."),
    ],
    json: JsonOption = False,
) -> None:
    """List the kinds that a configuration can name, built in and from other installed packages."""
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
