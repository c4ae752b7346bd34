"""`reservoir-hw conform`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import InputsOption, JsonOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_json, print_tables, progress_bar, say
from reservoir_hw.core.errors import extra
from reservoir_hw.core.files import make_folder


def conform(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Reservoir or experiment file (YAML or JSON).")],
    inputs: InputsOption = None,
    set_: SetOption = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Look at this group alone, after repeatability. May be repeated."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="STEPS|TIME", help="Device steps, or their time (10m). (default: 20000)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    baseline: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="An earlier report.json: fail on what became worse.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Write report.json and report.html.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Test whether a device does what it declares: the same suite for simulations, recordings, servers and benches.

    Exits with 0 if everything that could be looked at passed, 1 if something failed or is inconclusive, 2 for a wrong
    configuration, 3 if the device could not be driven at all.
    """
    with extra("test", "the conformance suite needs pytest"):
        from reservoir_hw.testing.conformance import Interrupted
        from reservoir_hw.testing.conformance import conform as run_suite
        from reservoir_hw.testing.report import read_baseline
    from reservoir_hw.experiment.devices.info import config_from_file

    before = None if baseline is None else read_baseline(baseline)
    if out is not None:
        # Before the device is driven: what is found must have a place.
        make_folder(out)
    with own_stdout(json), progress_bar() as progress:
        config = config_from_file(file, set=set_ or [], inputs=inputs)
        try:
            report = run_suite(
                config, groups=group or [], budget=budget, seed=seed, junit=junit, on_plan=say, progress=progress
            )
        except Interrupted as stop:
            report = stop.report
    if before is not None:
        report.compare_with(before)
    if json:
        print_json(report.as_dict())
    else:
        print_tables(report.tables())
    for line in report.notes:
        say(line)
    for line in report.worse:
        say(f"worse than the baseline: {line}")
    if out is not None:
        report.write(out)
        say(f"The report is {out / report.main_file}")
    if report.interrupted:
        raise KeyboardInterrupt
    if not report.passed:
        raise typer.Exit(1)
