"""`reservoir-hw run`."""

from __future__ import annotations

import logging

import typer

from reservoir_hw.cli.options import AcceptChangeOption, ExperimentFile, JsonOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar


def run(
    file: ExperimentFile,
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    accept_change: AcceptChangeOption = None,
    json: JsonOption = False,
) -> None:
    """Run an experiment: drive the reservoir, train the readout, test it, write a run folder.

    Prints an estimate first, then progress, then tables. The run folder holds the resolved configuration,
    provenance, metrics, the readout, figures and a self-contained report.html.
    """
    from reservoir_hw.experiment import Experiment
    from reservoir_hw.experiment.run.processes import joined, take_up_slurm

    take_up_slurm()
    processes = joined()
    if not processes.is_first:
        # The first says for all of them what casts doubt.
        logging.getLogger("reservoir_hw").setLevel(logging.ERROR)
    with own_stdout(json):
        with processes.in_turn():
            experiment = Experiment.from_file(file, reservoir=reservoir, set=set_ or [])
        if not processes.is_first:
            experiment.run(accept_change=accept_change)
            return
        typer.echo(f"{experiment.config.title or experiment.name}: {experiment.estimate()}", err=True)
        with progress_bar() as progress:
            result = experiment.run(progress, accept_change=accept_change)
    print_result(result, json=json)
