"""`reservoir-hw evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder with a trained readout.")],
    reservoir: Annotated[
        Path | None,
        typer.Option("--reservoir", metavar="FILE", help="Device to judge it on. (default: that of the run)"),
    ] = None,
    refit: Annotated[bool, typer.Option("--refit", help="Train a new readout there, too.")] = False,
    row: Annotated[int | None, typer.Option("--row", metavar="N", help="Which row of the run.")] = None,
    json: JsonOption = False,
) -> None:
    """Judge a trained readout on another device: same task, same test inputs.

    Prints the metrics here, where it was trained, there, and refitted there; and the differences with intervals.
    Writes a folder with the outputs and a figure of outputs over targets.
    """
    from reservoir_hw.experiment.deploy.evaluate import evaluate as judge

    with own_stdout(json), progress_bar() as progress:
        result = judge(run, reservoir=reservoir, row=row, refit=refit, progress=progress)
    print_result(result, json=json)
