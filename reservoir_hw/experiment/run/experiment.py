"""An experiment: from a file to a result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from reservoir_hw.core import provenance
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, MissingExtra, ReservoirError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point, grid, parse_experiment
from reservoir_hw.experiment.run import language
from reservoir_hw.experiment.run.estimate import Estimate, estimate
from reservoir_hw.experiment.run.folder import begun_run_folder, new_run_folder, rows_in, write_yaml
from reservoir_hw.experiment.run.outcome import ending
from reservoir_hw.experiment.run.report import write_report
from reservoir_hw.experiment.run.result import Result
from reservoir_hw.experiment.states.closed_loop import forecast
from reservoir_hw.experiment.states.drive import driven, follow, judge, learn
from reservoir_hw.experiment.states.harvest import (
    check,
    device_of,
    find_states,
    harvest,
    harvest_lock,
    harvest_plan,
    open_store,
    store_path,
    stored,
)
from reservoir_hw.experiment.states.plan import Leg, plan_of, steps_needed, steps_of
from reservoir_hw.experiment.states.record import Recorder
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.linear.configuration import OnlineReadout, Readout, ReadoutConfig
from reservoir_hw.readout.models.configuration import ModelConfig
from reservoir_hw.tasks.task import Evaluation, Row, Task
from reservoir_hw.tasks.text.task import Text

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


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

    def estimate(self, *, harvest: bool = False) -> Estimate:
        """What a run, or a harvest, will cost. Makes the task's data; opens no device."""
        points = self._checked_points()
        if harvest:
            self._refuse_to_harvest()
            points = list({store_path(point, task): (point, task) for point, task in points}.values())
        return estimate(points, kept=harvest)

    def run(
        self,
        progress: Progress | None = None,
        *,
        report: bool = True,
        on_row: Callable[[Row], None] | None = None,
    ) -> Result:
        """Run every point and baseline; write the run folder as it goes.

        `on_row` is called with every finished row of a point; what it raises ends the run. Without `report` no figures
        are drawn. After a fault or Ctrl-C the finished rows are in the folder, and the error goes on to the caller.
        Trainings of language models go on where they were if `run.resume` names that folder.
        """
        points = self._checked_points()
        resolved = self.resolved()
        folder = self._folder(resolved)
        record = {**provenance.collect(resolved), "rows": []}
        run = self.config.run
        record |= {"sample": run.sample, "operator": run.operator, "notes": run.notes}
        result = Result(self.config.title or self.name, points[0][1], folder, record)
        if run.resume is not None:
            result.earlier_rows = rows_in(folder)
        write_yaml(folder / "experiment.yaml", resolved)
        result.save()
        counter = _Counter(progress, sum(_steps(point, task) for point, task in points))
        try:
            baselines_done: set[int] = set()
            for point, task in points:
                if id(task) not in baselines_done:
                    baselines_done.add(id(task))
                    for baseline in self.config.baselines:
                        result.rows.append(_run_baseline(baseline, task, point))
                self._run_point(point, task, result, counter)
                if on_row is not None:
                    on_row(result.rows[-1])
            counter.say("writing the report")
            result.status = "complete"
            if report:
                _report(result)
            result.save()
        except BaseException as error:
            result.status, result.problem = ending(error)
            refused = isinstance(error, ConfigurationError)
            if not refused and any(folder.glob("training/*/checkpoint.safetensors")):
                error.add_note(f"the same command goes on with the training if it is given --set run.resume={folder}")
            # The error itself goes on to the caller; a full disk must not hide it.
            with contextlib.suppress(Exception):
                result.save()
                if report and result.replaces_earlier:
                    _report(result)
            raise
        return result

    def metrics_on(self, task: Task) -> list[str]:
        """Names of the metrics that rows on this task have."""
        if any(isinstance(point.config.readout, ModelConfig) for point in self.points):
            return language.metrics_on(task)
        return list(task.evaluate(np.nan_to_num(task.test.targets)).metrics)

    def _checked_points(self) -> list[tuple[Point, Task]]:
        """Every point with its task, after everything was checked that can be without a device."""
        points = [(point, self._task(point)) for point in self.points]
        for section in ("reservoir", "readout", "training", "run"):
            for point, task in points:
                try:
                    _check_section(section, point.config, task)
                except ConfigurationError as error:
                    raise ConfigurationError(f"{self._document.origin((section,))}: {section}: {error}") from None
        for _, task in points:
            if not self.config.baselines:
                break
            where = self._document.origin(("baselines",))
            try:
                uneven = not task.closed_loop and task.train.lengths is not None
            except ConfigurationError as error:
                raise ConfigurationError(f"{where}: baselines: {error}") from None
            if task.closed_loop or uneven:
                what = "in a closed loop" if task.closed_loop else "with sequences of different lengths"
                raise ConfigurationError(f"{where}: baselines cannot be run {what}; remove them")
        return points

    def _folder(self, resolved: dict[str, Any]) -> Path:
        """The run folder: a new one, or that of a run that is gone on with."""
        resume = self.config.run.resume
        if resume is None:
            return new_run_folder(self.config.run.folder, self.name)
        if not any(isinstance(point.config.readout, ModelConfig) for point in self.points):
            raise ConfigurationError(
                f"{self._document.origin(('run', 'resume'))}: run.resume goes on with the training of language models, "
                "and there is none; states of a device are kept by `reservoir-hw harvest`"
            )
        return begun_run_folder(resume, resolved)

    def _refuse_to_harvest(self) -> None:
        for point in self.points:
            if isinstance(point.config.readout, ModelConfig):
                raise ConfigurationError(
                    f"{self._document.origin(('readout',))}: readout {point.config.readout.kind} drives its reservoir "
                    "itself while it is trained: run the experiment (training.gradient.keep_states keeps the states of "
                    "a linear, low_rank or attention readout in the run folder)"
                )

    def harvest(self, progress: Progress | None = None) -> list[StateStore]:
        """Drive the reservoir of every point for its states alone, into the stores that `run` takes them from.

        What an earlier harvest has is kept, whatever ended it; points that share their states share a store.
        """
        points = self._checked_points()
        self._refuse_to_harvest()
        plans = {store_path(point, task): (point, task) for point, task in points}
        if self.config.run.states is None:
            raise ConfigurationError("run.states is null: give the folder in which harvested states are to lie")
        sizes = {path: steps_of(plan_of(point, task)) for path, (point, task) in plans.items()}
        counter = _Counter(progress, sum(sizes.values()))
        stores: list[StateStore] = []
        for path, (point, task) in plans.items():
            name = point.config.reservoir.label
            with harvest_lock(point, task):
                store = find_states(point, task)
                if store is not None and store.complete:
                    counter.add(sizes[path])
                else:
                    if store is not None and store.committed:
                        # Before the device: on what is damaged nothing can be built.
                        counter.say(f"{name}: checking what is there")
                        check(store, harvest_plan(point, task, store), counter.say)
                    counter.say(f"{name}: opening")
                    with self._opened(point, task) as reservoir:
                        store = open_store(point, task, reservoir)
                        there = f" ({store.committed} chunks are there already)" if store.committed else ""
                        counter.say(f"{name}: harvesting into {path}{there}")
                        harvest(reservoir, harvest_plan(point, task, store), store, counter.add)
            stores.append(store)
        return stores

    @contextlib.contextmanager
    def _opened(self, point: Point, task: Task) -> Iterator[Reservoir]:
        with build_reservoir(point.config.reservoir.for_inputs(task.inputs)) as reservoir:
            if reservoir.spec.inputs != task.inputs:
                raise ConfigurationError(
                    f"the task has {task.inputs} input channels, but the device takes {reservoir.spec.inputs}"
                )
            yield reservoir

    def _run_point(self, point: Point, task: Task, result: Result, counter: _Counter) -> None:
        config = point.config
        name = f"{config.reservoir.label}" + (f" [{point.place}]" if point.place else "")
        if isinstance(config.readout, ModelConfig):
            self._run_model(point, cast(Text, task), name, result, counter)
            return
        repetitions = config.training.repetitions
        store = self._harvested(point, task, result)
        if store is not None and not task.closed_loop:
            counter.say(f"{name}: training and testing on {store.path}")
            trained = self._train(
                point, task, stored(store, harvest_plan(point, task, store), counter.add, repetitions=repetitions)
            )
            self._keep(point, task.evaluate(trained[1], "scores"), trained[0], device_of(store), result)
            return
        counter.say(f"{name}: opening")
        with self._opened(point, task) as reservoir:
            try:
                with self._recorded(point, reservoir, len(result.provenance["rows"])):
                    counter.say(f"{name}: training and testing")
                    if store is not None:
                        states = stored(store, harvest_plan(point, task, store), counter.add, repetitions=repetitions)
                    else:
                        bursts = plan_of(point, task, max_batch=reservoir.spec.max_batch)
                        states = driven(reservoir, bursts, counter.add, repetitions=repetitions)
                    readout, outputs = self._train(point, task, states)
                    if task.closed_loop:
                        counter.say(f"{name}: forecasting")
                        horizon = task.test.targets.shape[1]
                        outputs = forecast(reservoir, readout, task.test.inputs, horizon, counter.add)
            except BaseException as error:
                _note_unfinished(result, point, error, [reservoir])
                raise
            self._keep(point, task.evaluate(outputs, "scores"), readout, reservoir.provenance(), result)

    def _run_model(self, point: Point, task: Text, name: str, result: Result, counter: _Counter) -> None:
        """Train a language model on the text, and put its row into the result and its folder."""
        number = len(result.provenance["rows"])
        record = point.config.run.record
        if record is not None and len(self.points) > 1:
            record = f"{record}/{number:03d}"
        place = language.Place(result.folder, number, record)
        watch = language.Watch(lambda what: counter.say(f"{name}: {what}"), counter.add)
        watch.say("opening")
        with language.opened(point, task, place) as (model, devices):
            try:
                outcome = language.train_model(model, devices, point, task, place, watch)
            except BaseException as error:
                _note_unfinished(result, point, error, devices)
                raise
            result.rows.append(Row(point.label, point.values, outcome.evaluation))
            result.provenance["rows"].append(
                {
                    "label": point.label,
                    "point": dict(point.values),
                    **language.device_records(devices),
                    **outcome.record,
                }
            )
            result.notes += outcome.notes
            result.save()

    def _train(self, point: Point, task: Task, states: Iterable[tuple[Leg, np.ndarray]]) -> tuple[Readout, np.ndarray]:
        """A readout trained on the training legs, and its outputs for the test legs."""
        config = _classical(point.config)
        readout = config.build()
        readout.repetitions_ = point.config.training.repetitions
        outputs = np.zeros(task.test.targets.shape, dtype=np.float32)
        left = len(task.train.inputs) * task.train.inputs.shape[1]
        waiting: list[tuple[Leg, np.ndarray]] = []

        def test(leg: Leg, answer: np.ndarray) -> None:
            if config.keeps_learning:
                # Groups of sequences are tested after all of them have trained: what came last is not theirs.
                alone = leg.place is not None and leg.place.rows == slice(0, len(task.train.inputs))
                whole = task.train.lengths is None and task.test.lengths is None
                continues = point.config.training.continuous and alone and whole
                follow(cast(OnlineReadout, readout), task, leg, answer, outputs, continues=continues)
            else:
                judge(readout, leg, answer, outputs)

        for leg, answer in states:
            if leg.split == "train":
                learn(readout, task, leg, answer)
                left -= leg.steps if leg.place is not None else 0
                if left == 0:
                    readout.solve()
            elif left:
                # Groups of sequences that are tested in one go with their training: more training is to come.
                waiting.append((leg, answer))
            else:
                test(leg, answer)
        for leg, answer in waiting:
            test(leg, answer)
        return readout, outputs

    def _harvested(self, point: Point, task: Task, result: Result) -> StateStore | None:
        """The states of an earlier harvest, if they are whole; whoever reads the result is told."""
        if point.config.run.states is None or point.config.run.record is not None:
            return None
        store = find_states(point, task)
        if store is None:
            return None
        if not store.complete:
            result.notes.append(
                f"{store.path} is an unfinished harvest of this experiment and was not used: "
                "`reservoir-hw harvest` goes on with it"
            )
            return None
        result.notes.append(
            f"states were read from {store.path}, harvested {store.facts['provenance']['time']}; the device was "
            "not driven (run.states=null drives it)"
        )
        return store

    def _recorded(self, point: Point, reservoir: Reservoir, number: int) -> contextlib.AbstractContextManager[Any]:
        path = point.config.run.record
        if path is None:
            return contextlib.nullcontext()
        if len(self.points) > 1:
            path = f"{path}/{number:03d}"
        return Recorder(reservoir, path, chunk_steps=point.config.run.chunk_steps)

    def _keep(
        self, point: Point, evaluation: Evaluation, readout: Readout, device: dict[str, Any], result: Result
    ) -> None:
        """Put a finished row into the result and its folder, before anything else can go wrong."""
        result.rows.append(Row(point.label, point.values, evaluation))
        number = len(result.provenance["rows"])
        (result.folder / "readout").mkdir(exist_ok=True)
        file = f"readout/{number:03d}.safetensors"
        readout.save(result.folder / file)
        result.provenance["rows"].append(
            {
                "label": point.label,
                "point": dict(point.values),
                "reservoir": device,
                "readout": {"file": file, **readout.report_},
            }
        )
        result.save()

    def _task(self, point: Point) -> Task:
        """The point's task; points with the same task share its data."""
        key = point.config.task.model_dump_json()
        if key not in self._tasks:
            self._tasks[key] = point.config.task.build()
        return self._tasks[key]


def load_document(
    path: str | Path,
    *,
    reservoir: str | Path | None = None,
    set: Mapping[str, Any] | Iterable[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Document:
    """A file with everything that goes over it, in the order file < reservoir < environment < set."""
    document = Document.from_file(path)
    if reservoir is not None:
        section = Document.from_file(reservoir)
        if "kind" not in section.data:
            raise ConfigurationError(f"{reservoir}:1: a reservoir file has `kind:` at its top")
        document.replace("reservoir", section)
    is_reservoir = "kind" in document.data
    document.set_environment(environment, prefix=("reservoir",) if is_reservoir else ())
    if isinstance(set, Mapping):
        for key, value in set.items():
            document.set(key, value, f"set[{key!r}]")
    else:
        for assignment in [set] if isinstance(set, str) else set or ():
            document.set_option(assignment)
    return document


def _check_section(section: str, config: ExperimentConfig, task: Task) -> None:
    """Raise `ConfigurationError` where a section of a point does not fit the others."""
    if isinstance(config.readout, ModelConfig):
        language.check(section, config, config.readout, task)
    elif section == "reservoir":
        config.reservoir.for_inputs(task.inputs)
    elif section == "readout":
        config.readout.check_outputs(task.outputs)
        config.readout.check_targets(task.train.targets)
        _check_learning_on(config.readout, task)
    elif section == "training" and config.training.gradient is not None:
        raise ConfigurationError(
            f"gradient: readout {config.readout.kind} is not trained by gradients; remove it, or take one of the "
            "readouts linear, low_rank, attention and laerc"
        )


def _classical(config: ExperimentConfig) -> ReadoutConfig:
    """The readout of an experiment that is not a language model's."""
    assert isinstance(config.readout, ReadoutConfig)
    return config.readout


def _steps(point: Point, task: Task) -> int:
    """What the progress of a point is counted in: device steps, and for a language model tokens."""
    if isinstance(point.config.readout, ModelConfig):
        return language.cost(point, task).tokens
    return steps_needed(point, task)


def _note_unfinished(result: Result, point: Point, error: BaseException, devices: Sequence[Reservoir]) -> None:
    """Keep what is known of the devices on which a point was not finished."""
    unfinished = {"label": point.label, "point": dict(point.values)}
    try:
        result.provenance["unfinished"] = {**unfinished, **language.device_records(devices)}
    except Exception as reading:
        # A dead device cannot be read back; why it died is what counts.
        error.add_note(f"its settings could not be read back: {reading}")


def _check_learning_on(readout: ReadoutConfig, task: Task) -> None:
    """Raise `ConfigurationError` where a readout cannot go on learning in the test."""
    if not readout.keeps_learning:
        return
    if task.closed_loop:
        raise ConfigurationError(
            "keep_learning: a forecast in closed loop has no targets to learn from; set it to false"
        )
    readout.check_targets(task.test.targets)


def _report(result: Result) -> None:
    if result.rows:
        try:
            write_report(result)
        except MissingExtra as error:
            result.notes.append(str(error))


def _run_baseline(config: BaselineConfig, task: Task, point: Point) -> Row:
    baseline = config.build()
    try:
        baseline.fit(task.train.inputs, task.train.targets, task.train.symbols)
        outputs = baseline.predict(task.test.inputs, task.test.symbols)
    except ReservoirError as error:
        raise type(error)(f"baseline {config.kind}: {error}") from error
    values = {key: value for key, value in point.values.items() if key.startswith("task.")}
    return Row(config.label, values, task.evaluate(outputs, baseline.scale))


class _Counter:
    """Adds up steps over all points for one progress report."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self._done, self._what = 0, ""

    def say(self, what: str) -> None:
        self._what = what
        self.add(0)

    def add(self, steps: int) -> None:
        self._done += steps
        if self._progress is not None:
            self._progress(self._what, self._done, self._total)
