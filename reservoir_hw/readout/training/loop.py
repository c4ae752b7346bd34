"""The loop that `train` and `train_on_states` share: steps, evaluations, checkpoints, what is said meanwhile."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, MissingExtra, ReservoirError
from reservoir_hw.core.interrupts import StopRequests, stop_by
from reservoir_hw.core.provenance import first_change
from reservoir_hw.readout.models.token_model import evaluating
from reservoir_hw.readout.training.folder import WEIGHTS, TrainingFolder, read_tensors, save_weights
from reservoir_hw.readout.training.history import Progress, Row
from reservoir_hw.readout.training.identity import FrozenTensors, change_of_constants, constants_of, trained_names
from reservoir_hw.readout.training.optimizer import (
    Batch,
    Hooks,
    Objective,
    first_difference,
    make_optimizer,
    put_state,
    put_weights,
    set_learning_rate,
    split_state,
)
from reservoir_hw.readout.training.options import DECIDE_ORDER, TrainingOptions

log = logging.getLogger(__name__)

OnProgress = Callable[[Progress], None]


class NotFinite(ReservoirError, FloatingPointError):
    """The loss or a gradient is NaN or infinite. `step` is the step in which it was met; it changed no weight."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


class Rows(Protocol):
    """Rows of an endless sequence, each what the loss takes, the last tensor targets."""

    def tokens(self, first: int, stop: int) -> int:
        """Tokens that rows first..stop - 1 stand for; a row counts in the mean loss as it has tokens."""
        ...

    def get(self, first: int, stop: int, device: torch.device) -> Sequence[Tensor]:
        """Tensors (stop - first, ...) on this device."""
        ...


class Noise(Protocol):
    """Where the noise of simulated devices is, for a training that is interrupted to go on with the same."""

    @property
    def noisy(self) -> bool:
        """Whether there is any."""
        ...

    def kept(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps of it."""
        ...

    def take_up(self, kept: Mapping[str, np.ndarray]) -> None:
        """Go on from what a checkpoint has kept."""
        ...


def _last_targets(tensors: Sequence[Tensor]) -> int:
    return int((tensors[-1] >= 0).sum())


@dataclass(frozen=True)
class Evaluation:
    """The first `count` rows are what a validation loss is the mean over.

    `counted` says how many targets the loss of a batch is the mean over: by default those of the last tensor.
    """

    rows: Rows
    count: int
    counted: Callable[[Sequence[Tensor]], int] = _last_targets


@dataclass(frozen=True)
class Work:
    """What is to be done: `objective` is minimised over `rows` for `steps` steps.

    `identity` names what must be the same when a checkpoint is continued (the corpus, the devices).
    `noise` of simulated devices goes on where a checkpoint has left it.
    """

    objective: Objective
    rows: Rows
    evaluation: Evaluation | None
    steps: int
    identity: Mapping[str, Any]
    noise: Noise | None = None


@dataclass(frozen=True)
class TrainingResult:
    """How a training went.

    `history` has a row for every `log_steps` steps, those of earlier processes included where there is a folder.
    `best_loss` is the best validation loss, met after `best_step` steps; None without a validation corpus.
    `tokens_per_s` is the mean speed of this process, evaluations and checkpoints left out; 0 if nothing was left to do.
    `weights` and `best` are the files, None without a folder; `best` too without validation, or where it was lost.
    """

    steps: int
    history: list[Row]
    best_loss: float | None
    best_step: int | None
    stopped_early: bool
    tokens_per_s: float
    folder: Path | None = None
    weights: Path | None = None
    best: Path | None = None

    @property
    def losses(self) -> np.ndarray:
        """Training losses (rows,), each the mean since the row before, in nats per target."""
        return np.array([row.loss for row in self.history])

    @property
    def validation_losses(self) -> np.ndarray:
        """(evaluations, 2): step, and mean validation loss after it."""
        met = [(row.step, row.validation_loss) for row in self.history if row.validation_loss is not None]
        return np.array(met, dtype=np.float64).reshape(-1, 2)


@dataclass
class _State:
    """Where a training is, beside its weights and those of the optimizer."""

    step: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    worse: int = 0
    stopped_early: bool = False
    processor_seconds: float = 0.0


@dataclass
class _Clock:
    """Wall time of this process, and the part of it that steps took."""

    begin: float = field(default_factory=time.perf_counter)
    stepping: float = 0.0
    stepping_at_row: float = 0.0
    tokens_at_row: int = 0
    first_step: int = 0


def run(
    work: Work,
    options: TrainingOptions,
    folder: str | os.PathLike[str] | None,
    progress: OnProgress | None,
    resume: bool,
    hooks: Hooks | None = None,
) -> TrainingResult:
    """Train; see `train`."""
    hooks = hooks or Hooks(work.objective.trained)
    hooks.check(options)
    fabric = _fabric(options)
    with ExitStack() as stack:
        place = None if folder is None else TrainingFolder(folder)
        if place is not None and fabric.is_global_zero:
            stack.enter_context(place.owned())
        # Reproducible by step, and nobody else's random numbers are touched.
        devices = [fabric.device.index] if fabric.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        return _Training(work, options, place, progress, resume, fabric, hooks).run()


class _Training:
    def __init__(
        self,
        work: Work,
        options: TrainingOptions,
        folder: TrainingFolder | None,
        progress: OnProgress | None,
        resume: bool,
        fabric: Any,
        hooks: Hooks,
    ) -> None:
        self._work, self._options, self._folder, self._fabric = work, options, folder, fabric
        self._progress, self._hooks = progress, hooks
        self._rank, self._world = fabric.global_rank, fabric.world_size
        # Each of several processes has devices of its own, and one checkpoint.
        self._noise = work.noise if self._world == 1 else None
        if options.batch % self._world:
            raise ConfigurationError(
                f"batch {options.batch} cannot be shared equally by {self._world} processes: choose a multiple"
            )
        if work.evaluation is None and (options.patience is not None or options.keep == "best"):
            raise ConfigurationError(
                "patience, and keep: best, go by the loss of validation data, and there is none: give some, or leave "
                "them out"
            )
        # What cannot be written is to be known before the first step.
        self._constants = {} if folder is None else constants_of(work.objective.trained)
        optimizer = make_optimizer(work.objective, options, hooks.optimizer)
        with _without_deprecations():
            self._module, self._optimizer = fabric.setup(work.objective, optimizer)
        self._plain_optimizer = optimizer
        self._parameters = [p for p in work.objective.parameters() if p.requires_grad]
        self._state = _State()
        self._factor = 1.0
        self._history: list[Row] = []
        self._best_weights: dict[str, Tensor] | None = None
        self._moving: set[str] = set()
        self._begin(resume)
        self._frozen = FrozenTensors(work.objective.trained, self._moving)
        work.objective.trained.train()
        self._clock = _Clock(first_step=self._state.step, tokens_at_row=self._tokens(self._state.step))

    # ---- the course of things

    @property
    def _is_done(self) -> bool:
        return self._state.step >= self._work.steps or self._state.stopped_early

    def run(self) -> TrainingResult:
        """Do the steps that are left."""
        steps, state = self._work.steps, self._state
        began = state.step
        with self._own_gradients(), StopRequests("the training goes on from its last checkpoint") as stop:
            while not self._is_done:
                norm, stopping = self._step(stop)
                self._after_step(norm)
                better = state.best_step == state.step
                last = state.step == steps or state.stopped_early
                if stopping or last or better or state.step % self._options.checkpoint_steps == 0:
                    self._checkpoint()
                if better:
                    self._keep_best()
                if last:
                    # An evaluation takes long: somebody may have asked meanwhile.
                    stopping = self._anywhere(stop.requested)
                if stopping:
                    self._stopped(stopping)
        return self._finish(began)

    @contextmanager
    def _own_gradients(self) -> Iterator[None]:
        """Remove gradients that were left before, and leave none behind, also after an error."""
        self._optimizer.zero_grad()
        try:
            yield
        finally:
            self._optimizer.zero_grad()

    def _step(self, stop: StopRequests) -> tuple[float, int]:
        """One update of the weights; returns the norm of its gradient and the signal that asks to stop, or 0."""
        options, number = self._options, self._state.step
        begin, processor_begin = time.perf_counter(), time.process_time()
        self._factor = self._hooks.factor(options, number, self._work.steps)
        set_learning_rate(self._plain_optimizer, self._factor)
        total = torch.zeros((), dtype=torch.float64, device=self._fabric.device)
        rows = self._work.rows
        tokens = rows.tokens(number * options.windows_per_step, (number + 1) * options.windows_per_step)
        for part in range(options.accumulate):
            micro = number * options.accumulate + part
            self._seed(micro)
            share = self._share(micro * options.batch, (micro + 1) * options.batch)
            batch = Batch(*rows.get(*share, self._fabric.device))
            # The mean over processes follows.
            parts = tokens / (rows.tokens(*share) * self._world)
            waits = self._world > 1 and part < options.accumulate - 1
            with self._fabric.no_backward_sync(self._module) if waits else nullcontext():
                try:
                    loss = self._module(batch)
                except InputRangeError as error:
                    raise InputRangeError(f"step {number}: {error}") from error
                self._fabric.backward(loss / parts)
            total += loss.detach() / parts
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, options.clip or math.inf)
        mean, norm, stopping = self._agreed(total, norm, stop.requested)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            raise self._not_finite(number, mean, norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._state.step += 1
        self._state.loss_sum += mean
        self._state.loss_steps += 1
        self._clock.stepping += time.perf_counter() - begin
        self._state.processor_seconds += time.process_time() - processor_begin
        return norm, stopping

    def _after_step(self, norm: float) -> None:
        """Evaluate and say something, if it is time."""
        state, options, last = self._state, self._options, self._state.step == self._work.steps
        due = last or (options.evaluation_steps is not None and state.step % options.evaluation_steps == 0)
        validation = self._evaluate(self._work.evaluation) if due and self._work.evaluation is not None else None
        if validation is not None:
            self._compare_with_best(validation)
        evaluated = due and (self._work.evaluation is not None or self._hooks.evaluate is not None)
        if evaluated or last or state.step % options.log_steps == 0:
            self._add_row(validation, norm, self._metrics() if due else {})

    def _compare_with_best(self, loss: float) -> None:
        """Whether the weights are the best so far; stop if better ones have not come for long."""
        state = self._state
        if state.best_loss is None or loss < state.best_loss:
            state.best_loss, state.best_step, state.worse = loss, state.step, 0
            return
        state.worse += 1
        state.stopped_early = self._out_of_patience(state)

    def _out_of_patience(self, state: _State) -> bool:
        return self._options.patience is not None and state.worse >= self._options.patience

    def _keep_best(self) -> None:
        """Keep the weights of this step, the best so far. The checkpoint of it is there: they never disagree."""
        state, objective = self._state, self._work.objective
        if self._folder is None:
            if self._options.keep == "best":
                self._best_weights = {name: w.clone() for name, w in objective.weights().items()}
        elif self._fabric.is_global_zero:
            save_weights(objective.trained, self._folder.best, step=state.step, validation_loss=state.best_loss)

    def _finish(self, began: int) -> TrainingResult:
        state, folder, objective = self._state, self._folder, self._work.objective
        self._fabric.barrier()
        if self._options.keep == "best" and state.best_step is not None and state.best_step != state.step:
            if self._best_weights is not None:
                put_weights(objective.trained, self._best_weights, "the best step")
            elif folder is not None:
                put_weights(objective.trained, read_tensors(folder.best, WEIGHTS)[0], str(folder.best))
        if folder is not None and self._fabric.is_global_zero:
            save_weights(objective.trained, folder.weights, step=state.step)
            folder.draw(self._history)
        self._fabric.barrier()
        tokens = self._tokens(state.step) - self._tokens(began)
        return TrainingResult(
            steps=state.step,
            history=self._history,
            best_loss=state.best_loss,
            best_step=state.best_step,
            stopped_early=state.stopped_early,
            tokens_per_s=tokens / self._clock.stepping if tokens else 0.0,
            folder=None if folder is None else folder.path,
            weights=None if folder is None else folder.weights,
            best=folder.best if folder is not None and state.best_step is not None and folder.best.exists() else None,
        )

    def _stopped(self, number: int) -> None:
        done = f"stopped after step {self._state.step} of {self._work.steps}"
        if self._folder is None:
            message = f"{done}; without a folder nothing is kept: give one to be able to go on"
        else:
            message = f"{done}; the same call goes on from {self._folder.checkpoint}"
            if self._fabric.is_global_zero:
                self._folder.draw(self._history)
        log.warning(message)
        raise stop_by(number, message)

    # ---- data and losses

    def _share(self, first: int, stop: int) -> tuple[int, int]:
        """This process's share of rows first..stop - 1."""
        begin, end = (first + (stop - first) * rank // self._world for rank in (self._rank, self._rank + 1))
        return begin, end

    def _agreed(self, loss: Tensor, norm: Tensor, requested: int) -> tuple[float, float, int]:
        """Loss and norm over all processes, and whether one of them was asked to stop."""
        told = torch.stack([loss, norm.detach().double(), loss.new_tensor(requested)])
        if self._world == 1:
            mean, norm_, stopping = told.tolist()
            return mean, norm_, int(stopping)
        everyone = self._gathered(told)
        return float(everyone[:, 0].mean()), float(everyone[:, 1].max()), int(everyone[:, 2].max())

    def _anywhere(self, requested: int) -> int:
        """The signal by which one of the processes was asked to stop, or 0."""
        return requested if self._world == 1 else int(self._gathered(torch.tensor(requested)).max())

    def _gathered(self, tensor: Tensor) -> Tensor:
        """That of every process."""
        with _without_deprecations():
            return self._fabric.all_gather(tensor.to(self._fabric.device))

    @torch.no_grad()
    def _evaluate(self, evaluation: Evaluation) -> float:
        """The mean loss over the evaluated targets of all processes."""
        objective = self._work.objective
        total = torch.zeros(2, dtype=torch.float64, device=self._fabric.device)
        with evaluating(objective):
            for first in range(0, evaluation.count, self._options.batch):
                share = self._share(first, min(first + self._options.batch, evaluation.count))
                batch = Batch(*evaluation.rows.get(*share, self._fabric.device))
                counted = evaluation.counted(batch.tensors)
                if counted:
                    # Not through the wrapper: processes may have different numbers of batches.
                    with self._fabric.autocast():
                        loss = objective(batch)
                    total += torch.stack([loss.double() * counted, total.new_tensor(counted)])
        if self._world > 1:
            total = self._fabric.all_reduce(total, reduce_op="sum")
        mean = float(total[0] / total[1])
        if not math.isfinite(mean):
            raise self._not_finite(self._state.step - 1, mean, None)
        return mean

    def _metrics(self) -> dict[str, float]:
        """What the caller's evaluation finds; in the first process."""
        if not self._fabric.is_global_zero:
            return {}
        with evaluating(self._work.objective):
            return self._hooks.metrics(self._state.step)

    def _seed(self, micro: int) -> None:
        """Random numbers of the model (dropout) belong to a batch and a process, so that no position is kept."""
        words = np.random.SeedSequence([self._options.seed, micro, self._rank]).generate_state(2)
        seed = int(words[0]) << 32 | int(words[1])
        if self._fabric.device.type == "cpu":
            # torch.manual_seed looks for other devices too, which takes as long as a layer.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _not_finite(self, step: int, loss: float, norm: float | None) -> NotFinite:
        what = (
            "the validation loss after it" if norm is None else "the loss" if not math.isfinite(loss) else "a gradient"
        )
        value = loss if norm is None or not math.isfinite(loss) else norm
        kept = "no checkpoint was written before"
        if self._folder is not None and self._folder.checkpoint.exists():
            kept = f"the weights before it are in {self._folder.checkpoint}"
        return NotFinite(
            f"step {step}: {what} is {value}. Look for NaN in the data or the states; if there is none, the training "
            f"has diverged: lower learning_rate, set clip or a longer warmup, or precision fp32; {kept}",
            step=step,
        )

    # ---- what is said

    def _tokens(self, steps: int) -> int:
        return self._work.rows.tokens(0, steps * self._options.windows_per_step)

    def _add_row(self, validation: float | None, norm: float, metrics: Mapping[str, float]) -> None:
        state, clock = self._state, self._clock
        own = self._hooks.optimizer is not None
        base = self._plain_optimizer.param_groups[0]["initial_lr"] if own else self._options.learning_rate
        seconds = clock.stepping - clock.stepping_at_row
        tokens = self._tokens(state.step)
        row = Row(
            step=state.step,
            tokens=tokens,
            loss=state.loss_sum / state.loss_steps,
            validation_loss=validation,
            learning_rate=base * self._factor,
            gradient_norm=norm,
            tokens_per_s=(tokens - clock.tokens_at_row) / seconds,
            seconds=time.perf_counter() - clock.begin,
            processor_seconds=state.processor_seconds,
            metrics=metrics,
        )
        clock.stepping_at_row, clock.tokens_at_row = clock.stepping, tokens
        state.loss_sum, state.loss_steps = 0.0, 0
        self._history.append(row)
        if not self._fabric.is_global_zero:
            return
        if self._folder is not None:
            self._folder.log.add(row)
        if self._progress is not None:
            left = self._work.steps - state.step
            self._progress(Progress(row, self._work.steps, row.seconds / (state.step - clock.first_step) * left))
        if self._hooks.on_row is not None:
            self._hooks.on_row(row.step, self._hooks.model, row.numbers)

    # ---- going on after an interruption

    def _checkpoint(self) -> None:
        if self._folder is None or not self._fabric.is_global_zero:
            return
        names = self._work.objective.parameter_names()
        tensors = {f"weights/{name}": tensor for name, tensor in self._work.objective.weights().items()}
        kept, plain = split_state(self._plain_optimizer, names)
        tensors |= {f"optimizer/{place}": tensor for place, tensor in kept.items()}
        if self._noise is not None:
            for name, array in self._noise.kept().items():
                tensors[f"reservoir/{name}"] = torch.from_numpy(np.ascontiguousarray(array))
        trained = self._work.objective.trained
        facts = {
            "state": vars(self._state),
            "model": {
                "constants": self._constants,
                "trained": trained_names(trained),
                "frozen": self._frozen.names(),
            },
            "optimizer": {"kind": type(self._plain_optimizer).__name__, "state": plain},
            "steps": self._work.steps,
            "options": self._options.model_dump(mode="json"),
            "identity": dict(self._work.identity),
        }
        self._folder.write_checkpoint(tensors, facts)

    def _begin(self, resume: bool) -> None:
        folder = self._folder
        if folder is None:
            return
        if not resume and self._fabric.is_global_zero:
            folder.clear()
        self._fabric.barrier()
        found = folder.read_checkpoint() if resume else None
        if found is not None:
            self._take_up(*found)
        if self._world > 1:
            steps = self._gathered(torch.tensor(self._state.step)).tolist()
            if len(set(steps)) > 1:
                raise ConfigurationError(
                    f"the processes found checkpoints of different steps ({steps}): {folder.path} must be one folder "
                    "that all of them see"
                )
        best, now = self._state.best_step, self._state.step
        if self._options.keep == "best" and best not in (None, now) and not self._is_done:
            self._check_best()
        if self._fabric.is_global_zero:
            self._history = folder.log.begin(self._state.step)
            # Only now: a training that is refused leaves the folder as it was.
            folder.write_facts(self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "identity": dict(self._work.identity),
            "steps": self._work.steps,
            "parameters": {
                "trained": sum(p.numel() for p in self._parameters),
                "all": sum(p.numel() for p in self._work.objective.parameters()),
            },
            "processes": self._world,
            "device": str(self._fabric.device),
            **provenance.collect({"training": self._options.model_dump(mode="json")}),
        }

    def _take_up(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Become what the checkpoint was. Raises `ConfigurationError` if it belongs to something else."""
        assert self._folder is not None
        where = str(self._folder.checkpoint)
        self._check_identity(facts, where)
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "reservoir": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        self._check_model(facts["model"], parts["weights"], where)
        told = facts["optimizer"]
        if told["kind"] != type(self._plain_optimizer).__name__:
            raise ConfigurationError(
                f"{where} was written with the optimizer {told['kind']}, now it is "
                f"{type(self._plain_optimizer).__name__}; name another folder, or begin anew with resume=False"
            )
        put_weights(self._work.objective.trained, parts["weights"], where)
        optimizer = self._plain_optimizer
        put_state(optimizer, self._work.objective.parameter_names(), {**parts["optimizer"], **told["state"]})
        self._state = _State(**facts["state"])
        if self._noise is not None and parts["reservoir"]:
            self._noise.take_up({name: tensor.numpy() for name, tensor in parts["reservoir"].items()})
        elif self._work.noise is not None and self._work.noise.noisy and self._state.step < self._work.steps:
            log.warning(
                "%s does not say where the noise of the simulated devices was: what is driven from here on has other "
                "noise than without an interruption",
                where,
            )
        # The patience may be another one now.
        self._state.stopped_early = self._out_of_patience(self._state)
        if self._state.best_step == self._state.step:
            # The process may have ended between the checkpoint and this.
            self._keep_best()
        log.info("%s: going on after step %d of %d", where, self._state.step, self._work.steps)

    def _check_best(self) -> None:
        """Whether the weights of the best step are still there, as they are wanted after the last one."""
        assert self._folder is not None
        lost = ""
        try:
            read_tensors(self._folder.best, WEIGHTS)
        except ConfigurationError as error:
            lost = str(error)
        if self._anywhere(int(bool(lost))):
            log.warning(
                "the weights of the best step, %s, are lost (%s): the best of the steps that follow counts",
                self._state.best_step,
                lost or "in another process",
            )
            self._state.best_loss = self._state.best_step = None

    def _check_identity(self, facts: dict[str, Any], where: str) -> None:
        advice = "name another folder, or begin anew with resume=False"
        then = facts["options"]
        now = self._options.model_dump(mode="json")
        changed = [name for name in now if then[name] != now[name]]
        for name in DECIDE_ORDER:
            if name in changed:
                raise ConfigurationError(
                    f"{where} was written with {name} = {then[name]}, now it is {now[name]}: the steps done would "
                    f"have seen other data; {advice}"
                )
        wanted = provenance.plain(self._work.identity)
        known = {name: value for name, value in facts["identity"].items() if name in wanted}
        change = first_change(known, wanted)
        # Each process of several has a device of its own.
        if change is not None and self._rank == 0:
            raise ConfigurationError(
                f"{where} was written with {change.key} {change.before}, now it is {change.now}; {advice}"
            )
        for name in changed:
            log.warning("%s was written with %s = %s; going on with %s", where, name, then[name], now[name])

    def _check_model(self, told: dict[str, Any], weights: dict[str, Tensor], where: str) -> None:
        """Raise `ConfigurationError` if the model is another one: in a constant, or in what is frozen."""
        model = self._work.objective.trained
        own = self._work.objective.weights()
        # Layers of several processes may have devices, and so input maps, of their own: the first has written them.
        difference = change_of_constants(told["constants"], self._constants) if self._rank == 0 else None
        difference = difference or first_difference(own, weights)
        if difference is None:
            changed = sorted({*told["trained"]} ^ {*trained_names(model)})
            other = [name for name in told["frozen"] if name in own and not torch.equal(own[name].cpu(), weights[name])]
            if changed:
                now = "frozen" if changed[0] in told["trained"] else "trained"
                difference = f"{changed[0]!r} is {now} now, and was not when it was written"
            elif other:
                difference = f"its {other[0]!r}, which is frozen, has other values"
        if difference is not None:
            raise ConfigurationError(
                f"{where} is of another model: {difference}; name another folder, or begin anew with resume=False"
            )
        self._moving = {name for name in own if name not in told["frozen"]}


def _fabric(options: TrainingOptions) -> Any:
    """Lightning Fabric for this process: alone, or one of those that torchrun has started."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments.lightning import LightningEnvironment
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError as error:
        raise MissingExtra(f"training needs Lightning Fabric: pip install 'reservoir-hw[train]' ({error})") from error
    accelerator = options.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    elif accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("accelerator is cuda, but torch finds no CUDA device; set it to cpu")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    fabric = Fabric(
        accelerator=accelerator,
        devices=here,
        num_nodes=world // here,
        strategy=DDPStrategy(broadcast_buffers=False) if world > 1 else "auto",
        # Where SLURM has several tasks for this job, Lightning would count them as processes of this training.
        plugins=[TorchElasticEnvironment() if world > 1 else LightningEnvironment()],
        precision="32-true" if options.precision == "fp32" else options.precision,
    )
    begun = torch.distributed.is_available() and torch.distributed.is_initialized()
    fabric.launch()
    if world > 1 and not begun and torch.distributed.get_backend() == "gloo":
        # Threads of gloo that outlive the interpreter can abort the process. Lightning ends the groups of NCCL alone.
        atexit.register(_end_group)
    return fabric


def _end_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """Without what Lightning and torch say about each other under torchrun; the tests tell when it no longer works."""
    with warnings.catch_warnings():
        for what in (r".*`broadcast_buffers` is deprecated", r".*functional\.all_gather is deprecated"):
            warnings.filterwarnings("ignore", message=what)
        yield
