"""An experiment: from a file to a result."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from reservoir_hw.core import provenance
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, ReservoirError
from reservoir_hw.core.reservoir_config import reservoir_section
from reservoir_hw.core.store import StateStore
from reservoir_hw.core.threads import blas_threads
from reservoir_hw.experiment.configuration.document import baseline_labels, differences, load_document
from reservoir_hw.experiment.configuration.experiment import (
    ExperimentConfig,
    Point,
    grid,
    named,
    parse_experiment,
    reservoir_baselines,
    trained_baselines,
)
from reservoir_hw.experiment.run.by_gradients import VALIDATION, ByGradients, OnLabels
from reservoir_hw.experiment.run.estimate import Estimate, estimate
from reservoir_hw.experiment.run.in_one_pass import InOnePass, check_recording, harvest_point
from reservoir_hw.experiment.run.merge import copy_files, keep_arrays, parts_of, records_of
from reservoir_hw.experiment.run.open_device import OpenDevice, left_open
from reservoir_hw.experiment.run.processes import Processes, joined
from reservoir_hw.experiment.run.report import complete, kept_to_the_end, write_report
from reservoir_hw.experiment.run.result import (
    Result,
    Source,
    begun_run_folder,
    new_run_folder,
    rows_in,
    write_yaml,
)
from reservoir_hw.experiment.run.trainer import Cost, PointRun, RowFiles, Trainer
from reservoir_hw.experiment.states.harvest import store_path
from reservoir_hw.experiment.states.pace import driven_by
from reservoir_hw.experiment.states.progress import Progress, StepCounter, shown_progress
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.configuration import GradientReadoutConfig, StateReadoutConfig
from reservoir_hw.tasks.report import by_label, metric_values
from reservoir_hw.tasks.task import Row, Task

_TRAINERS: dict[str, Trainer] = {
    "in one pass": InOnePass(),
    "by gradients": ByGradients(),
    "on labels": OnLabels(),
}


class Experiment:
    """A validated experiment: every point of its grid was checked when it was made.

    Use `Experiment.from_file(path).run()`, or give a mapping with the same keys as a file. Task, reservoir and readout
    in it may also be objects of configuration classes, those of your program too (`{"task": MyTask(steps=500), ...}`),
    and what names a function or a class may be that itself. Experiments that are given the same `tasks` share the data
    of equal tasks; those that are given the same `device` leave it open from one to the
    next while only its knobs differ, and whoever gives it closes it.
    """

    def __init__(
        self,
        document: Document | Mapping[str, Any],
        name: str = "experiment",
        tasks: dict[str, Task] | None = None,
        device: OpenDevice | None = None,
    ) -> None:
        if not isinstance(document, Document):
            reservoir = document.get("reservoir")
            document = Document.from_mapping(named(document), "the given mapping")
            if isinstance(reservoir, str | Path):
                document.replace("reservoir", reservoir_section(Document.from_file(reservoir)))
        self._document = document
        self.config: ExperimentConfig = parse_experiment(document)
        self.points: list[Point] = grid(document)
        if document.replaced_by and not any(point.config.readout.layers_of_reservoirs for point in self.points):
            raise ConfigurationError(
                f"{document.origin(('readout',))}: the experiment has no reservoir of its own to replace: readout "
                f"{self.config.readout.kind} drives none"
            )
        self.name = self.config.run.name or name
        self._tasks: dict[str, Task] = {} if tasks is None else tasks
        self._device = device
        self.left_out = list(document.left_out)
        """What belonged to the reservoir that was replaced, a sentence for each."""
        self.result: Result | None = None
        """That of the last run: after Ctrl-C or a fault, what was finished."""

    def __repr__(self) -> str:
        config = self.config
        points = f"{len(self.points)} points" if len(self.points) > 1 else config.readout.kind
        return f"<Experiment {self.name!r}: {config.task.kind} on {config.reservoir.name}, {points}>"

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        reservoir: str | Path | None = None,
        set: Mapping[str, Any] | Iterable[str] | None = None,
        environment: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> Self:
        """Read a file; lay the reservoir file, the environment and then `set` over it.

        `set` is {dotted key: value}, or "key=value" texts as on the command line. With `strict` it is an error where
        the reservoir file leaves something of the experiment out (`experiment.left_out`).
        """
        document = load_document(path, reservoir=reservoir, set=set, environment=environment, strict=strict)
        path = Path(path)
        return cls(document, name=f"{path.resolve().parent.name}-{path.stem}")

    def resolved(self) -> dict[str, Any]:
        """The whole configuration, defaults included."""
        return self.config.model_dump(mode="json", serialize_as_any=True)

    def check_machine(self) -> None:
        """Raise `ConfigurationError` where this machine lacks what a point names, such as a function."""
        for point in self.points:
            point.config.reservoir.check_machine()

    def about_export(self) -> list[str]:
        """What stands against an export of the readouts that a run will train, a sentence each, as far as known."""
        found: dict[str, None] = {}
        for point, task in self._checked_points():
            readout = point.config.readout
            if isinstance(readout, StateReadoutConfig):
                nodes = getattr(point.config.reservoir.for_inputs(readout.channels(task)), "nodes", None)
                found |= dict.fromkeys([] if nodes is None else readout.about_export(nodes, task))
        return list(found)

    def estimate(self, *, harvest: bool = False) -> Estimate:
        """What a run, or a harvest, will cost. Makes the task's data; opens no device."""
        if harvest:
            return estimate(_costs(self._points_to_harvest(), harvest=True), kept=True)
        return estimate(self.costs())

    def costs(self) -> list[tuple[Point, Cost]]:
        """What each trained baseline and point of a run will cost; points on one drive count once. Opens no device."""
        points = self._checked_points()
        return _costs([*_trained_baselines(points), *points])

    @blas_threads(0)
    def run(
        self,
        progress: Progress | None = None,
        *,
        report: bool = True,
        on_row: Callable[[Row], None] | None = None,
        accept_change: str | None = None,
    ) -> Result:
        """Run every point and baseline; write the run folder as it goes.

        `on_row` is called with every finished row of a point; what it raises ends the run. Without `report` no figures
        are drawn. Without `progress` it is shown in a terminal or a notebook. After a fault or Ctrl-C the finished rows
        are in the folder and in `self.result`, and the error goes on to the caller. Trainings by gradients go on where
        they were if `run.resume` names that folder. `accept_change` is why a device may report other settings than when
        its states were harvested; without it that is an error. Under `torchrun` every process calls this: the first
        owns the folder, progress, `on_row` and the report, the others take part in the trainings.
        """
        processes = joined()
        if not processes.is_first:
            progress, report, on_row = None, False, None
        elif progress is None:
            with shown_progress() as progress:
                return self.run(progress, report=report, on_row=on_row, accept_change=accept_change)
        resolved = self.resolved()
        with processes.in_turn():
            points = self._checked_points()
            self._check_sharing(processes)
            for point, task in points:
                if isinstance(_trainer(point), InOnePass):
                    with self._naming("reservoir"):
                        check_recording(point, task)
            folder = self._folder(resolved) if processes.is_first else None
        folder = Path(processes.of_first(str(folder)))
        run = self.config.run
        record = {"rows": [], "sample": run.sample, "operator": run.operator, "notes": run.notes}
        self.result = result = self._result(folder, resolved, record)
        result.is_written = processes.is_first
        result.warn(*(f"left out: {sentence}" for sentence in self.left_out))
        result.warn(*(remark for _, task in points for remark in task.remarks))
        if run.resume is not None:
            result.earlier_rows = rows_in(folder)
        if processes.is_first:
            self._write(folder, resolved)
        result.save()
        reservoirs = [(other, task) for point, task in points for other in reservoir_baselines(point, task)]
        costs = _costs([*_trained_baselines(points), *reservoirs, *points])
        counter = StepCounter(progress, sum(cost.progress_steps for _, cost in costs))
        sharing, found = _sharing(points), {}
        opened = OpenDevice() if self._device is None else contextlib.nullcontext(self._device)

        def train(point: Point, task: Task, device: OpenDevice, files: RowFiles, **more: Any) -> None:
            settings = {"processes": processes, "device": device, **more}
            with processes.lost():
                _trainer(point).run(PointRun(point, task, files, result, counter, **settings))

        with kept_to_the_end(result, lambda: report and bool(result.rows) and result.replaces_earlier):
            try:
                with opened as device:
                    for point, task in points:
                        if point.begins_task:
                            if processes.is_first:
                                result.rows += _baseline_rows(point, task)
                            with _best_kept(result):
                                for other in trained_baselines(point):
                                    files = RowFiles(folder, f"baseline-{other.number:03d}")
                                    train(other, task, device, files, records="baselines")
                        for number, other in enumerate(reservoir_baselines(point, task)):
                            files = RowFiles(folder, f"baseline-of-{point.number:03d}-{number}")
                            try:
                                train(other, task, device, files, records="baselines")
                            except ReservoirError as error:
                                error.add_note(f"this was the baseline {other.label}")
                                raise
                        more = {"others": sharing.get(point.number, ()), "found": found, "accept_change": accept_change}
                        train(point, task, device, RowFiles(folder, point.number, self._recording(point)), **more)
                        if on_row is not None:
                            on_row(result.rows[-1])
                counter.say("writing the report")
                result.status = "complete"
                if report and result.rows:
                    write_report(result)
                if self.config.run.point is not None and processes.is_first:
                    keep_arrays(result)
                result.save()
                # Whoever starts processes may end the others when one of them is done.
                processes.gathered(None)
            except BaseException as error:
                processes.leave()
                if processes.is_first:
                    _say_what_is_kept(error, result)
                raise
        return result

    def _result(self, folder: Path, resolved: dict[str, Any], record: dict[str, Any]) -> Result:
        """An empty one, with what is known of the whole experiment beside `record`."""
        given = self.config.model_dump(mode="json", serialize_as_any=True, exclude_defaults=True)
        record = {**provenance.collect(resolved), "settings": given, **record}
        title, task = self.config.title or self.name, self.task_of(self.points[0])
        return Result(title=title, folder=folder, provenance=record, task=task)

    def _write(self, folder: Path, resolved: dict[str, Any]) -> None:
        """The configuration, and what it names beside it."""
        write_yaml(folder / "experiment.yaml", resolved)
        for task in {point.config.task.model_dump_json(): point.config.task for point in self.points}.values():
            task.keep(folder)

    def _check_sharing(self, processes: Processes) -> None:
        """Raise `ConfigurationError` if there is something that several processes cannot do together."""
        if processes.count == 1:
            return
        alone = next((point for point in self.points if not _trainer(point).shares), None)
        if alone is not None:
            raise ConfigurationError(
                f"{self._document.origin(('readout',))}: {processes.count} processes cannot share the training of "
                f"readout {alone.config.readout.kind}: start one process (points of `vary` can be run as jobs of their "
                "own: --set run.point=K)"
            )
        if self.config.run.record is not None:
            raise ConfigurationError(
                f"{self._document.origin(('run', 'record'))}: run.record: {processes.count} processes cannot write one "
                "recording: leave it out, or start one process"
            )

    def merge(self, folders: Sequence[str | Path], into: Path | None = None) -> Result:
        """The result that one process would have made of runs of single points (`run.point`), in a new run folder.

        Raises `ConfigurationError` where a folder is of another experiment or is not complete, or a point is missing or
        there twice.
        """
        resolved = self.resolved()
        parts = parts_of([Path(folder) for folder in folders], resolved, len(self.points))
        folder = new_run_folder(self.config.run.folder, self.name) if into is None else into
        result = self._result(folder, resolved, records_of(parts))
        for point, part in zip(self.points, parts, strict=True):
            copy_files(part, folder)
            result.rows += part.rows
            outputs = folder / RowFiles(folder, point.number).outputs
            result.sources[len(result.rows) - 1] = Source(point, self.task_of(point), outputs)
            result.warn(*part.warnings)
        self._write(folder, resolved)
        complete(result)
        return result

    def metrics_on(self, task: Task) -> list[str]:
        """Names of the metrics that all rows on this task have."""
        one_of_each = {point.config.readout.trained: point for point in self.points}.values()
        first, *others = (_trainer(point).metrics(point.config, task) for point in one_of_each)
        return [name for name in first if all(name in other for other in others)]

    def _checked_points(self) -> list[tuple[Point, Task]]:
        """Every point with its task, after everything was checked that can be without a device."""
        points = [(point, self.task_of(point)) for point in self.points]
        for section in ("reservoir", "readout", "training", "run"):
            for point, task in points:
                with self._naming(section):
                    _trainer(point).check(section, point.config, task)
                    if section == "run" and point.draw and not isinstance(_trainer(point), InOnePass):
                        raise ConfigurationError(
                            f"draws: readout {point.config.readout.kind} drives the reservoir again and again while it "
                            "is trained: vary a seed instead"
                        )
        for point, task in {id(task): (point, task) for point, task in points}.values():
            with self._naming("task"):
                try:
                    _trainer(point).metrics(point.config, task)
                except ReservoirError as error:
                    raise ConfigurationError(f"its test cannot be scored: {error}") from error
            for baseline in self.config.baselines:
                if isinstance(baseline, BaselineConfig):
                    with self._naming("baselines"):
                        baseline.check_task(task)
        trained = _trained_baselines(points)
        for point, task in trained:
            with self._naming("baselines"):
                for section in ("readout", "training"):
                    _trainer(point).check(section, point.config, task)
                ways = {_way(other.config.readout.model_dump()) for other, _ in trained if other.label == point.label}
                if len(ways) > 1 and VALIDATION not in _trainer(point).metrics(point.config, task):
                    raise ConfigurationError(
                        f"{point.label} is trained in {len(ways)} ways, and the task holds nothing out to choose by: "
                        "set task.validation, or give one"
                    )
        for point, task in points:
            with self._naming("baselines"):
                baselines = reservoir_baselines(point, task)
            for baseline in baselines:
                with self._naming("baselines", f"{baseline.config.reservoir.name}: "):
                    for section in ("reservoir", "readout", "training"):
                        _trainer(baseline).check(section, baseline.config, task)
        return points

    def _folder(self, resolved: dict[str, Any]) -> Path:
        """The run folder: a new one, or that of a run that is gone on with."""
        resume = self.config.run.resume
        if resume is None:
            number = self.config.run.point
            return new_run_folder(self.config.run.folder, self.name if number is None else f"{self.name}-{number:03d}")
        readouts = [point.config.readout for point in self.points]
        if not self.config.trains_baselines and not any(isinstance(one, GradientReadoutConfig) for one in readouts):
            raise ConfigurationError(
                f"{self._document.origin(('run', 'resume'))}: run.resume goes on with a training by gradients, "
                "and there is none; states of a device are kept by `reservoir-hw harvest`"
            )
        return begun_run_folder(resume, resolved)

    def _points_to_harvest(self) -> list[tuple[Point, Task]]:
        """Every point whose states have a store of their own, after the checks."""
        points = self._checked_points()
        for point in self.points:
            if not isinstance(_trainer(point), InOnePass):
                of_text = (
                    " (training.gradient.keep_states keeps the states of a linear, low_rank or attention readout in "
                    "the run folder)"
                )
                raise ConfigurationError(
                    f"{self._document.origin(('readout',))}: readout {point.config.readout.kind} drives its reservoir "
                    "itself while it is trained: run the experiment"
                    f"{of_text if isinstance(_trainer(point), ByGradients) else ''}"
                )
        if self.config.run.states is None:
            raise ConfigurationError("run.states is null: give the folder in which harvested states are to lie")
        return list({store_path(point, task): (point, task) for point, task in points}.values())

    @contextlib.contextmanager
    def _naming(self, section: str, which: str = "") -> Iterator[None]:
        """A section that does not fit is named with the place that it came from, and `which` of several it is."""
        try:
            yield
        except ConfigurationError as error:
            place = (section, str(error).partition(":")[0])
            raise ConfigurationError(f"{self._document.origin(place)}: {section}: {which}{error}") from None

    def _recording(self, point: Point) -> str | None:
        """Where the drives of a point are recorded: points of a grid each in a folder of their own."""
        run = point.config.run
        alone = len(self.points) == 1 and run.point is None
        return run.record if run.record is None or alone else f"{run.record}/{point.number:03d}"

    def harvest(self, progress: Progress | None = None, *, accept_change: str | None = None) -> list[StateStore]:
        """Drive the reservoir of every point for its states alone, into the stores that `run` takes them from.

        What an earlier harvest has is kept, whatever ended it; points that share their states share a store. A device
        that reports other settings than before is an error, without `accept_change`: why it may.
        """
        points = self._points_to_harvest()
        sizes = [cost.progress_steps for _, cost in _costs(points, harvest=True)]
        with shown_progress(progress) as shown, OpenDevice() as device:
            counter = StepCounter(shown, sum(sizes))
            return [
                harvest_point(point, task, steps, counter, device, accept_change)
                for (point, task), steps in zip(points, sizes, strict=True)
            ]

    def task_of(self, point: Point) -> Task:
        """The point's task; points with the same task share its data."""
        key = point.config.task.model_dump_json()
        if key not in self._tasks:
            self._tasks[key] = point.config.task.build()
        return self._tasks[key]


def _trainer(point: Point) -> Trainer:
    """The trainer that the readout of the point names by `trained`."""
    return _TRAINERS[point.config.readout.trained]


def _sharing(points: Sequence[tuple[Point, Task]]) -> dict[int, list[Point]]:
    """By the number of each point that is the first on its drive: those further on that share it."""
    drives: dict[Any, list[Point]] = {}
    for point, task in points:
        drive = _trainer(point).drive_of(point, task)
        drives.setdefault(point.number if drive is None else drive, []).append(point)
    return {first.number: others for first, *others in drives.values()}


def _costs(points: Sequence[tuple[Point, Task]], *, harvest: bool = False) -> list[tuple[Point, Cost]]:
    """What each point takes. A point whose drive is that of an earlier one takes none."""
    nothing = {"device_steps": 0, "progress_steps": 0, "state_bytes": 0, "chunks": 0, "bursts": 0}
    costs: list[tuple[Point, Cost]] = []
    drives: set[str | None] = set()
    is_open_for = ""
    for point, task in points:
        cost, drive = _trainer(point).cost(point, task, harvest=harvest), _trainer(point).drive_of(point, task)
        if drive in drives:
            cost = replace(cost, **nothing)
        elif cost.progress_steps and not cost.stored:
            before, is_open_for = is_open_for, left_open(point, task)
            saved = driven_by(point.config.reservoir).opening if before and before == is_open_for else 0
            cost = replace(cost, device_steps=cost.device_steps - saved, progress_steps=cost.progress_steps - saved)
        costs.append((point, cost))
        drives |= {drive} - {None}
    return costs


def _baseline_rows(point: Point, task: Task) -> Iterator[Row]:
    """The row of each baseline that needs neither a reservoir nor gradients."""
    baselines = point.config.baselines
    for baseline, label in zip(baselines, baseline_labels(baselines), strict=True):
        if isinstance(baseline, BaselineConfig):
            try:
                evaluation = baseline.evaluate(task)
            except ReservoirError as error:
                raise type(error)(f"baseline {baseline.kind}: {error}") from error
            yield Row(label, point.values_of_task, evaluation, {"baseline": True})


def _say_what_is_kept(error: BaseException, result: Result) -> None:
    """Add to an error how the run goes on, and what it has by now."""
    begun = any(result.folder.glob("training/**/checkpoint.safetensors"))
    if begun and not isinstance(error, ConfigurationError):
        error.add_note(f"the same command goes on with the training if it is given --set run.resume={result.folder}")
    if result.rows:
        rows = "row is" if len(result.rows) == 1 else "rows are"
        error.add_note(f"{len(result.rows)} finished {rows} in {result.folder}")


def _way(model: Mapping[str, Any]) -> str:
    """How a model is trained that its section says, seeds apart."""
    return json.dumps({key: value for key, value in model["training"].items() if key != "seed"}, sort_keys=True)


@contextlib.contextmanager
def _best_kept(result: Result) -> Iterator[None]:
    """Of a baseline that is trained in several ways, the one with the best mean validation loss stays in the result."""
    before, earlier = len(result.rows), len(result.provenance.get("baselines", []))
    try:
        yield
    finally:
        rows, records = result.rows[before:], result.provenance.get("baselines", [])
        kept: dict[int, Row] = {}
        for label, runs in by_label(rows).items():
            ways: dict[str, list[Row]] = {}
            for row in runs:
                ways.setdefault(_way(row.details["readout"]), []).append(row)
            if len(ways) == 1:
                kept |= {id(row): row for row in runs}
                continue
            losses = {way: float(metric_values(of, VALIDATION).mean()) for way, of in ways.items()}
            best = min(losses, key=losses.__getitem__)
            tried = [{"training": json.loads(way), VALIDATION: loss} for way, loss in losses.items()]
            kept |= {id(row): replace(row, details={**row.details, "tried": tried}) for row in ways[best]}
            said = dict(zip(ways, differences([json.loads(way) for way in ways]), strict=True))[best]
            result.notes.append(
                f"{label}: {said}, the best of {len(ways)} by the validation loss ({len(runs)} trainings)"
            )
        stay = [(kept[id(row)], record) for row, record in zip(rows, records[earlier:], strict=True) if id(row) in kept]
        result.rows[before:] = [row for row, _ in stay]
        records[earlier:] = [record for _, record in stay]


def _trained_baselines(points: Sequence[tuple[Point, Task]]) -> list[tuple[Point, Task]]:
    """A point for each baseline that is trained by gradients, and each task."""
    return [(baseline, task) for point, task in points for baseline in trained_baselines(point)]
