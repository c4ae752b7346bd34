"""One reservoir on all standard tasks: two experiments for each task, one to choose settings, one to judge them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors

from reservoir_hw.backends.replay import ReplayConfig
from reservoir_hw.core import provenance
from reservoir_hw.core.budget import parse_budget
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceError, InputRangeError, ReservoirError, StateLost
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir, reservoir_section
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.bench.result import BenchResult
from reservoir_hw.experiment.bench.score import DEVICE, ModelScore, TaskScore
from reservoir_hw.experiment.bench.standard import ALPHAS, StandardTask, standard_tasks
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.labels import short
from reservoir_hw.experiment.run.experiment import Experiment
from reservoir_hw.experiment.run.folder import change_since
from reservoir_hw.experiment.run.report import write_report
from reservoir_hw.experiment.run.result import how_it_ended
from reservoir_hw.experiment.states.progress import Progress
from reservoir_hw.tasks.task import Task

ENCODER = "encoder only"
_RECORDED_SHARE = 0.7
_STEPS_COMPARED = 200


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
        Short data, one repetition of each task.
    budget
        Device steps ("20000") or a time ("20m") that the whole bench may take of the device, earlier calls included:
        fewer repetitions are taken, then the quick form.
    folder
        Where the folder of the bench lies, `bench-` and the name of the file. A call that finds runs in it takes those
        that are complete and were made with the same settings.
    on_plan
        Is told what will be run before anything is.

    A task that does not suit the reservoir is left out and the page says why; one named by `only` is refused. Raises
    `ConfigurationError` for that, for an unknown task or file, and for a budget that is too small, before anything is
    driven. A device fault or Ctrl-C ends the bench, and the same call goes on with it.
    """
    return Bench(source, set=set, only=only, quick=quick, budget=budget, folder=folder).run(on_plan, progress)


@dataclass(frozen=True)
class _Candidate:
    """A setting that is tried: of which model, the reservoir (None is the device itself), and the penalty."""

    model: str
    reservoir: dict[str, Any] | None
    alpha: float

    @property
    def label(self) -> str:
        """A baseline with its settings, without the device that an encoder is of; nothing for the device."""
        return "" if self.reservoir is None else short({key: v for key, v in self.reservoir.items() if key != "of"})

    @property
    def row(self) -> dict[str, Any]:
        """As a row of `vary`."""
        of_reservoir = {} if self.reservoir is None else {"reservoir": self.reservoir}
        return {**of_reservoir, "readout.alpha": self.alpha}


@dataclass(frozen=True)
class _Planned:
    """A task that suits the reservoir, and the candidates that suit the task."""

    standard: StandardTask
    candidates: Sequence[_Candidate]
    quick: bool
    repetitions: int
    device_steps: int
    hours: float | None
    left_out: Sequence[str] = ()
    """Which baselines do not suit the task, and why."""


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

    def __post_init__(self) -> None:
        self._section = reservoir_section(load_document(self.source, set=self.set))
        self.reservoir: ReservoirConfig = parse_reservoir(self._section)
        self.reservoir.check_machine()
        self._name = f"bench-{Path(self.source).stem}"
        self._folder = Path(self.folder) / self._name
        limits = None if self.budget is None else parse_budget(self.budget)
        known = standard_tasks()
        self._named = list(self.only or ())
        unknown = [name for name in self._named if name not in known]
        if unknown:
            raise ConfigurationError(f"there is no standard task {unknown[0]!r}; there are: {', '.join(known)}")
        replayed = isinstance(self.reservoir, ReplayConfig)
        usual = [name for name, one in known.items() if replayed or not one.of_recordings]
        self._standards = {name: one for name, one in known.items() if name in (self._named or usual)}
        self.not_run: dict[str, str] = {}
        forms = [(True, 1)] if self.quick else [(False, 3), (False, 1), (True, 1)]
        self.planned = self._plan(*forms[0])
        if not self.planned:
            raise ConfigurationError(f"{self.source}: none of the tasks suits this reservoir: {_joined(self.not_run)}")
        if limits is not None:
            self._fit(forms[1:], *limits)

    def _fit(self, forms: Sequence[tuple[bool, int]], steps: int | None, seconds: float | None) -> None:
        """Take a smaller form until the budget suffices."""
        for form in (None, *forms):
            if form is not None:
                self.not_run.clear()
                self.planned = self._plan(*form)
            if seconds is not None and any(one.hours is None for one in self.planned.values()):
                raise ConfigurationError(
                    f"the budget {self.budget} is a time, but {self.source} declares no step_period_s: give it in "
                    "device steps, for instance --budget 200000"
                )
            if steps is not None and self.device_steps <= steps:
                return
            if seconds is not None and 3600 * sum(one.hours or 0.0 for one in self.planned.values()) <= seconds:
                return
        needed = f"{self.device_steps:,} device steps"
        if seconds is not None:
            needed += f", {60 * sum(one.hours or 0.0 for one in self.planned.values()):.3g} minutes,"
        raise ConfigurationError(
            f"the budget {self.budget} is too small: at least {needed} are needed; take fewer tasks (--only)"
        )

    @property
    def device_steps(self) -> int:
        """What all tasks take of the device at most."""
        return sum(one.device_steps for one in self.planned.values())

    def _plan(self, quick: bool, repetitions: int) -> dict[str, _Planned]:
        found = {}
        for name, standard in self._standards.items():
            try:
                found[name] = self._planned(name, standard, quick, repetitions)
            except ConfigurationError as error:
                if name in self._named:
                    raise ConfigurationError(f"{name}: {error}") from None
                self.not_run[name] = str(error)
        return found

    def _planned(self, name: str, standard: StandardTask, quick: bool, repetitions: int) -> _Planned:
        """Raises `ConfigurationError` where the task does not suit the reservoir. Opens no device."""
        plan = _Planned(standard, [], quick, repetitions, 0, None)
        own = [_Candidate(DEVICE, None, alpha) for alpha in ALPHAS]
        chosen = self._choosing(name, plan, own)
        judged = self._judging(name, plan, own[:1])
        costs = [chosen.estimate(), judged.estimate()]
        if isinstance(self.reservoir, ReplayConfig) and not standard.of_recordings:
            self._check_recorded(chosen, self.reservoir.trace)
        candidates, left_out = own, []
        others = {**standard.baselines, ENCODER: [{"kind": "encoder_only", "of": dict(self._section.data)}]}
        for model, reservoirs in others.items():
            for reservoir in reservoirs:
                tried = [_Candidate(model, reservoir, alpha) for alpha in ALPHAS]
                try:
                    experiment = self._choosing(name, plan, tried[:1])
                    experiment.estimate()
                    config = experiment.points[0].config
                    build_reservoir(config.reservoir.for_inputs(self._task_of(experiment).inputs))
                    candidates += tried
                except ConfigurationError as error:
                    left_out.append(f"{tried[0].label} was left out: {error}")
        hours = None if any(cost.hours is None for cost in costs) else sum(cost.hours or 0.0 for cost in costs)
        steps = sum(cost.device_steps for cost in costs)
        return _Planned(standard, candidates, quick, repetitions, steps, hours, left_out)

    def _task_of(self, experiment: Experiment) -> Task:
        """The data of an experiment whose cost was estimated."""
        return self._tasks[experiment.config.task.model_dump_json()]

    def _check_recorded(self, experiment: Experiment, trace: str) -> None:
        """Raise `ConfigurationError` unless the trace holds the inputs that the task begins with."""
        inputs = self._task_of(experiment).train.inputs[:, :_STEPS_COMPARED]
        with build_reservoir(self.reservoir.for_inputs(inputs.shape[2])) as replay:
            replay.reset(len(inputs))
            try:
                replay.run(inputs)
            except InputRangeError as error:
                raise ConfigurationError(f"the trace {trace} does not hold the inputs of this task") from error

    def _experiment(self, name: str, plan: _Planned, what: str, task: Any, rows: list[dict[str, Any]]) -> Experiment:
        document = Document.from_mapping(
            {
                "title": f"{plan.standard.title}: {what}",
                "task": task,
                "readout": {"kind": "ridge", "washout": plan.standard.washout},
                "training": {"continuous": plan.standard.continuous},
                "run": {"folder": str(self._folder / name), "name": what, "states": None},
                "vary": rows,
            },
            f"the standard task {name}",
        )
        document.replace("reservoir", self._section)
        return Experiment(document, what, self._tasks)

    def _task_settings(self, plan: _Planned) -> dict[str, Any]:
        settings = plan.standard.task_settings(quick=plan.quick)
        if plan.standard.of_recordings:
            if not isinstance(self.reservoir, ReplayConfig):
                raise ConfigurationError("this task is for recordings: a reservoir of kind replay")
            trace = self.reservoir.trace
            recorded = next((one.steps for one in StateStore.open(trace).datasets.values()), 0)
            settings |= {"trace": trace, "train_steps": max(2, int(_RECORDED_SHARE * recorded))}
        return settings

    def _choosing(self, name: str, plan: _Planned, candidates: Sequence[_Candidate]) -> Experiment:
        """All candidates, judged on the last part of the training of the first repetition."""
        settings = self._task_settings(plan)
        for key, values in plan.standard.vary.items():
            settings[key.removeprefix("task.")] = values[0]
        return self._experiment(
            name, plan, "choose", {"kind": "validation", "task": settings}, [one.row for one in candidates]
        )

    def _judging(self, name: str, plan: _Planned, chosen: Sequence[_Candidate]) -> Experiment:
        """What was chosen, on the test of each repetition: the rows of a candidate follow one another."""
        repeated = [
            {key: value} for key, values in plan.standard.vary.items() for value in values[: plan.repetitions]
        ] or [{}]
        rows = [{**one.row, **more} for one in chosen for more in repeated]
        return self._experiment(name, plan, "test", self._task_settings(plan), rows)

    def run(self, on_plan: Callable[[str], None] | None = None, progress: Progress | None = None) -> BenchResult:
        """Run what is not complete yet, and write the page."""
        if on_plan is not None:
            on_plan(f"{len(self.planned)} tasks, at most {self.device_steps:,} device steps of {self.reservoir.name}")
        resolved = {"reservoir": self.reservoir.model_dump(mode="json", serialize_as_any=True)}
        self._folder.mkdir(parents=True, exist_ok=True)
        result = BenchResult(
            title=f"Standard tasks on {self.reservoir.name}" + (" (quick form)" if self._is_quick else ""),
            folder=self._folder,
            provenance={**provenance.collect(resolved), "rows": []},
            device=self.reservoir.name,
            not_run=dict(self.not_run),
        )
        result.save()
        try:
            for name, plan in self.planned.items():
                try:
                    self._run_task(name, plan, result, progress)
                except (DeviceError, StateLost):
                    raise
                except ReservoirError as error:
                    if name in self._named:
                        raise ConfigurationError(f"{name}: {error}") from error
                    result.not_run[name] = str(error)
                result.save()
            if not result.scores:
                raise ConfigurationError(f"{self.source}: no task could be run: {_joined(result.not_run)}")
            result.status = "complete"
            write_report(result)
            result.save()
        except BaseException as error:
            result.status, result.problem = how_it_ended(error)
            if not isinstance(error, ConfigurationError):
                error.add_note(
                    f"{len(result.scores)} of {len(self.planned)} tasks are in {self._folder}; the same command goes on"
                )
            # The error itself goes on to the caller; a full disk must not hide it.
            with contextlib.suppress(Exception):
                result.save()
                if result.scores:
                    write_report(result)
            raise
        return result

    @property
    def _is_quick(self) -> bool:
        return any(plan.quick for plan in self.planned.values())

    def _run_task(self, name: str, plan: _Planned, result: BenchResult, progress: Progress | None) -> None:
        standard = plan.standard

        def say(what: str, at: int, total: int) -> None:
            if progress is not None:
                progress(f"{name}: {what}", at, total)

        rows = _finished_rows(self._choosing(name, plan, plan.candidates), say)
        chosen: dict[str, tuple[float, _Candidate]] = {}
        sign = -1 if standard.larger_is_better and standard.chosen_by is None else 1
        for candidate, row in zip(plan.candidates, rows.metrics, strict=True):
            found = row["metrics"].get(standard.chosen_by or standard.metric)
            loss = float("inf") if found is None else sign * found
            if candidate.model not in chosen or loss < chosen[candidate.model][0]:
                chosen[candidate.model] = loss, candidate
        best = [candidate for _, candidate in chosen.values()]
        test = _finished_rows(self._judging(name, plan, best), say)
        count = len(test.metrics) // len(best)
        models = {}
        for number, candidate in enumerate(best):
            mine = test.metrics[number * count : (number + 1) * count]
            models[candidate.model] = ModelScore(
                label=candidate.label,
                alpha=candidate.alpha,
                tried=sum(one.model == candidate.model for one in plan.candidates),
                weights=test.weights(number * count),
                metrics=[row["metrics"] for row in mine],
            )
            if candidate.model == DEVICE:
                result.provenance["rows"] += test.provenance[number * count : number * count + 1]
        result.warn_of(name, [*plan.left_out, *test.warnings])
        result.scores[name] = TaskScore(standard, models)


@dataclass(frozen=True)
class _Rows:
    """What a complete run folder holds of its rows."""

    folder: Path
    metrics: list[dict[str, Any]]
    provenance: list[dict[str, Any]]
    warnings: list[str]

    def weights(self, row: int) -> int:
        """How many states the readout of a row has weights for."""
        with safetensors.safe_open(self.folder / self.provenance[row]["readout"]["file"], "numpy") as file:
            return file.get_slice("weights").get_shape()[1]


def _finished_rows(experiment: Experiment, progress: Progress) -> _Rows:
    """Those of a complete run with these settings in its folder, or of a new one."""
    resolved = experiment.resolved()
    parent = Path(experiment.config.run.folder)
    for folder in sorted(parent.glob(f"{experiment.name}-*")):
        if _is_complete(folder) and change_since(folder, resolved) is None:
            return _rows_in(folder)
    return _rows_in(experiment.run(progress, report=False).folder)


def _is_complete(folder: Path) -> bool:
    try:
        return json.loads((folder / "provenance.json").read_text())["status"] == "complete"
    except (OSError, ValueError, KeyError):
        return False


def _rows_in(folder: Path) -> _Rows:
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = json.loads((folder / "provenance.json").read_text())["rows"]
    return _Rows(folder, metrics["rows"], rows, metrics["warnings"])


def _joined(reasons: Mapping[str, str]) -> str:
    distinct = dict.fromkeys(reasons.values())
    return next(iter(distinct)) if len(distinct) == 1 else "; ".join(f"{name}: {why}" for name, why in reasons.items())
