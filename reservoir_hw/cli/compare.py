"""`reservoir-hw compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import InputRangeOption, InputsOption, JsonOption, OnlyOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables, progress_bar, say


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Reservoir file of the first device (YAML or JSON).")],
    b: Annotated[
        Path | None,
        typer.Argument(metavar="B", help="Reservoir file of the second device. (default: `hil.twin` of the first)"),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Experiment file with a task and a readout: trained and judged on both."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=40, help="Steps of each repeat. The long drive of the measures has five times as many.")
    ] = 2000,
    washout: Annotated[int, typer.Option(min=4, help="First steps of each drive that do not count.")] = 200,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often each device is driven with the same inputs. Verdicts need 8.")
    ] = 10,
    only: OnlyOption = None,
    input_range: InputRangeOption = None,
    inputs: InputsOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Exit with 1 if the raw NRMSE of any node is above this.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Keep traces, numbers and report.html there.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare two devices: their nodes and measures and, with --task, readouts carried from one to the other.

    Both are driven with the same inputs, several times, one device after the other. Each difference is shown beside the
    device's own repeat error.
    """
    from reservoir_hw.experiment.compare import compare as compare_devices

    with own_stdout(json), progress_bar() as progress:
        result = compare_devices(
            a,
            b,
            task=task,
            steps=steps,
            washout=washout,
            repeats=repeats,
            seed=seed,
            input_range=input_range,
            inputs=inputs,
            only=only,
            tolerance=tolerance,
            folder=out,
            progress=progress,
        )
    if json:
        print_json(result.metrics)
    else:
        print_tables(result.tables())
        if out is not None:
            typer.echo(f"Traces and report are in {out}")
    for note in result.notes:
        say(note)
    if not result.within_tolerance:
        say(result.beyond_tolerance())
        raise typer.Exit(1)
