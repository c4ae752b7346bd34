"""`reservoir-hw harvest`."""

from __future__ import annotations

import shlex

import typer

from reservoir_hw.cli.options import AcceptChangeOption, ExperimentFile, JsonOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_json, progress_bar, say


def harvest(
    file: ExperimentFile,
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    accept_change: AcceptChangeOption = None,
    json: JsonOption = False,
) -> None:
    """Drive the reservoir for its states alone and keep them; `run` then takes them from there.

    Whatever ends it (Ctrl-C, a device fault, a full disk, a power failure): the same command goes on.
    """
    from reservoir_hw.core.spec import ReservoirSpec
    from reservoir_hw.experiment import Experiment
    from reservoir_hw.experiment.states.harvest import about_changes
    from reservoir_hw.experiment.states.watch import about_counters, counted

    with own_stdout(json):
        experiment = Experiment.from_file(file, reservoir=reservoir, set=set_ or [])
        cost = experiment.estimate(harvest=True)
        say(f"{experiment.config.title or experiment.name}: {cost}")
        with progress_bar() as progress:
            stores = experiment.harvest(progress, accept_change=accept_change)
    found = [{"path": store.path, "segments": store.segments} for store in stores]
    if json:
        print_json({"stores": found})
        return
    for store in stores:
        seams = [segment["seam"] for segment in store.segments if segment["seam"]]
        whole = "in one piece" if len(store.segments) == 1 else f"in {len(store.segments)} pieces"
        typer.echo(f"States are in {store.path}, harvested {whole}" + (f", {len(seams)} seams" if seams else ""))
        records = [segment.get("reservoir", {}) for segment in store.segments]
        counters = about_counters(counted(records), ReservoirSpec(**store.facts["spec"]))
        for about in [*about_changes(store), *counters]:
            typer.echo(f"warning: {about}")
    options = [*(["--reservoir", str(reservoir)] if reservoir else []), *(f"--set={change}" for change in set_ or [])]
    typer.echo(f"Now: {shlex.join(['reservoir-hw', 'run', str(file), *options])}")
