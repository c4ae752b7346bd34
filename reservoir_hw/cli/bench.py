"""`reservoir-hw bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import JsonOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar, say


def bench(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Reservoir file, or an experiment file with one.")],
    set_: SetOption = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this task alone, e.g. narma10. May be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short data and one repetition.")] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS|TIME",
            help="Of the device, for the whole bench: fewer repetitions, then short data. (default: no limit)",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the folder of the bench is made.")] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Run the standard tasks on one reservoir, beside baselines that are tuned as it is.

    Writes one page, report.html, that can be printed. Whatever ends it (Ctrl-C, a device fault, kill -9), the same
    command goes on: what is complete is not run again.
    """
    from reservoir_hw.experiment.bench.bench import bench as run_bench

    with own_stdout(json), progress_bar() as progress:
        result = run_bench(
            file,
            set=set_ or [],
            only=only,
            quick=quick,
            budget=budget,
            folder=folder,
            on_plan=say,
            progress=progress,
        )
    print_result(result, json=json)
