"""`reservoir-hw check`."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from reservoir_hw.cli.options import JsonOption, ReservoirOption, SetOption, StrictOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables, say


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
