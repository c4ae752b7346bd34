"""`reservoir-hw run`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import (
    AcceptChangeOption,
    ExperimentFile,
    JsonOption,
    ReservoirOption,
    SetOption,
    StrictOption,
)
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar, say


def run(
    file: ExperimentFile,
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDERS...]", help="With --merge: the folders of all points.")
    ] = None,
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    strict: StrictOption = False,
    accept_change: AcceptChangeOption = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Make one result of runs of single points (--set run.point=K).")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULER", help="Run each point on a worker of this Dask scheduler: its address, or its file."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run an experiment: drive the reservoir, train the readout, test it, write a run folder.

    Prints an estimate first, then progress, then tables. The run folder holds the resolved configuration,
    provenance, metrics, the readout, figures and a self-contained report.html.
    """
    from reservoir_hw.experiment import Experiment
    from reservoir_hw.experiment.run.processes import joined, take_up_slurm

    if bool(folders) != merge:
        raise typer.BadParameter("--merge and folders of runs belong together: run FILE --merge FOLDERS...")
    if merge and on is not None:
        raise typer.BadParameter("--merge puts together what there is, and --on runs it: give one of them")
    if merge or on is not None:
        with own_stdout(json):
            experiment = Experiment.from_file(file, reservoir=reservoir, set=set_ or [], strict=strict)
            if on is None:
                result = experiment.merge(folders or [])
            else:
                from reservoir_hw.experiment.run.on_workers import run_on

                with progress_bar() as progress:
                    result = run_on(experiment, on, progress)
        print_result(result, json=json)
        return
    take_up_slurm()
    processes = joined()
    if not processes.is_first:
        # The first says for all of them what casts doubt.
        logging.getLogger("reservoir_hw").setLevel(logging.ERROR)
    with own_stdout(json):
        with processes.in_turn():
            experiment = Experiment.from_file(file, reservoir=reservoir, set=set_ or [], strict=strict)
        if not processes.is_first:
            experiment.run(accept_change=accept_change)
            return
        say(f"{experiment.config.title or experiment.name}: {experiment.estimate()}")
        with progress_bar() as progress:
            result = experiment.run(progress, accept_change=accept_change)
    print_result(result, json=json)
