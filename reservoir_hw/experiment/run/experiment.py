"""An experiment: from a file to a result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from reservoir_hw.core import provenance
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, ReservoirError
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import (
    ExperimentConfig,
    Point,
    TrainingConfig,
    grid,
    parse_experiment,
)
from reservoir_hw.experiment.run.by_gradients import ByGradients
from reservoir_hw.experiment.run.estimate import Estimate, estimate
from reservoir_hw.experiment.run.folder import begun_run_folder, new_run_folder, rows_in, write_yaml
from reservoir_hw.experiment.run.in_one_pass import InOnePass, harvest_point
from reservoir_hw.experiment.run.on_labels import OnLabels
from reservoir_hw.experiment.run.report import write_report
from reservoir_hw.experiment.run.result import Result, how_it_ended
from reservoir_hw.experiment.run.trainer import Cost, PointRun, RowFiles, Trainer
from reservoir_hw.experiment.states.harvest import store_path
from reservoir_hw.experiment.states.plan import plan_of, steps_of
from reservoir_hw.experiment.states.progress import Progress, StepCounter
from reservoir_hw.experiment.states.progress_bar import shown_progress
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.tasks.task import Row, Task

_TRAINERS: dict[str, Trainer] = {
    "in one pass": InOnePass(),
    "by gradients": ByGradients(),
    "on labels": OnLabels(),
}


class Experiment:
    """A validated experiment: every point of its grid was checked when it was made.

    Use `Experiment.from_file(path).run()`, or give a mapping with the same keys as a file. Experiments that are given
    the same `tasks` share the data of equal tasks.
    """

    def __init__(
        self, document: Document | Mapping[str, Any], name: str = "experiment", tasks: dict[str, Task] | None = None
    ) -> None:
        if not isinstance(document, Document):
            document = Document.from_mapping(document, "the given mapping")
        self._document = document
        self.config: ExperimentConfig = parse_experiment(document)
        self.points: list[Point] = grid(document)
        self.name = self.config.run.name or name
        self._tasks: dict[str, Task] = {} if tasks is None else tasks
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
    ) -> Self:
        """Read a file; lay the reservoir file, the environment and then `set` over it.

        `set` is {dotted key: value}, or "key=value" texts as on the command line.
        """
        document = load_document(path, reservoir=reservoir, set=set, environment=environment)
        path = Path(path)
        return cls(document, name=f"{path.resolve().parent.name}-{path.stem}")

    def resolved(self) -> dict[str, Any]:
        """The whole configuration, defaults included."""
        return self.config.model_dump(mode="json", serialize_as_any=True)

    def check_machine(self) -> None:
        """Raise `ConfigurationError` where this machine lacks what a point names, such as a function."""
        for point in self.points:
            point.config.reservoir.check_machine()

    def estimate(self, *, harvest: bool = False) -> Estimate:
        """What a run, or a harvest, will cost. Makes the task's data; opens no device."""
        if harvest:
            return estimate(_costs(self._points_to_harvest(), harvest=True), kept=True)
        points = self._checked_points()
        return estimate(_costs([*self._trained_baselines(points), *points]))

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
        are in the folder and in `self.result`, and the error goes on to the caller. Trainings by gradients go on
        where they were if `run.resume` names that folder. `accept_change` is why a device may report other settings
        than when its states were harvested; without it that is an error.
        """
        if progress is None:
            with shown_progress() as progress:
                return self.run(progress, report=report, on_row=on_row, accept_change=accept_change)
        points = self._checked_points()
        resolved = self.resolved()
        folder = self._folder(resolved)
        given = self.config.model_dump(mode="json", serialize_as_any=True, exclude_defaults=True)
        record = {**provenance.collect(resolved), "settings": given, "rows": []}
        run = self.config.run
        record |= {"sample": run.sample, "operator": run.operator, "notes": run.notes}
        title = self.config.title or self.name
        result = Result(title=title, folder=folder, provenance=record, task=points[0][1])
        self.result = result
        if run.resume is not None:
            result.earlier_rows = rows_in(folder)
        write_yaml(folder / "experiment.yaml", resolved)
        result.save()
        trained = self._trained_baselines(points)
        counter = StepCounter(progress, sum(cost.progress_steps for _, cost in _costs([*trained, *points])))
        together, found = _together(points), {}
        try:
            baselines_done: set[int] = set()
            for point, task in points:
                if id(task) not in baselines_done:
                    baselines_done.add(id(task))
                    for baseline in self.config.baselines:
                        if isinstance(baseline, BaselineConfig):
                            result.rows.append(_run_baseline(baseline, task, point))
                    for number, (other, its_task) in enumerate(trained):
                        if its_task is task:
                            files = RowFiles(folder, f"baseline-{number:03d}")
                            _trainer(other).run(PointRun(other, task, files, result, counter, records="baselines"))
                files = RowFiles(folder, len(record["rows"]), self._recording(point, len(record["rows"])))
                _trainer(point).run(
                    PointRun(point, task, files, result, counter, accept_change, together[id(point)], found)
                )
                if on_row is not None:
                    on_row(result.rows[-1])
            counter.say("writing the report")
            result.status = "complete"
            if report and result.rows:
                write_report(result)
            result.save()
        except BaseException as error:
            result.status, result.problem = how_it_ended(error)
            refused = isinstance(error, ConfigurationError)
            if not refused and any(folder.glob("training/**/checkpoint.safetensors")):
                error.add_note(f"the same command goes on with the training if it is given --set run.resume={folder}")
            if result.rows:
                rows = "row is" if len(result.rows) == 1 else "rows are"
                error.add_note(f"{len(result.rows)} finished {rows} in {folder}")
            # The error itself goes on to the caller; a full disk must not hide it.
            with contextlib.suppress(Exception):
                result.save()
                if report and result.rows and result.replaces_earlier:
                    write_report(result)
            raise
        return result

    def _trained_baselines(self, points: Sequence[tuple[Point, Task]]) -> list[tuple[Point, Task]]:
        """A point for each baseline that is trained by gradients, and each task."""
        wanted = [one for one in self.config.baselines if isinstance(one, TokenModelConfig)]
        firsts = {id(task): (point, task) for point, task in reversed(points)}
        return [
            (Point(_of_task(point), _with_baseline(point.config, one)), task)
            for point, task in reversed(firsts.values())
            for one in wanted
        ]

    def metrics_on(self, task: Task) -> list[str]:
        """Names of the metrics that all rows on this task have."""
        one_of_each = {point.config.readout.trained: point for point in self.points}.values()
        first, *others = (_trainer(point).metrics(point.config, task) for point in one_of_each)
        return [name for name in first if all(name in other for other in others)]

    def _checked_points(self) -> list[tuple[Point, Task]]:
        """Every point with its task, after everything was checked that can be without a device."""
        points = [(point, self._task(point)) for point in self.points]
        for section in ("reservoir", "readout", "training", "run"):
            for point, task in points:
                with self._naming(section):
                    _trainer(point).check(section, point.config, task)
        for point, task in {id(task): (point, task) for point, task in points}.values():
            with self._naming("task"):
                self._check_scores(point, task)
            for baseline in self.config.baselines:
                if isinstance(baseline, BaselineConfig):
                    with self._naming("baselines"):
                        baseline.check_task(task)
        for point, task in self._trained_baselines(points):
            with self._naming("baselines"):
                for section in ("readout", "training"):
                    _trainer(point).check(section, point.config, task)
        return points

    def _check_scores(self, point: Point, task: Task) -> None:
        """Raise `ConfigurationError` if even the right answers could not be judged."""
        try:
            _trainer(point).metrics(point.config, task)
        except ReservoirError as error:
            raise ConfigurationError(f"its test cannot be scored: {error}") from error

    def _folder(self, resolved: dict[str, Any]) -> Path:
        """The run folder: a new one, or that of a run that is gone on with."""
        resume = self.config.run.resume
        if resume is None:
            return new_run_folder(self.config.run.folder, self.name)
        trained = any(isinstance(one, TokenModelConfig) for one in self.config.baselines)
        if not trained and not any(_trainer(point).resumes for point in self.points):
            raise ConfigurationError(
                f"{self._document.origin(('run', 'resume'))}: run.resume goes on with a training by gradients, "
                "and there is none; states of a device are kept by `reservoir-hw harvest`"
            )
        return begun_run_folder(resume, resolved)

    def _points_to_harvest(self) -> list[tuple[Point, Task]]:
        """Every point whose states have a store of their own, after the checks."""
        points = self._checked_points()
        for point in self.points:
            try:
                _trainer(point).check_harvest(point.config)
            except ConfigurationError as error:
                raise ConfigurationError(f"{self._document.origin(('readout',))}: {error}") from None
        if self.config.run.states is None:
            raise ConfigurationError("run.states is null: give the folder in which harvested states are to lie")
        return list({store_path(point, task): (point, task) for point, task in points}.values())

    @contextlib.contextmanager
    def _naming(self, section: str) -> Iterator[None]:
        """A section that does not fit is named with the place that it came from."""
        try:
            yield
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._document.origin((section,))}: {section}: {error}") from None

    def _recording(self, point: Point, number: int) -> str | None:
        """Where the drives of a point are recorded: points of a grid each in a folder of their own."""
        path = point.config.run.record
        return path if path is None or len(self.points) == 1 else f"{path}/{number:03d}"

    def harvest(self, progress: Progress | None = None, *, accept_change: str | None = None) -> list[StateStore]:
        """Drive the reservoir of every point for its states alone, into the stores that `run` takes them from.

        What an earlier harvest has is kept, whatever ended it; points that share their states share a store. A device
        that reports other settings than before is an error, without `accept_change`: why it may.
        """
        if progress is None:
            with shown_progress() as progress:
                return self.harvest(progress, accept_change=accept_change)
        points = self._points_to_harvest()
        sizes = [steps_of(plan_of(point, task)) for point, task in points]
        counter = StepCounter(progress, sum(sizes))
        return [
            harvest_point(point, task, steps, counter, accept_change)
            for (point, task), steps in zip(points, sizes, strict=True)
        ]

    def _task(self, point: Point) -> Task:
        """The point's task; points with the same task share its data."""
        key = point.config.task.model_dump_json()
        if key not in self._tasks:
            self._tasks[key] = point.config.task.build()
        return self._tasks[key]


def _trainer(point: Point) -> Trainer:
    """The trainer that the readout of the point names by `trained`."""
    return _TRAINERS[point.config.readout.trained]


def _together(points: Sequence[tuple[Point, Task]]) -> dict[int, list[Point]]:
    """For each point, by its id, those further on that share its drive; none for a point that an earlier one has."""
    sharing: dict[str, list[Point]] = {}
    found: dict[int, list[Point]] = {}
    for point, task in points:
        drive = _trainer(point).drive_of(point, task)
        if drive is not None and drive in sharing:
            sharing[drive].append(point)
        found[id(point)] = sharing.setdefault(drive, []) if drive is not None and drive not in sharing else []
    return found


def _costs(points: Sequence[tuple[Point, Task]], *, harvest: bool = False) -> list[tuple[Point, Cost]]:
    """What each point takes. A point whose drive is that of an earlier one takes none."""
    shared = {id(other) for others in _together(points).values() for other in others}
    nothing = {"device_steps": 0, "progress_steps": 0, "state_bytes": 0, "chunks": 0, "bursts": 0}
    costs = [(point, _trainer(point).cost(point, task, harvest=harvest)) for point, task in points]
    return [(point, replace(cost, **nothing) if id(point) in shared else cost) for point, cost in costs]


def _run_baseline(config: BaselineConfig, task: Task, point: Point) -> Row:
    try:
        evaluation = config.evaluate(task)
    except ReservoirError as error:
        raise type(error)(f"baseline {config.kind}: {error}") from error
    return Row(config.label, _of_task(point), evaluation)


def _with_baseline(config: ExperimentConfig, baseline: TokenModelConfig) -> ExperimentConfig:
    """The experiment of this model. How the readout gets its states is none of its business."""
    gradient = config.training.gradient
    if gradient is not None:
        gradient = gradient.model_copy(update={"shards": None, "keep_states": False})
    return config.model_copy(update={"readout": baseline, "training": TrainingConfig(gradient=gradient)})


def _of_task(point: Point) -> dict[str, Any]:
    """What of a point varies the task."""
    return {key: value for key, value in point.values.items() if key.startswith("task.")}
