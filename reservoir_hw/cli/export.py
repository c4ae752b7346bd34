"""`reservoir-hw export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables, progress_bar, say


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, as `reservoir-hw run` wrote it.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="PATH", help="The bundle, or header. (default: model.rhw, or model.h)"),
    ] = None,
    precision: Annotated[
        Literal["fp32", "int8"],
        typer.Option(help="int8: rounded weights; refused where the test suffers."),
    ] = "fp32",
    target: Annotated[
        Literal["segments", "whole", "c"],
        typer.Option(
            help="segments: graphs between the crossings of the reservoir; whole: one graph, the simulated reservoir "
            "inside; c: a C99 header of a linear readout."
        ),
    ] = "segments",
    row: Annotated[int | None, typer.Option(metavar="N", help="Which model of a grid. (default: the only one)")] = None,
    reservoir: Annotated[
        Path | None,
        typer.Option("--reservoir", metavar="FILE", help="Where the device is now, in the place of the run's."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Open no device: no comparison on recorded states, no probe response.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Write int8 even where it costs more than is harmless.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: JsonOption = False,
) -> None:
    """Export a trained model for the edge: ONNX graphs in a bundle, or a C header.

    The graphs are compared with the model, on what its device answers to the beginning of the test as well; nothing
    is written if they differ. `reservoir-hw infer` runs a bundle, where there is no torch.
    """
    from reservoir_hw.experiment.deploy.export import export_run

    with own_stdout(json), progress_bar() as progress:
        exported = export_run(
            run, out, precision=precision, target=target, row=row, reservoir=reservoir, offline=offline, force=force,
            accept_loss=accept_loss, progress=progress,
        )  # fmt: skip
    if json:
        print_json(exported.as_dict())
        return
    print_tables(exported.tables())
    typer.echo(f"{exported.label} is in {exported.path} ({exported.bytes:,} bytes)")
    for note in exported.notes:
        say(note)
    typer.echo(f"Now: {exported.command}")
