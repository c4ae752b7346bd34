"""`reservoir-hw run`."""

from __future__ import annotations

import contextlib
from typing import Any

import typer

from reservoir_hw.cli.options import ExperimentFile, JsonOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables


def run(
    file: ExperimentFile,
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Run an experiment: drive the reservoir, train the readout, judge it, write a run folder.

    Prints an estimate first, then progress, then tables. The run folder holds the resolved configuration,
    provenance, metrics, the readout, figures and a self-contained report.html.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from reservoir_hw.experiment import Experiment

    console = Console(stderr=True, highlight=False)
    columns: list[Any] = [BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn()]
    columns += [TimeRemainingColumn(), TextColumn("{task.description}", markup=False)]
    with own_stdout() if json else contextlib.nullcontext():
        experiment = Experiment.from_file(file, reservoir=reservoir, set=set_ or [])
        console.print(f"{experiment.config.title or experiment.name}: {experiment.estimate()}", markup=False)
        with Progress(*columns, console=console, transient=True) as bar:
            work = bar.add_task("", total=None)
            result = experiment.run(
                lambda what, done, total: bar.update(work, description=what, completed=done, total=total)
            )
    if json:
        print_json(result.metrics)
    else:
        print_tables(result.tables())
        typer.echo(f"Results are in {result.folder}")
    for note in result.notes:
        typer.echo(note, err=True)
