"""`reservoir-hw check`."""

from __future__ import annotations

from typing import Annotated

import typer

from reservoir_hw.cli.options import JsonOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_json
from reservoir_hw.core.errors import ConfigurationError


def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Experiment or reservoir file (YAML or JSON).")],
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print only what a run would cost, with processor time and memory.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Validate a file and estimate what a run would cost. Imports functions that it names; opens no device."""
    from reservoir_hw.core.reservoir_config import parse_reservoir
    from reservoir_hw.experiment.configuration.document import load_document
    from reservoir_hw.experiment.run.device_memory import about_device_memory
    from reservoir_hw.experiment.run.experiment import Experiment
    from reservoir_hw.experiment.sweeps.sweep import Sweep, describe

    document = load_document(file, reservoir=reservoir, set=set_ or [])
    if "kind" in document.data:
        if estimate:
            raise ConfigurationError(f"{file} is a reservoir file; an estimate needs an experiment file with its task")
        config = parse_reservoir(document)
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
        sweep = None if experiment.config.sweep is None else Sweep(document)
        (sweep or experiment).check_machine()
        cost = (sweep or experiment).estimate()
        if estimate:
            # Of a sweep, each trial.
            cost = experiment.measured_estimate()
    if json:
        print_json({"valid": True, "points": len(experiment.points), "estimate": cost.as_dict()})
        return
    if not estimate:
        vary = experiment.config.vary
        if isinstance(vary, list):
            over = f"{len(vary)} rows"
        else:
            over = " × ".join(f"{len(values)} {key}" for key, values in vary.items())
        typer.echo(f"{file} is a valid experiment" + (f" over {over}" if over else ""))
        if sweep is not None:
            typer.echo(f"with {describe(sweep.config)}; each trial is")
    typer.echo(str(cost))
    if cost.on_device is not None:
        typer.echo(f"A run takes {cost.on_device}")
    if estimate and cost.processor_s is None:
        typer.echo(
            "Processor time and memory are measured on simulations alone, and a point drives a device.", err=True
        )
