"""`reservoir-hw sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from reservoir_hw.cli.options import ExperimentFile, JsonOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar, say


def sweep(
    file: ExperimentFile,
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Trials in all, those that are there included.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the study and its folder. (default: from the file's name)")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database, for instance postgresql://bench/sweeps. (default: a SQLite file in the folder)",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search good settings: trials with other values of the keys in the section `sweep`, chosen by Optuna.

    Whatever ends it (Ctrl-C, a device fault, kill -9): the same command goes on, in any number of processes at once.
    Writes best.yaml, a complete experiment file, figures and a self-contained report.html.
    """
    from reservoir_hw.experiment.sweeps.sweep import sweep as search

    with own_stdout(json), progress_bar() as progress:
        result = search(
            file, reservoir=reservoir, set=set_ or [], trials=trials, name=name, storage=storage, on_plan=say,
            progress=progress,
        )  # fmt: skip
    now = "" if result.best is None else f"reservoir-hw run {result.best_file}"
    print_result(result, json=json, now=now)
