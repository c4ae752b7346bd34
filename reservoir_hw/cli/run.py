"""Commands that drive experiments: `reservoir-hw run`, `harvest`, `sweep`, `evaluate`, `blimp`."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import (
    AcceptChangeOption,
    ExperimentFile,
    JsonOption,
    ReservoirOption,
    SetOption,
    StrictOption,
)
from reservoir_hw.cli.show import own_stdout, print_json, print_result, progress_bar, say


def run(
    file: ExperimentFile,
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDERS...]", help="With --merge: the folders of all points.")
    ] = None,
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    strict: StrictOption = False,
    accept_change: AcceptChangeOption = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Make one result of runs of single points (--set run.point=K).")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULER", help="Run each point on a worker of this Dask scheduler: its address, or its file."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run an experiment: drive the reservoir, train the readout, test it, write a run folder.

    Prints an estimate first, then progress, then tables. The run folder holds the resolved configuration,
    provenance, metrics, the readout, figures and a self-contained report.html.
    """
    from reservoir_hw.experiment import Experiment
    from reservoir_hw.experiment.run.processes import joined, take_up_slurm

    if bool(folders) != merge:
        raise typer.BadParameter("--merge and folders of runs belong together: run FILE --merge FOLDERS...")
    if merge and on is not None:
        raise typer.BadParameter("--merge puts together what there is, and --on runs it: give one of them")
    if merge or on is not None:
        with own_stdout(json):
            experiment = Experiment.from_file(file, reservoir=reservoir, set=set_ or [], strict=strict)
            if on is None:
                result = experiment.merge(folders or [])
            else:
                from reservoir_hw.experiment.run.on_workers import run_on

                with progress_bar() as progress:
                    result = run_on(experiment, on, progress)
        print_result(result, json=json)
        return
    take_up_slurm()
    processes = joined()
    if not processes.is_first:
        # The first says for all of them what casts doubt.
        logging.getLogger("reservoir_hw").setLevel(logging.ERROR)
    with own_stdout(json):
        with processes.in_turn():
            experiment = Experiment.from_file(file, reservoir=reservoir, set=set_ or [], strict=strict)
        if not processes.is_first:
            experiment.run(accept_change=accept_change)
            return
        say(f"{experiment.config.title or experiment.name}: {experiment.estimate()}")
        with progress_bar() as progress:
            result = experiment.run(progress, accept_change=accept_change)
    print_result(result, json=json)


# ---- `reservoir-hw harvest`.


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
        say(f"{experiment.config.title or experiment.name}: {experiment.estimate(harvest=True)}")
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


# ---- `reservoir-hw sweep`.


def sweep(
    file: ExperimentFile,
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Trials in all, those that are there included.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the study and its folder. (default: from the file's name)")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database, for instance postgresql://bench/sweeps. (default: a SQLite file in the folder)",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search good settings: trials with other values of the keys in the section `sweep`, chosen by Optuna.

    Whatever ends it (Ctrl-C, a device fault, kill -9): the same command goes on, in any number of processes at once.
    Writes best.yaml, a complete experiment file, figures and a self-contained report.html.
    """
    from reservoir_hw.experiment.sweeps.sweep import sweep as search

    with own_stdout(json), progress_bar() as progress:
        result = search(
            file, reservoir=reservoir, set=set_ or [], trials=trials, name=name, storage=storage, on_plan=say,
            progress=progress,
        )  # fmt: skip
    print_result(result, json=json, now="" if result.best is None else f"reservoir-hw run {result.best_file}")


# ---- `reservoir-hw evaluate`.


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder with a trained readout.")],
    reservoir: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Device to judge it on. (default: that of the run)")
    ] = None,
    refit: Annotated[bool, typer.Option("--refit", help="Train a new readout there, too.")] = False,
    row: Annotated[int | None, typer.Option(metavar="N", help="Which row of the run.")] = None,
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


# ---- `reservoir-hw blimp`.


def blimp(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder with a trained language model.")],
    row: Annotated[int | None, typer.Option(metavar="N", help="Which row of the run.")] = None,
    baseline: Annotated[
        int | None, typer.Option(metavar="N", help="Which trained baseline of the run, from 0.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with BLiMP.zip. (default: blimp in RESERVOIR_HW_DATA)")
    ] = None,
    most: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Pairs of each paradigm. (default: all 1000)")
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
