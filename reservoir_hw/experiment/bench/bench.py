"""One reservoir on all standard tasks: two experiments for each task, one to choose settings, one to judge them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reservoir_hw.backends.replay import ReplayConfig
from reservoir_hw.core import provenance
from reservoir_hw.core.configuration import Document, decisive
from reservoir_hw.core.errors import ConfigurationError, DeviceError, InputRangeError, ReservoirError, StateLost
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir, reservoir_section
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.core.validation import parse_budget
from reservoir_hw.experiment.bench.result import NOTHING, BenchResult, Cost, Ledger, Rows, complete_rows, rows_in
from reservoir_hw.experiment.bench.score import DEVICE, ModelScore, TaskScore, resampled
from reservoir_hw.experiment.bench.standard import Candidate, Fitted, StandardTask, candidates, fitted, standard_tasks
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.run.experiment import Experiment
from reservoir_hw.experiment.run.report import complete, kept_to_the_end
from reservoir_hw.experiment.run.result import write_json
from reservoir_hw.experiment.states.pace import driven_by, steps_driven
from reservoir_hw.experiment.states.progress import Progress
from reservoir_hw.tasks.task import Task

ENCODER = "encoder only"
_RECORDED_SHARE = 0.7
_STEPS_COMPARED = 200
_REPETITIONS = 3


def bench(
    source: str | Path,
    *,
    set: Mapping[str, Any] | Iterable[str] | None = None,
    only: Iterable[str] | None = None,
    quick: bool = False,
    budget: str | None = None,
    folder: str | Path = "runs",
    on_plan: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> BenchResult:
    """Run the standard tasks, or those named by `only`, on one reservoir, beside baselines.

    Parameters
    ----------
    source
        A reservoir file, or an experiment file, of which the section `reservoir` is taken.
    set
        As for an experiment.
    quick
        Short data, one repetition of each task, on a page of its own.
    budget
        Device steps ("20000") or a time ("20m") that the whole bench may take of the device. What earlier calls may
        have taken is subtracted, killed ones included. Fewer repetitions are taken, then the quick form.
    folder
        Where the folder of the bench lies, `bench-` and the name of the file, with a number where that is the folder of
        another file or reservoir. A call takes what is complete in it, and the page has all tasks that are.
    on_plan
        Is told what will be run before anything is.

    A task that does not suit the reservoir is left out and the page says why; one named by `only` is refused. Raises
    `ConfigurationError` for that, for an unknown task or file, and for a budget that is too small, before anything is
    driven but the opening of a device that says what it declares only then. A device fault or Ctrl-C ends the bench,
    and the same call goes on with it.
    """
    return Bench(source, set=set, only=only, quick=quick, budget=budget, folder=folder).run(on_plan, progress)


@dataclass(frozen=True)
class _Form:
    """Short data or not, and how many repetitions."""

    quick: bool
    repetitions: int


@dataclass(frozen=True)
class _Planned:
    """A task that suits the reservoir, with the candidates that suit the task, and what is left to do for it."""

    name: str
    standard: StandardTask
    form: _Form
    task: Mapping[str, Any]
    """The section `task`."""
    reservoir: Fitted
    candidates: Sequence[Candidate] = ()
    left_out: Sequence[str] = ()
    """Which baselines do not suit the task, and why."""
    choosing: Cost = NOTHING
    """What the device is still to be driven for, to choose settings and to judge them."""
    judging: Cost = NOTHING
    is_complete: bool = False


@dataclass
class Bench:
    """A bench that was validated when it was made: see `bench`, which makes and runs one."""

    source: str | Path
    set: Mapping[str, Any] | Iterable[str] | None = None
    only: Iterable[str] | None = None
    quick: bool = False
    budget: str | None = None
    folder: str | Path = "runs"
    _tasks: dict[str, Task] = field(default_factory=dict)
    _declared: dict[int, tuple[ReservoirSpec, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._section = reservoir_section(load_document(self.source, set=self.set))
        self.reservoir: ReservoirConfig = parse_reservoir(self._section)
        self.reservoir.check_machine()
        self._identity = {"file": os.path.relpath(self.source), "reservoir": decisive(self.reservoir)}
        self._folder = _folder_of(Path(self.folder), f"bench-{Path(self.source).stem}", self._identity)
        self._ledger = Ledger(self._folder / "ledger.json")
        limits = None if self.budget is None else parse_budget(self.budget)
        self._standards = known = standard_tasks()
        self._named = list(self.only or ())
        unknown = [name for name in self._named if name not in known]
        if unknown:
            raise ConfigurationError(f"there is no standard task {unknown[0]!r}; there are: {', '.join(known)}")
        replayed = isinstance(self.reservoir, ReplayConfig)
        usual = [name for name, one in known.items() if replayed or not one.of_recordings]
        self._asked = [name for name in known if name in (self._named or usual)]
        quick = _Form(True, 1)
        forms = [quick] if self.quick else [_Form(False, _REPETITIONS), _Form(False, 1), quick]
        self.planned = self._plan(forms[0])
        if not self.planned:
            raise ConfigurationError(f"{self.source}: none of the tasks suits this reservoir: {_joined(self.not_run)}")
        if limits is not None:
            self._fit(forms[1:], *limits)

    def _fit(self, smaller: Sequence[_Form], steps: int | None, seconds: float | None) -> None:
        """Take a smaller form until what the budget has left suffices."""
        spent = self._ledger.spent
        for form in (None, *smaller):
            if form is not None:
                self.planned = self._plan(form)
            left = self.cost
            if seconds is not None and left.seconds is None:
                raise ConfigurationError(
                    f"the budget {self.budget} is a time, but {self.source} declares no step_period_s: give it in "
                    "device steps, for instance --budget 200000"
                )
            if left.steps == 0 or (steps is not None and spent.steps + left.steps <= steps):
                return
            if seconds is not None and (spent.seconds or 0) + (left.seconds or 0) <= seconds:
                return

        def said(cost: Cost) -> str:
            minutes = "" if seconds is None else f", {(cost.seconds or 0) / 60:.3g} minutes,"
            return f"{cost.steps:,} device steps{minutes}"

        earlier = f"earlier calls took up to {said(spent)} of it, and " if spent.steps else ""
        raise ConfigurationError(
            f"the budget {self.budget} is too small: {earlier}at least {said(self.cost)} are needed; "
            "take fewer tasks (--only)"
        )

    @property
    def cost(self) -> Cost:
        """What all tasks are still to take of the device at most."""
        return sum((part for one in self.planned.values() for part in (one.choosing, one.judging)), NOTHING)

    def _plan(self, form: _Form) -> dict[str, _Planned]:
        found = {}
        self.not_run: dict[str, str] = {}
        for name in self._asked:
            try:
                found[name] = self._planned(name, form)
            except ConfigurationError as error:
                if name in self._named:
                    raise ConfigurationError(f"{name}: {error}") from None
                self.not_run[name] = str(error)
        return found

    def _planned(self, name: str, form: _Form) -> _Planned:
        """Raises `ConfigurationError` where the task does not suit the reservoir. Drives nothing.

        More repetitions than are asked for are taken if they are there.
        """
        standard = self._standards[name]
        unfitted = _Planned(name, standard, form, self._task_settings(standard, form), Fitted(self._section))
        own = candidates(DEVICE, [None])
        first = self._judging(unfitted, own[:1])
        # The data of the first repetition.
        task = first.task_of(first.points[0])
        plan = replace(unfitted, reservoir=self._fitted(task))
        choosing, judging = self._choosing(plan, own), self._judging(plan, own[:1])
        costs = self._cost(choosing, task), self._cost(judging, task)
        if isinstance(self.reservoir, ReplayConfig) and not standard.of_recordings:
            self._check_recorded(task, self.reservoir.trace)
        others, left_out = [], []
        encoders = [{"kind": "encoder_only", "of": dict(plan.reservoir.section.data)}]
        for model, reservoirs in {**standard.baselines, ENCODER: encoders}.items():
            suiting = []
            for reservoir in reservoirs:
                tried = Candidate(model, reservoir, 1.0)
                try:
                    experiment = self._choosing(plan, [tried])
                    experiment.estimate()
                    build_reservoir(experiment.points[0].config.reservoir.for_inputs(task.channels))
                    suiting.append(reservoir)
                except ConfigurationError as error:
                    left_out.append(f"{tried.label or model} was left out: {error}")
            others += candidates(model, suiting)
        plan = replace(plan, candidates=[*own, *others], left_out=left_out)
        tried = complete_rows(self._choosing(plan, plan.candidates))
        if tried is None:
            return replace(plan, choosing=costs[0], judging=costs[1])
        chosen = [candidate for candidate, _ in _best_of(plan, tried)]
        for count in sorted({form.repetitions, 1 if form.quick else _REPETITIONS}, reverse=True):
            repeated = replace(plan, form=replace(form, repetitions=count))
            if complete_rows(self._judging(repeated, chosen)) is not None:
                return replace(repeated, is_complete=True)
        return replace(plan, judging=costs[1])

    def _cost(self, experiment: Experiment, first: Task) -> Cost:
        """What the device is driven for; `first` is the task of the first repetition."""
        spec, _ = self._declared[first.inputs]
        costs = experiment.costs()
        steps = sum(cost.device_steps for _, cost in costs)
        if spec.continuity == "replayed" and not hasattr(self.reservoir, "continuity"):
            # It said so only when it was opened.
            driven = [(point, experiment.task_of(point)) for point, cost in costs if cost.device_steps]
            steps += sum(steps_driven(*one, spec) - steps_driven(*one) for one in driven)
        return self._cost_of(steps)

    def _cost_of(self, steps: int) -> Cost:
        period = getattr(self.reservoir, "step_period_s", None)
        return Cost(steps, None if period is None else steps * period)

    def _fitted(self, task: Task) -> Fitted:
        """The section `reservoir`, with the inputs of the task brought into the range of the device."""
        if task.inputs not in self._declared:
            self._declared[task.inputs] = self._ask(task.inputs)
        spec, is_limited = self._declared[task.inputs]
        if task.closed_loop and spec.continuity == "free_running":
            raise ConfigurationError("a closed loop waits for each answer, and a device that runs freely does not")
        return fitted(self._section, self.reservoir, spec, task.train) if is_limited else Fitted(self._section)

    def _ask(self, channels: int) -> tuple[ReservoirSpec, bool]:
        """What the device declares, and whether inputs outside its range are refused."""
        reservoir = build_reservoir(self.reservoir.for_inputs(channels))
        spec = reservoir.given_spec
        if spec is None:
            if steps := driven_by(self.reservoir).opening:
                self._begin_folder()
                self._ledger.begin("opened to ask what it declares", self._cost_of(steps))
            with reservoir:
                spec = reservoir.device_spec
        return spec, reservoir.inputs_are_limited and spec.input_range is not None

    def _check_recorded(self, task: Task, trace: str) -> None:
        """Raise `ConfigurationError` unless the trace holds the inputs that the task begins with."""
        inputs = task.train.inputs[:, :_STEPS_COMPARED]
        with build_reservoir(self.reservoir.for_inputs(inputs.shape[2])) as replay:
            replay.reset(len(inputs))
            try:
                replay.run(inputs)
            except InputRangeError as error:
                raise ConfigurationError(f"the trace {trace} does not hold the inputs of this task") from error

    def _experiment(self, plan: _Planned, what: str, task: Mapping[str, Any], rows: list[dict[str, Any]]) -> Experiment:
        document = Document.from_mapping(
            {
                "title": f"{plan.standard.title}: {what}",
                "task": task,
                "readout": {"kind": "ridge", "washout": plan.standard.washout},
                "training": {"continuous": plan.standard.continuous},
                "run": {"folder": str(self._page_folder(plan.form) / plan.name), "name": what, "states": None},
                "vary": rows,
            },
            f"the standard task {plan.name}",
        )
        document.replace("reservoir", plan.reservoir.section)
        return Experiment(document, what, self._tasks)

    def _begin_folder(self) -> None:
        """It is that of this bench from now on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._folder / "bench.json", self._identity)

    def _page_folder(self, form: _Form) -> Path:
        return self._folder / "quick" if form.quick else self._folder

    def _task_settings(self, standard: StandardTask, form: _Form) -> dict[str, Any]:
        settings = standard.task_settings(quick=form.quick)
        if standard.of_recordings:
            if not isinstance(self.reservoir, ReplayConfig):
                raise ConfigurationError("this task is for recordings: a reservoir of kind replay")
            trace = self.reservoir.trace
            recorded = next((one.steps for one in StateStore.open(trace).datasets.values()), 0)
            settings |= {"trace": trace, "train_steps": max(2, int(_RECORDED_SHARE * recorded))}
        return settings

    def _choosing(self, plan: _Planned, tried: Sequence[Candidate]) -> Experiment:
        """All candidates, judged on the last part of the training of the first repetition."""
        first = {key.removeprefix("task."): values[0] for key, values in plan.standard.vary.items()}
        task = {"kind": "validation", "task": {**plan.task, **first}}
        return self._experiment(plan, "choose", task, [one.row for one in tried])

    def _judging(self, plan: _Planned, chosen: Sequence[Candidate]) -> Experiment:
        """What was chosen, on the test of each repetition: the rows of a candidate follow one another."""
        repeated = [
            {key: value} for key, values in plan.standard.vary.items() for value in values[: plan.form.repetitions]
        ] or [{}]
        return self._experiment(plan, "test", plan.task, [{**one.row, **more} for one in chosen for more in repeated])

    def run(self, on_plan: Callable[[str], None] | None = None, progress: Progress | None = None) -> BenchResult:
        """Run what is not complete yet, and write the page."""
        form = next(iter(self.planned.values())).form
        folder, spent = self._page_folder(form), self._ledger.spent.steps
        if on_plan is not None:
            tasks = "1 task" if len(self.planned) == 1 else f"{len(self.planned)} tasks"
            earlier = f"; earlier calls took up to {spent:,}" if spent else ""
            on_plan(
                f"{tasks}, at most {self.cost.steps:,} device steps of {self.reservoir.name}{earlier}"
                f"; the page will be {folder / 'report.html'}"
            )
        self._begin_folder()
        folder.mkdir(exist_ok=True)
        resolved = {"reservoir": self.reservoir.model_dump(mode="json", serialize_as_any=True)}
        result = BenchResult(
            title=f"Standard tasks on {self.reservoir.name}" + (" (quick form)" if form.quick else ""),
            folder=folder,
            provenance={**provenance.collect(resolved), "rows": []},
            device=self.reservoir.name,
            not_run=dict(self.not_run),
        )
        plans = self._earlier(form) | self.planned
        try:
            with kept_to_the_end(result, lambda: bool(result.scores)):
                for plan in plans.values():
                    if plan.is_complete:
                        self._score(plan, result, progress)
                result.save()
                for name, plan in self.planned.items():
                    if plan.is_complete:
                        continue
                    try:
                        self._score(plan, result, progress)
                    except (DeviceError, StateLost):
                        raise
                    except ReservoirError as error:
                        if name in self._named:
                            raise ConfigurationError(f"{name}: {error}") from error
                        result.not_run[name] = str(error)
                    result.save()
                if not result.scores:
                    raise ConfigurationError(f"{self.source}: no task could be run: {_joined(result.not_run)}")
                complete(result)
        except BaseException as error:
            if not isinstance(error, ConfigurationError):
                there = sum(name in result.scores for name in self.planned)
                error.add_note(f"{there} of {len(self.planned)} tasks are in {folder}; the same command goes on")
            raise
        return result

    def _earlier(self, form: _Form) -> dict[str, _Planned]:
        """Other tasks that an earlier call has completed in this form: they stay on the page."""
        found = {}
        for name in self._standards:
            if name not in self._asked and (self._page_folder(form) / name).is_dir():
                with contextlib.suppress(ConfigurationError):
                    found[name] = self._planned(name, replace(form, repetitions=1))
        return {name: plan for name, plan in found.items() if plan.is_complete}

    def _rows(self, plan: _Planned, experiment: Experiment, cost: Cost, progress: Progress | None) -> Rows:
        """Those of a complete run, or of a new one, which is written down before it begins."""
        found = complete_rows(experiment)
        if found is not None:
            return found

        def say(what: str, at: int, total: int) -> None:
            if progress is not None:
                progress(f"{plan.name}: {what}", at, total)

        self._ledger.begin(f"{experiment.config.run.folder}/{experiment.name}", cost)
        return rows_in(experiment.run(say, report=False).folder)

    def _score(self, plan: _Planned, result: BenchResult, progress: Progress | None) -> None:
        """Choose and judge, as far as that was not done, and put what was found into the result."""
        standard, choosing = plan.standard, self._choosing(plan, plan.candidates)
        chosen = _best_of(plan, self._rows(plan, choosing, plan.choosing, progress))
        judging = self._judging(plan, [candidate for candidate, _ in chosen])
        test = self._rows(plan, judging, plan.judging, progress)
        count = len(test.metrics) // len(chosen)
        firsts = range(0, len(test.metrics), count)
        drawn: Sequence[Any] = [None] * len(chosen)
        if count == 1:
            outputs = [test.outputs(first) for first in firsts]
            drawn = list(resampled(judging.task_of(judging.points[0]), outputs, standard.metric, standard.worst))
        models = {
            candidate.model: ModelScore(
                label=candidate.label,
                alpha=candidate.alpha,
                tried=sum(one.model == candidate.model for one in plan.candidates),
                loss=loss,
                weights=test.weights(first),
                metrics=test.metrics[first : first + count],
                resampled=found,
            )
            for (candidate, loss), first, found in zip(chosen, firsts, drawn, strict=True)
        }
        result.provenance["rows"].append(test.provenance[0])
        result.add(plan.name, TaskScore(standard, models), plan.reservoir.what, test.warnings, plan.left_out)


def _best_of(plan: _Planned, rows: Rows) -> list[tuple[Candidate, float]]:
    """The first of the best candidates of each model, with its loss."""
    sign = -1 if plan.standard.larger_is_better and plan.standard.chosen_by is None else 1
    best: dict[str, tuple[float, Candidate]] = {}
    for candidate, metrics in zip(plan.candidates, rows.metrics, strict=True):
        found = metrics.get(plan.standard.chosen_by or plan.standard.metric)
        loss = float("inf") if found is None else sign * found
        if candidate.model not in best or loss < best[candidate.model][0]:
            best[candidate.model] = loss, candidate
    return [(candidate, loss) for loss, candidate in best.values()]


def _folder_of(parent: Path, name: str, identity: Mapping[str, Any]) -> Path:
    """The first of `name`, `name-2`, ... that is not the folder of another bench."""
    folders = (parent / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))
    return next(folder for folder in folders if not folder.exists() or _identity_in(folder) == identity)


def _identity_in(folder: Path) -> Any:
    path = folder / "bench.json"
    return json.loads(path.read_text()) if path.exists() else None


def _joined(reasons: Mapping[str, str]) -> str:
    distinct = dict.fromkeys(reasons.values())
    return next(iter(distinct)) if len(distinct) == 1 else "; ".join(f"{name}: {why}" for name, why in reasons.items())
