"""The study behind a sweep: its trials and who is at work on them. Needs the `train` extra.

Optuna keeps every trial in a database at once, so what was finished outlives any death. It is imported at the top of
this module, which is imported when a sweep begins.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, MissingExtra, ReservoirError
from reservoir_hw.core.interrupts import HeldInterrupts, stop_if_asked
from reservoir_hw.core.provenance import configuration_hash, plain, without_password
from reservoir_hw.core.seeds import generator
from reservoir_hw.experiment.configuration.identity import check_identity
from reservoir_hw.experiment.configuration.sweep import SweepConfig
from reservoir_hw.experiment.sweeps.result import Status, Trial
from reservoir_hw.experiment.sweeps.storage import (
    HEARTBEAT_S,
    LOCKED_S,
    connected,
    dead_workers,
    experimental,
    forget_workers,
    open_storage,
    signs_of_life,
    silent,
)

log = logging.getLogger(__name__)

_FEWEST_FOR_IMPORTANCE = 30

_DIED_TWICE = (
    "its process died twice while it ran: out of memory, a crash or kill -9; run the experiment with these values "
    "alone to see which"
)


_STATUS: dict[TrialState, Status] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "died",
    TrialState.RUNNING: "running",
}


Evaluate = Callable[[int, dict[str, Any], dict[str, Any], Callable[[float, int], None]], float]
"""Runs the trial of this number with these values, fills in what is kept of it, and returns its objective.

It reports the mean over the first points of the grid, and how many these are; the trial may end there, to be pruned.
"""


class Study:
    """A study in a database, in which any number of processes take part. `folder` is the sweep's.

    Raises `ConfigurationError` for a storage that cannot be used and for a study of another experiment than `identity`.
    """

    def __init__(
        self,
        url: str,
        name: str,
        folder: Path,
        config: SweepConfig,
        space: Mapping[str, Dimension],
        identity: dict[str, Any],
        document: Document,
    ) -> None:
        self._config, self._space, self._folder = config, space, folder
        self.storage = without_password(url)
        self._database = open_storage(url)
        with connected(self.storage), silent():
            self._study = optuna.create_study(
                storage=self._database,
                pruner=optuna.pruners.MedianPruner() if config.pruning == "median" else optuna.pruners.NopPruner(),
                study_name=name,
                direction=config.direction,
                load_if_exists=True,
            )
            what = f"the study {name!r} in {self.storage}"
            known = self._study.user_attrs
            if "experiment" in known:
                check_identity(known["experiment"], identity, document, what)
            elif self._study.get_trials(deepcopy=False):
                raise ConfigurationError(f"{what} was not made by a sweep; give another name with --name")
            else:
                self._study.set_user_attr("experiment", identity)
                self._study.set_user_attr("experiment_sha256", configuration_hash(identity))

    def trials(self) -> list[Trial]:
        """All trials of all processes, in the order in which they were begun."""
        with connected(self.storage):
            found = self._study.get_trials(deepcopy=False)
        begun = [trial for trial in found if trial.state != TrialState.WAITING]
        again = _died_again(begun)
        return [self._trial(trial, again) for trial in begun if "surplus" not in trial.user_attrs]

    def run_trial(self, worker: dict[str, Any], evaluate: Evaluate) -> ReservoirError | MemoryError | None:
        """One more trial. Returns the error that made it fail.

        What ends the sweep (Ctrl-C, a device that another process has, a missing package) is raised: the trial is
        then known to have died, or to have failed if Ctrl-C came in the very step of a training that failed.
        """
        failure: ReservoirError | MemoryError | None = None
        state, objective = TrialState.FAIL, None
        found: dict[str, Any] = {}
        with connected(self.storage), silent(), HeldInterrupts() as interrupts:
            trial = self._ask(worker)
            before = [known for known in self.trials() if known.number < trial.number]
            # Other processes were quicker to begin the last trials that are wanted.
            if sum(known.counts or known.running for known in before) >= self._config.trials:
                trial.set_user_attr("surplus", True)
                self._tell(trial, state, None, {})
                return None
            values = {key: _suggested(trial, key, dimension) for key, dimension in self._space.items()}

            def report(mean: float, points: int) -> None:
                if self._config.pruning != "none":
                    trial.report(mean, points)
                    if trial.should_prune():
                        raise optuna.TrialPruned(f"the mean over {points} points is {mean:.4g}")

            signs = signs_of_life(lambda: self._database.record_heartbeat(self._id_of(trial.number)), HEARTBEAT_S)
            try:
                with signs, interrupts.allowed():
                    objective = evaluate(trial.number, values, found, report)
                state = TrialState.COMPLETE
            except optuna.TrialPruned:
                state = TrialState.PRUNED
            except (DeviceBusy, MissingExtra):
                raise
            except (ReservoirError, MemoryError) as error:
                found["problem"] = f"{type(error).__name__}: {error}".removesuffix(": ")
                failure = error
            finally:
                self._tell(trial, state, objective, found)
        if failure is not None:
            stop_if_asked(failure)
        return failure

    def give_up_dead(self) -> None:
        """Mark the trials of processes that died as failed; what was tried once only does not count.

        A process that uses the same folder is known to be dead at once, by its lock; one on another machine after
        `storage.GRACE_S` without a sign of life.
        """
        dead = dead_workers(self._folder)
        with connected(self.storage), experimental():
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if _is_dead(trial, dead):
                    # Another process may have done so a moment ago.
                    with contextlib.suppress(UpdateFinishedTrialError, ValueError):
                        self._study.tell(trial.number, state=TrialState.FAIL)
            optuna.storages.fail_stale_trials(self._study)
        forget_workers(self._folder, dead)

    def importances(self) -> dict[str, float]:
        """How much each key decides whether a trial is among the best tenth (Watanabe et al. 2023), shares of 1.

        Empty where few complete trials, or one key alone, would tell nothing.
        """
        with connected(self.storage):
            complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if len(complete) < _FEWEST_FOR_IMPORTANCE or len(self._space) < 2:
                return {}
            with experimental():
                evaluator = optuna.importance.PedAnovaImportanceEvaluator()
                return optuna.importance.get_param_importances(self._study, evaluator=evaluator)

    def _ask(self, worker: dict[str, Any]) -> optuna.Trial:
        """Begin a trial; who is at work on it is written down before anything else."""

        def begun(number: int) -> None:
            self._database.set_trial_user_attr(self._id_of(number), "worker", worker)
            draw = _draws(self._study.get_trials(deepcopy=False))[number]
            self._database.set_trial_user_attr(self._id_of(number), "draw", draw)
            self._study.sampler = _sampler(self._config, draw)

        self._study.sampler = _WhenBegun(begun)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            return self._study.ask()

    def _tell(self, trial: optuna.Trial, state: TrialState, objective: float | None, found: dict[str, Any]) -> None:
        try:
            trial.set_user_attr("found", plain(found))
            self._study.tell(trial, objective, state=state)
        except (UpdateFinishedTrialError, ValueError):
            if self._study.get_trials(deepcopy=False)[trial.number].state == TrialState.RUNNING:
                raise
            log.warning("trial %d showed no sign of life for so long that another process gave it up", trial.number)

    def _id_of(self, number: int) -> int:
        study_id = self._database.get_study_id_from_name(self._study.study_name)
        return self._database.get_trial_id_from_study_id_trial_number(study_id, number)

    def _trial(self, trial: FrozenTrial, again: set[int]) -> Trial:
        found: dict[str, Any] = {"problem": _DIED_TWICE} if trial.number in again else trial.user_attrs.get("found", {})
        return Trial(
            number=trial.number,
            status="failed" if "problem" in found else _STATUS[trial.state],
            values={key: _value(found, trial.params[key]) for key, found in self._space.items() if key in trial.params},
            objective=trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
            seconds=None if trial.duration is None else trial.duration.total_seconds(),
            worker=trial.user_attrs.get("worker", {}),
            **found,
        )


class _WhenBegun(optuna.samplers.RandomSampler):
    """Calls `begun` with the number of a trial, which then gives the study the sampler that draws it."""

    def __init__(self, begun: Callable[[int], None]) -> None:
        super().__init__()
        self._begun = begun

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Called first, when the trial has its number."""
        self._begun(trial.number)


def _sampler(config: SweepConfig, draw: int) -> optuna.samplers.BaseSampler:
    """Draws a trial from a number of its own: the first that no trial before has which counts or is at work.

    So a sweep that is continued draws as if it had never been interrupted, and processes that begin together do not
    all try the same.
    """
    seed = int(generator(config.seed, f"sweep/{draw}").integers(2**32))
    if config.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with experimental():
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


def _draws(trials: Sequence[FrozenTrial]) -> dict[int, int]:
    """The number that each trial is drawn from; what was cut off, or was one too many, gives its number back.

    What dies twice with its process keeps it: values that kill would be drawn again for ever.
    """
    given = {trial.number: trial.user_attrs["draw"] for trial in trials if "draw" in trial.user_attrs}
    again = _died_again(trials)
    alive = [trial.number for trial in trials if not _gave_up(trial) or trial.number in again]
    taken = {given[number] for number in alive if number in given}
    for number in sorted(trial.number for trial in trials):
        if number not in given:
            # A process that is asking at this moment comes to the same.
            given[number] = next(draw for draw in itertools.count() if draw not in taken)
            if number in alive:
                taken.add(given[number])
    return given


def _gave_up(trial: FrozenTrial) -> bool:
    """Whether a trial ended without counting."""
    return trial.state == TrialState.FAIL and "problem" not in trial.user_attrs.get("found", {})


def _died_again(trials: Sequence[FrozenTrial]) -> set[int]:
    """The trials whose processes died while they ran, as had another one with the same draw.

    A sweep that ends normally is always reported, even if it found nothing.
    """
    draws: set[int] = set()
    again: set[int] = set()
    for trial in sorted(trials, key=lambda trial: trial.number):
        known = trial.user_attrs
        if trial.state == TrialState.FAIL and "draw" in known and not {"found", "surplus"} & known.keys():
            if known["draw"] in draws:
                again.add(trial.number)
            draws.add(known["draw"])
    return again


def _suggested(trial: optuna.Trial, key: str, dimension: Dimension) -> Any:
    if dimension.choices is not None:
        return _value(dimension, trial.suggest_categorical(key, dimension.labels))
    low, high = dimension.range
    if dimension.whole:
        return trial.suggest_int(key, int(low), int(high), step=int(dimension.step or 1), log=dimension.log)
    return trial.suggest_float(key, low, high, step=dimension.step, log=dimension.log)


def _value(dimension: Dimension, value: Any) -> Any:
    """What a value of the study stands for."""
    return value if dimension.choices is None else dimension.choices[dimension.labels.index(value)]


def _is_dead(trial: FrozenTrial, dead: set[str]) -> bool:
    """Whether the process at work on a running trial is among the dead, or died before it could say who it is."""
    worker = trial.user_attrs.get("worker")
    if worker is not None:
        return worker["id"] in dead
    began = trial.datetime_start
    return began is not None and (datetime.now() - began).total_seconds() > LOCKED_S
