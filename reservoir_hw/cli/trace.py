"""`reservoir-hw trace`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reservoir_hw.cli.options import JsonOption
from reservoir_hw.cli.show import print_facts, print_json, print_tables, progress_bar, say
from reservoir_hw.core.errors import ConfigurationError

if TYPE_CHECKING:
    from reservoir_hw.core.store import StateStore

app = typer.Typer(
    help="States of a device on disk: what is in them, import, comparison, a picture.", no_args_is_help=True
)

TracePath: TypeAlias = Annotated[str, typer.Argument(metavar="TRACE", help="A recorded, harvested or imported trace.")]


@app.command("info")
def info(trace: TracePath, json: JsonOption = False) -> None:
    """Say what is in a trace: device, data sets, how far it is, where it comes from."""
    from reservoir_hw.core.store import StateStore

    _print_trace(StateStore.open(trace), json=json)


@app.command("import")
def import_(
    mapping: Annotated[Path, typer.Argument(metavar="MAPPING", help="Mapping file (YAML or JSON): docs/traces.md.")],
    out: Annotated[str, typer.Option("-o", "--out", metavar="TRACE", help="The trace that is made.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="In the place of the mapping's file; each becomes a data set."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Convert measured data (npy, npz, HDF5, csv, txt; packed or not) into a trace."""
    from reservoir_hw.experiment.states.traces.importing import import_trace

    with progress_bar() as progress:
        store = import_trace(mapping, out, files or [], progress)
    _print_trace(store, json=json)


def _print_trace(store: StateStore, *, json: bool) -> None:
    from reservoir_hw.experiment.states.traces.information import describe, facts, table

    about = describe(store)
    if json:
        print_json(about)
        return
    print_facts(facts(about))
    print_tables([table(about)])


@app.command("export")
def export(
    trace: TracePath,
    to: Annotated[Path, typer.Option(metavar="FILE", help="states.nc (NetCDF) or states.csv.")],
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="This data set alone.")] = None,
    json: JsonOption = False,
) -> None:
    """Write inputs and states into one file for other programs, such as xarray and pandas."""
    from reservoir_hw.core.store import StateStore
    from reservoir_hw.experiment.states.traces.exporting import export_trace

    with progress_bar() as progress:
        path = export_trace(StateStore.open(trace), to, dataset=dataset, progress=progress)
    size = path.stat().st_size
    if json:
        print_json({"file": str(path), "bytes": size})
    else:
        typer.echo(f"{path} has {size:,} bytes")


@app.command("diff")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The reference.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The trace that is compared with it.")],
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Exit with 1 if the NRMSE of any node is above; in standard deviations of the node."),
    ] = None,
    washout: Annotated[int, typer.Option(min=0, help="Leading steps of every sequence that are left out.")] = 0,
    input_tolerance: Annotated[
        float, typer.Option(min=0, help="By how much inputs may differ and still count as the same.")
    ] = 0.0,
    json: JsonOption = False,
) -> None:
    """Compare two traces wherever both devices were driven with the same inputs."""
    import numpy as np

    from reservoir_hw.core.store import StateStore
    from reservoir_hw.experiment.states.traces.difference import compare

    with progress_bar() as progress:
        found = compare(
            StateStore.open(a),
            StateStore.open(b),
            tolerance=tolerance or 0.0,
            washout=washout,
            input_tolerance=input_tolerance,
            progress=progress,
        )
    if json:
        print_json(found.as_dict())
    else:
        print_facts(found.facts())
        if not found.identical:
            print_tables([found.table()])
    if tolerance is not None and not found.within_tolerance:
        above = int((found.nrmse[np.isfinite(found.largest)] > tolerance).sum())
        more = f"; not finite: {found.names_not_finite()}" if found.not_finite else ""
        say(f"{above} of {len(found.nodes)} nodes are above the tolerance of {tolerance:g}{more}")
        raise typer.Exit(1)


@app.command("plot")
def plot(
    trace: TracePath,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The picture: .png, .pdf or .svg.")],
    data_set: Annotated[str | None, typer.Option(help="By default the first.")] = None,
    sequence: Annotated[int, typer.Option(min=0, help="Row of the data set.")] = 0,
    start: Annotated[int, typer.Option(min=0, help="First step that is shown.")] = 0,
    steps: Annotated[int, typer.Option(min=2, help="How many are shown.")] = 300,
) -> None:
    """Draw inputs, node traces and an image of all states, and what the nodes have of past inputs."""
    from reservoir_hw.core.store import StateStore
    from reservoir_hw.experiment.states.traces import information as figure

    picture = figure.plot(StateStore.open(trace), dataset=data_set, sequence=sequence, start=start, steps=steps)
    try:
        picture.savefig(out, dpi=150)
    except ValueError as error:
        raise ConfigurationError(f"{out}: {error}") from error
    typer.echo(f"{out} is written")
