"""`reservoir-hw measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import InputRangeOption, JsonOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar


def measure(
    source: Annotated[
        str, typer.Argument(metavar="FILE|TRACE", help="Experiment or reservoir file, or the folder of a trace.")
    ],
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Take this measure alone, e.g. consistency. May be repeated."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the long drive of a device.")] = 20_000,
    washout: Annotated[
        int | None, typer.Option(min=0, help="First steps that do not count. (default: 200; less for a short trace)")
    ] = None,
    max_delay: Annotated[
        int | None, typer.Option("--max-delay", min=0, help="Longest delay. (default: twice the number of nodes)")
    ] = None,
    repeats: Annotated[int, typer.Option(min=2, help="How often a device is driven with the same inputs.")] = 10,
    input_range: InputRangeOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS|TIME", help="Of a device: take fewer repeats, e.g. 20000 or 20m. (default: no limit)"
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the folder with the results is made.")] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Say what a reservoir is worth: memory, processing capacity, consistency, Lyapunov exponent and more.

    A device is driven with random inputs; of a trace, what it holds is measured. Prints a table with intervals and the
    reason for whatever could not be measured, and writes a folder with figures and a self-contained report.html.
    """
    from reservoir_hw.experiment.devices.measure import measure as take_measures

    with own_stdout(json), progress_bar() as progress:
        result = take_measures(
            source,
            reservoir=reservoir,
            set=set_ or [],
            only=only,
            steps=steps,
            washout=washout,
            repeats=repeats,
            max_delay=max_delay,
            input_range=input_range,
            seed=seed,
            folder=folder,
            budget=budget,
            on_plan=lambda plan: typer.echo(plan, err=True),
            progress=progress,
        )
    print_result(result, json=json)
