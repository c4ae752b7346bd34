"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ExperimentFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment file (YAML or JSON).")]
ReservoirOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--reservoir", metavar="FILE", help="Reservoir file that replaces the section `reservoir`."),
]
StrictOption: TypeAlias = Annotated[
    bool,
    typer.Option("--strict", help="With --reservoir: an error where the experiment cannot be kept whole."),
]
SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one value, for instance reservoir.nodes=300. May be repeated."
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
AcceptChangeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--accept-change", metavar="REASON", help="Go on though the device reports other settings than before."
    ),
]
InputRangeOption: TypeAlias = Annotated[
    tuple[float, float] | None,
    typer.Option("--input-range", metavar="LOW HIGH", help="Inputs to drive with. (default: the device's range)"),
]
InputsOption: TypeAlias = Annotated[
    int | None, typer.Option("--inputs", min=1, metavar="N", help="Input channels, where neither file nor task says.")
]
