"""Two devices, driven one after the other with the same."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import make_folder
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.compare.nodes import compare_nodes
from reservoir_hw.experiment.compare.result import Comparison
from reservoir_hw.experiment.compare.sides import (
    Settings,
    Side,
    channels_of,
    check_twin,
    common_drive,
    configured,
    look_at,
    task_of,
    task_steps,
    twin_of,
)
from reservoir_hw.experiment.compare.transfer import Transfer, transfer
from reservoir_hw.experiment.devices.measure import measures_named
from reservoir_hw.experiment.run.learning import States, evaluations
from reservoir_hw.experiment.run.report import complete, kept_to_the_end
from reservoir_hw.experiment.states.progress import Progress, StepCounter
from reservoir_hw.tasks.task import Evaluation, Task

COMPARED = (
    "memory_capacity",
    "effective_dimension",
    "consistency",
    "signal_to_noise",
    "drift",
    "echo_state_index",
)
"""The measures that a comparison takes unless it is told which: those that need few drives."""


def compare(
    a: str | Path,
    b: str | Path | None = None,
    *,
    task: str | Path | None = None,
    steps: int = 2000,
    washout: int = 200,
    repeats: int = 10,
    seed: int = 0,
    input_range: tuple[float, float] | None = None,
    inputs: int | None = None,
    only: Iterable[str] | None = None,
    tolerance: float | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Drive two devices with the same inputs, one after the other, and say in what they differ.

    Parameters
    ----------
    a, b
        Reservoir files. They may name the same device: only one is open at a time. By default `b` is the file that
        `hil.twin` of `a` names.
    task
        An experiment file: its task, readout and training, with `a` or `b` as its reservoir.
    steps, washout, repeats
        Each device is driven `repeats` times from rest, with `washout` steps that do not count and `steps` that do.
        The long drive of the measures is five times as long. A recording (`kind: replay`) gives what it has.
    seed, input_range
        Of the random inputs; by default they are uniform over the range that both devices declare.
    inputs
        Input channels, where neither files nor task say.
    only
        Names of measures; by default `COMPARED`.
    tolerance
        Is noted in the result, for `within_tolerance`.
    folder
        Where traces, metrics and a report are kept; by default they are not.

    After a device fault or Ctrl-C, what was finished is in the folder, and the error goes on to the caller. Raises
    `ConfigurationError` for files that do not fit, before anything is driven.
    """
    settings = Settings(steps, washout, repeats, seed, input_range, measures_named(only or COMPARED))
    twin_from = None
    if b is None:
        b, twin_from = twin_of(a)
    configs, points = zip(*(configured(path, task) for path in (a, b)), strict=True)
    the_task = None if task is None else task_of(points, task)
    channels = channels_of(configs, inputs, the_task)
    counter = StepCounter(progress)
    sides: list[Side] = []
    for letter, path, config, point in zip("AB", (a, b), configs, points, strict=True):
        counter.say(f"{letter}: opening")
        says_itself = the_task is None and config.inputs is not None and not isinstance(config.input_mask, MaskConfig)
        fitting = config if says_itself else config.for_inputs(channels)
        sides.append(look_at(letter, str(path), fitting, point, settings))
    if twin_from is not None:
        check_twin(sides[0], sides[1], twin_from)
    drive = common_drive(sides, settings)
    alike = sides[0].spec.nodes == sides[1].spec.nodes
    if tolerance is not None and not alike:
        raise ConfigurationError(
            f"--tolerance is about nodes, but {a} has {sides[0].spec.nodes} and {b} {sides[1].spec.nodes}: they cannot "
            "be compared one by one"
        )
    for side in sides:
        counter.total += side.planned + side.repeats * drive.shape[1]
        counter.total += 0 if the_task is None else task_steps(side, the_task)
    configurations = {side.letter.lower(): side.config.model_dump(mode="json") for side in sides}
    if task is not None:
        configurations["task"] = points[0].config.model_dump(mode="json", serialize_as_any=True)
    with _place(folder) as place:
        result = Comparison(
            title=f"A: {a}, B: {b}",
            folder=place,
            kept=folder is not None,
            tolerance=tolerance,
            washout=washout,
            provenance={
                **provenance.collect(configurations),
                "compare": {**vars(settings), "task": task and str(task), "tolerance": tolerance},
                "rows": _records(sides),
            },
            sides=sides,
        )
        with kept_to_the_end(result, lambda: False):
            why_no_task = "no task was given (--task FILE)" if the_task is None else None
            for side in sides:
                why = side.drive(drive, None if why_no_task else the_task, settings, place / "traces", counter)
                why_no_task = why_no_task or why
                result.provenance["rows"] = _records(sides)
                result.save()
            if alike:
                counter.say("comparing nodes")
                result.nodes = compare_nodes(
                    *(StateStore.open(place / "traces" / name) for name in "ab"), washout=washout
                )
            else:
                result.reasons["nodes"] = (
                    f"nodes cannot be compared one by one: A has {sides[0].spec.nodes}, B has {sides[1].spec.nodes}"
                )
            if the_task is None or why_no_task:
                result.reasons["task"] = why_no_task or ""
            else:
                result.task = _transfer(sides, the_task, counter)
            result.status = "complete"
            result.save()
            if folder is not None:
                counter.say("writing the report")
                complete(result)
    return result


def _transfer(sides: list[Side], task: Task, counter: StepCounter) -> Transfer:
    point = sides[0].point
    assert point is not None

    def said(runs: list[tuple[Side, int]], what: str) -> Iterator[States]:
        for number, (side, run) in enumerate(runs, 1):
            counter.say(f"{what}, run {number} of {len(runs)}")
            yield side.states(run)

    def judged(runs: list[tuple[Side, int]]) -> list[list[Evaluation]]:
        return evaluations(point, task, said(runs, "training readouts"), said(runs, "judging readouts"))

    a, b = ([(side, run) for run in range(len(side.runs))] for side in sides)
    repeats = len(a), len(b)
    if sides[0].spec.nodes == sides[1].spec.nodes:
        return transfer(judged(a + b), repeats)
    # A readout of one cannot read the other.
    return transfer(
        [[*row, *[None] * len(b)] for row in judged(a)] + [[*[None] * len(a), *row] for row in judged(b)], repeats
    )


def _records(sides: list[Side]) -> list[dict]:
    return [{"label": f"{side.letter}: {side.name}", "reservoir": side.record} for side in sides]


@contextlib.contextmanager
def _place(folder: str | Path | None) -> Iterator[Path]:
    """A folder for the recordings: the one that is given, or one that is gone afterwards."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="reservoir-hw-compare-") as name:
            yield Path(name)
        return
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigurationError(f"{folder} is there already; name a new folder with -o")
    make_folder(place)
    yield place
