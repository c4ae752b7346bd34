"""Looking for good settings: trials of an experiment with other values of some keys, chosen by Optuna."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from reservoir_hw.core import provenance
from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceError,
    DeviceFault,
    MissingExtra,
    ReservoirError,
    StateLost,
)
from reservoir_hw.core.files import make_folder
from reservoir_hw.core.threads import share_cores
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import drop_baselines
from reservoir_hw.experiment.configuration.identity import identity_of
from reservoir_hw.experiment.run.by_gradients import VALIDATION
from reservoir_hw.experiment.run.estimate import Estimate
from reservoir_hw.experiment.run.experiment import Experiment
from reservoir_hw.experiment.run.open_device import OpenDevice
from reservoir_hw.experiment.run.report import write_report
from reservoir_hw.experiment.run.result import how_it_ended, write_yaml
from reservoir_hw.experiment.states.progress import Progress
from reservoir_hw.experiment.sweeps.result import SweepResult, Trial, short_names
from reservoir_hw.experiment.sweeps.space import example_trial, search_space, with_values
from reservoir_hw.tasks.task import Row, Task

if TYPE_CHECKING:
    from reservoir_hw.experiment.sweeps.study import Study


def sweep(
    source: str | Path | Document | Mapping[str, Any],
    *,
    reservoir: str | Path | None = None,
    set: Mapping[str, Any] | Iterable[str] | None = None,
    trials: int | None = None,
    name: str | None = None,
    storage: str | None = None,
    on_plan: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Run the trials that the section `sweep:` of an experiment asks for, or those that are missing.

    Parameters
    ----------
    source
        An experiment file, or a mapping with the same keys.
    reservoir, set
        As for an experiment: a reservoir file that replaces the section, and single values.
    trials, name, storage
        Instead of `sweep.trials`, `sweep.name` and `sweep.storage`.
    on_plan
        Gets a sentence about what will be done, and what a trial costs, before the first one.

    The trials are kept in a study, in which any number of processes take part; the same call goes on with it. Raises
    `ConfigurationError` before the first trial for a mistake in the file and for a study of another experiment,
    `MissingExtra` without Optuna, and whatever ends the sweep: a device that another process has, too many failures
    in a row, Ctrl-C. What was finished is kept.
    """
    own = "experiment"
    if isinstance(source, str | Path):
        document = load_document(source, reservoir=reservoir, set=set)
        own = f"{Path(source).resolve().parent.name}-{Path(source).stem}"
    elif reservoir is not None or set is not None:
        raise ConfigurationError("`reservoir` and `set` go over a file; a mapping can be changed beforehand")
    elif isinstance(source, Document):
        document = Document.copy_of(source)
    else:
        document = Document.from_mapping(source, "the given mapping")
    if isinstance(document.data.get("sweep"), dict):
        for key, value in {"trials": trials, "name": name, "storage": storage}.items():
            if value is not None:
                document.set(f"sweep.{key}", value, f"--{key}")
    return Sweep(document, own).run(progress, on_plan)


class Sweep:
    """A validated sweep: both ends of every range and every choice were tried in the experiment when it was made."""

    def __init__(self, document: Document | Mapping[str, Any], name: str = "experiment") -> None:
        if not isinstance(document, Document):
            document = Document.from_mapping(document, "the given mapping")
        if "sweep" not in document.data and document.data.get("reservoir", {}).get("search"):
            # The reservoir says what is searched; all else has a default.
            document = Document.copy_of(document)
            document.set("sweep", {}, document.origin(("reservoir", "search")))
        self._document = document
        self._tasks: dict[str, Task] = {}
        self.experiment = Experiment(document, name, self._tasks)
        if self.experiment.config.sweep is None:
            raise ConfigurationError(
                f"{document.origin(())}: there is no section `sweep:` that says what to search, for instance "
                "{metric: nrmse, search: {readout.alpha: {low: 1e-9, high: 1, log: true}}}"
            )
        self.config = self.experiment.config.sweep
        self.name = self.config.name or self.experiment.name
        if self.name in {"", ".", ".."} or any(character in self.name for character in "/\\\0"):
            raise ConfigurationError(
                f"{document.origin(('sweep', 'name'))}: sweep.name: {self.name!r} is to be the name of a folder, "
                "without separators; run.folder says where that lies"
            )
        self.folder = Path(self.experiment.config.run.folder) / "sweeps" / self.name
        self._url = self.config.storage or f"sqlite:///{self.folder / 'study.db'}"
        self._points = len(self.experiment.points)
        if self.config.pruning == "median" and self._points < 2:
            raise ConfigurationError(
                f"{document.origin(('sweep', 'pruning'))}: sweep.pruning: a trial is given up between two points of "
                "`vary`, and there is only one; vary a seed, or set pruning: none"
            )
        if self.experiment.config.run.record is not None:
            raise ConfigurationError(
                f"{document.origin(('run', 'record'))}: run.record: a sweep records nothing; record a run of the best "
                "setting afterwards"
            )
        self.space = search_space(document, self.config)
        self._device = OpenDevice(_by_way_of(self.space))

    def estimate(self) -> Estimate:
        """What a trial will cost, after everything was checked that can be without a device. Makes the task's data."""
        cost = self.experiment.estimate()
        self._check_metric()
        return cost

    def check_machine(self) -> None:
        """Raise `ConfigurationError` where this machine lacks what a trial needs. Opens no device."""
        Experiment(example_trial(self._document, self.space), self.name, self._tasks).check_machine()

    def run(self, progress: Progress | None = None, on_plan: Callable[[str], None] | None = None) -> SweepResult:
        """Run trials until as many are there as are wanted; then write the best and the report. See `sweep`."""
        if find_spec("optuna") is None:
            raise MissingExtra("a sweep needs optuna: pip install 'reservoir-hw[train]'")
        from reservoir_hw.experiment.sweeps.storage import worker
        from reservoir_hw.experiment.sweeps.study import Study

        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise ConfigurationError(
                "the processes that torchrun starts would share every training: start the workers of a sweep one by "
                "one, or with srun: they share its trials"
            )
        self.check_machine()
        cost = self.estimate()
        direction = self.config.direction
        assert direction is not None
        title = self.experiment.config.title or self.experiment.name
        if on_plan is not None:
            on_plan(f"{title}: {describe(self)}; each {cost}")
        make_folder(self.folder, "--set run.folder=PATH")
        resolved = self.experiment.resolved()
        identity = identity_of(resolved, self.config, self.space)
        study = Study(self._url, self.name, self.folder, self.config, self.space, identity, self._document)
        result = SweepResult(
            title=f"Sweep of {title}",
            folder=self.folder,
            study=self.name,
            storage=study.storage,
            metric=self.config.metric,
            direction=direction,
            wanted=self.config.trials,
            space=self.space,
            provenance=provenance.collect(resolved) | {"rows": []},
        )
        try:
            with worker(self.folder) as who, self._device:
                there = len([trial for trial in study.trials() if trial.counts])
                if there > self.config.trials:
                    result.notes.append(
                        f"{there} trials are there already, more than the {self.config.trials} that are wanted in all: "
                        "none was run"
                    )
                self._run_trials(study, who, result, cost, progress)
            self._finish(study, result)
            if result.rows and not result.complete:
                raise ConfigurationError(
                    f"none of the {len(result.rows)} trials came to its end: {result.rows[-1].problem}"
                )
        except BaseException as error:
            result.status, result.problem = how_it_ended(error)
            # The error itself goes on to the caller; a full disk or a lost database must not hide it.
            with contextlib.suppress(Exception):
                self._finish(study, result)
            error.add_note(
                f"{len(result.rows)} of {result.wanted} trials are in {result.storage}; the same command goes on"
            )
            raise
        return result

    def _run_trials(
        self, study: Study, who: dict[str, Any], result: SweepResult, cost: Estimate, progress: Progress | None
    ) -> None:
        failures = 0
        while True:
            study.give_up_dead()
            result.trials = study.trials()
            if len(result.rows) + sum(trial.running for trial in result.trials) >= self.config.trials:
                return
            share_cores(
                1 + sum(trial.running and trial.worker.get("host") == platform.node() for trial in result.trials)
            )
            best = "" if result.best is None else f", best {result.best.objective:.4g}"
            say = _progress_of_trial(progress, len(result.rows), self.config.trials, cost.device_steps, best)
            error = study.run_trial(who, functools.partial(self._evaluate, say, result.notes))
            failures = 0 if error is None else failures + 1
            if error is not None and failures == self.config.stop_after_failures:
                kind = DeviceFault if isinstance(error, DeviceError | StateLost) else ConfigurationError
                result.trials = study.trials()
                why = str(error) or type(error).__name__
                raise kind(
                    f"{failures} trials in a row failed, the last one with: {why} (see sweep.stop_after_failures)"
                ) from error

    def _evaluate(
        self,
        progress: Progress | None,
        notes: list[str],
        number: int,
        values: dict[str, Any],
        found: dict[str, Any],
        report: Callable[[float, int], None],
    ) -> float:
        """Run the experiment with these values; `found` takes what is kept of it, as it comes."""
        rows: list[dict[str, Any]] = found.setdefault("rows", [])
        metric = self.config.metric

        def on_row(row: Row) -> None:
            value = row.evaluation.metrics.get(metric)
            if value is None or not math.isfinite(value):
                at = ", ".join(f"{key} = {value}" for key, value in row.point.items())
                what = f"there is no {metric}" if value is None else f"{metric} is {value}"
                raise ReservoirError(what + (f" at {at}" if at else ""))
            rows.append({"label": row.label, "point": dict(row.point), "metrics": row.evaluation.metrics})
            found["metrics"] = _means([known["metrics"] for known in rows])
            if len(rows) < self._points:
                report(found["metrics"][metric], len(rows))

        with contextlib.ExitStack() as stack:
            folder, name = self.folder / "trials", f"{number:04d}"
            if not self.config.keep_runs:
                temporary = tempfile.TemporaryDirectory(prefix="reservoir_hw-trial-")
                folder, name = Path(stack.enter_context(temporary)), "trial"
                stack.enter_context(_unmentioned(folder))
            document = with_values(self._document, values)
            drop_baselines(document)
            document.set("run.folder", str(folder), "the sweep")
            document.set("run.name", name, "the sweep")
            # Data of many tasks would fill the memory, and none would be used again.
            shared = None if any(key.startswith("task.") for key in values) else self._tasks
            result = Experiment(document, tasks=shared, device=self._device).run(progress, report=False, on_row=on_row)
        devices = [known["reservoir"]["identity"] for known in result.provenance["rows"] if "reservoir" in known]
        found["devices"] = [device for at, device in enumerate(devices) if device not in devices[:at]]
        notes += [note for note in result.notes if note not in notes]
        return found["metrics"][metric]

    def _check_metric(self) -> None:
        """Ask the tasks what they judge by, with the answers that are wanted, and which way that gets better."""
        names = dict.fromkeys(name for task in self._tasks.values() for name in self.experiment.metrics_on(task))
        if not self.config.metric:
            scores = {task.score for task in self._tasks.values()}
            self.config = self.config.model_copy(update={"metric": scores.pop() if len(scores) == 1 else ""})
        if self.config.metric not in names:
            raise ConfigurationError(
                f"{self._document.origin(('sweep', 'metric'))}: sweep.metric: the task has no metric "
                f"{self.config.metric!r}; it has: {', '.join(names)}"
            )
        if self.config.direction is None:
            told = {task.direction_of(self.config.metric) for task in self._tasks.values()}
            direction = "minimize" if self.config.metric == VALIDATION else told.pop() if len(told) == 1 else None
            if direction is None:
                raise ConfigurationError(
                    f"{self._document.origin(('sweep', 'metric'))}: sweep.metric: the task does not say which way "
                    f"{self.config.metric} gets better: set sweep.direction to minimize or maximize"
                )
            self.config = self.config.model_copy(update={"direction": direction})

    def _finish(self, study: Study, result: SweepResult) -> None:
        """Write what is known by now of all trials, those of other processes included."""
        result.trials = study.trials()
        result.importances = study.importances()
        if result.status == "running":
            others = [trial for trial in result.trials if trial.running]
            result.status = "complete" if len(result.rows) >= result.wanted else "unfinished"
            if others:
                result.notes.append(_at_work(others))
        with FileLock(self.folder / ".writing"):
            best = result.best
            if best is not None:
                result.provenance["rows"] = [{"reservoir": {"identity": device}} for device in best.devices]
                self._write_best(best, result)
                write_report(result)
            result.save()

    def _write_best(self, best: Trial, result: SweepResult) -> None:
        from ruamel.yaml.comments import CommentedMap

        resolved = Experiment(with_values(self._document, best.values)).resolved()
        resolved.pop("sweep")
        file = CommentedMap(resolved)
        file.yaml_set_start_comment(
            f"Trial {best.number} of the study {result.study}, the best of {len(result.complete)} by "
            f"{result.metric}: {best.objective:.6g}"
        )
        write_yaml(result.best_file, file)


def describe(sweep: Sweep) -> str:
    """One line for people, when the estimate has found the direction."""
    config, keys = sweep.config, ", ".join(short_names(sweep.space).values())
    doing = f"{str(config.direction)[:-1]}ing {config.metric}"
    return f"a sweep of {config.trials} trials ({config.sampler}) over {keys}, {doing}"


def _progress_of_trial(
    progress: Progress | None, done: int, wanted: int, steps: int, best: str
) -> Callable[[str, int, int], None] | None:
    """One report over all trials, in steps of the experiment as it stands in the file."""
    if progress is None:
        return None
    name = f"trial {done + 1} of {wanted}{best}"
    return lambda what, at, total: progress(
        f"{name}: {what}", round((done + at / max(total, 1)) * steps), wanted * steps
    )


@contextlib.contextmanager
def _unmentioned(folder: Path) -> Iterator[None]:
    """Nobody is sent to a folder that is deleted: the clauses of messages that name it are left out."""

    def remains(text: str) -> str:
        return "; ".join(clause for clause in text.split("; ") if str(folder) not in clause)

    def shorten(record: logging.LogRecord) -> bool:
        record.msg, record.args = remains(record.getMessage()), None
        return bool(record.msg)

    # Its own logger says how a training was stopped.
    training = logging.getLogger("reservoir_hw.readout.training.loop")
    training.addFilter(shorten)
    try:
        yield
    except BaseException as error:
        # An error that says nothing else may say it.
        error.args = tuple((remains(given) or given) if isinstance(given, str) else given for given in error.args)
        error.__notes__ = [note for note in getattr(error, "__notes__", []) if str(folder) not in note]
        raise
    finally:
        training.removeFilter(shorten)


def _means(metrics: list[dict[str, float]]) -> dict[str, float]:
    common = [name for name in metrics[0] if all(name in one for one in metrics)]
    return {name: float(np.mean([one[name] for one in metrics])) for name in common}


def _at_work(trials: list[Trial]) -> str:
    from reservoir_hw.experiment.sweeps.storage import LOCKED_S

    return "other processes are still at work: " + ", ".join(
        f"trial {t.number} on {t.worker['host']} (process {t.worker['pid']})"
        if t.worker
        else f"trial {t.number}, just begun (if its process has died, the same command finds out {LOCKED_S} s later)"
        for t in trials
    )


def _by_way_of(space: Mapping[str, Dimension]) -> dict[str, tuple[float, float]]:
    """Of each knob that is searched, by name: the highest and the lowest of its values."""
    found: dict[str, tuple[float, float]] = {}
    for key, dimension in space.items():
        name, ends = key.removeprefix("reservoir.knobs."), dimension.extremes()
        if name != key and all(isinstance(end, int | float) for end in ends):
            found[name] = float(max(ends)), float(min(ends))
    return found
