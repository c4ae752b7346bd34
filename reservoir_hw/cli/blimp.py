"""`reservoir-hw blimp`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar


def blimp(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder with a trained language model.")],
    row: Annotated[int | None, typer.Option("--row", metavar="N", help="Which row of the run.")] = None,
    baseline: Annotated[
        int | None, typer.Option("--baseline", metavar="N", help="Which trained baseline of the run, from 0.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Folder with BLiMP.zip. (default: blimp in RESERVOIR_HW_DATA)"),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--most", metavar="N", min=1, help="Pairs of each paradigm. (default: all 1000)")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Judge a language model on BLiMP: how often it finds the acceptable one of two sentences more probable.

    Prints accuracies by field and phenomenon beside those of the untrained model, of unigrams and bigrams, of the
    shorter sentence, and of published models, with intervals. Writes a folder with a figure and a report.
    """
    from reservoir_hw.experiment.deploy.blimp import blimp as judge

    with own_stdout(json), progress_bar() as progress:
        result = judge(run, row=row, baseline=baseline, data=data, most=most, progress=progress)
    print_result(result, json=json)
