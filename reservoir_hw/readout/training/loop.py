"""The loop of a training: steps, evaluations, and what is said meanwhile."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ReservoirError
from reservoir_hw.core.files import read_tensors
from reservoir_hw.core.interrupts import StopRequests, stop_by
from reservoir_hw.readout.models.token_model import evaluating
from reservoir_hw.readout.training.checkpoints import Checkpoints, Position
from reservoir_hw.readout.training.examples import Examples, Rows
from reservoir_hw.readout.training.folder import WEIGHTS, TrainingFolder, save_weights
from reservoir_hw.readout.training.history import Progress, Row
from reservoir_hw.readout.training.optimizer import Batch, Work, make_optimizer, put_weights, weights_of
from reservoir_hw.readout.training.processes import TrainingProcesses

log = logging.getLogger(__name__)


class NotFinite(ReservoirError, FloatingPointError):
    """The loss or a gradient is NaN or infinite. `step` is the step in which it was met; it changed no weight."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class TrainingResult:
    """How a training went.

    `history` has a row for every `log_steps` steps, those of earlier processes included where there is a folder.
    `best_loss` is the best validation loss, met after `best_step` steps; None without a validation corpus.
    `tokens_per_s` is the mean speed of this process, evaluations and checkpoints left out; 0 if nothing was left to do.
    `precision` is what was computed in, which is not always what was asked for: a processor may have no bfloat16.
    `weights` and `best` are the files, None without a folder; `best` too without validation, or where it was lost.
    """

    steps: int
    history: list[Row]
    best_loss: float | None
    best_step: int | None
    stopped_early: bool
    tokens_per_s: float
    precision: str
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


def run(work: Work, folder: str | os.PathLike[str] | None, resume: bool) -> TrainingResult:
    """Train; see `train`."""
    options = work.options
    work.hooks.check(options)
    if work.held_out is None and (options.patience is not None or options.keep == "best"):
        raise ConfigurationError(
            "patience, and keep: best, go by the loss of validation data, and there is none: give some, or leave them "
            "out"
        )
    processes = TrainingProcesses(options)
    with ExitStack() as stack:
        place = None if folder is None else TrainingFolder(folder)
        if place is not None and processes.is_first:
            stack.enter_context(place.owned())
        # Reproducible by step, and nobody else's random numbers are touched.
        devices = [processes.device.index] if processes.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=devices))
        return _Training(work, place, resume, processes).run()


class _Training:
    def __init__(self, work: Work, folder: TrainingFolder | None, resume: bool, processes: TrainingProcesses) -> None:
        options = work.options
        self._work, self._options, self._folder = work, options, folder
        self._hooks, self._processes = work.hooks, processes
        self._rows = Rows(work.examples, work.examples.order(options))
        self._judged = np.empty(0) if work.held_out is None else work.held_out.evaluated(options.evaluation_windows)
        self._plain_optimizer = make_optimizer(work.objective, options, work.hooks.optimizer)
        self._module, self._optimizer = processes.wrapped(work.objective, self._plain_optimizer)
        self._parameters = [p for p in work.objective.parameters() if p.requires_grad]
        self._position = Position()
        self._factor = 1.0
        self._history: list[Row] = []
        self._best_weights: dict[str, Tensor] | None = None
        self._checkpoints: Checkpoints | None = None
        if folder is not None:
            self._checkpoints = Checkpoints(folder, work, self._plain_optimizer, processes)
            self._go_on(folder, self._checkpoints, resume)
        work.objective.trained.train()
        self._first_step = self._position.step
        # Wall time of this process, and the part of it that steps took: in all, and up to the last row.
        self._began, self._stepping, self._stepping_at_row = time.perf_counter(), 0.0, 0.0
        self._tokens_at_row = self._tokens(self._first_step)

    def _go_on(self, folder: TrainingFolder, checkpoints: Checkpoints, resume: bool) -> None:
        """From the last checkpoint in the folder, if there is one."""
        self._position = position = checkpoints.restored(resume)
        if position.best_step == position.step:
            # The process may have ended between the checkpoint and this.
            self._keep_best()
        elif self._options.keep == "best" and position.best_step is not None and not self._is_done:
            checkpoints.forget_lost_best(position)
        if self._processes.is_first:
            self._history = folder.log.begin(position.step)
            # Only now: a training that is refused leaves the folder as it was.
            folder.write_facts(
                {
                    "identity": dict(self._work.identity),
                    "steps": self._work.steps,
                    "parameters": {
                        "trained": sum(p.numel() for p in self._parameters),
                        "all": sum(p.numel() for p in self._work.objective.parameters()),
                    },
                    "processes": self._processes.count,
                    "device": str(self._processes.device),
                    **provenance.collect({"training": self._options.model_dump(mode="json")}),
                }
            )

    # ---- the course of things

    @property
    def _is_done(self) -> bool:
        return self._position.step >= self._work.steps or self._position.stopped_early

    def run(self) -> TrainingResult:
        """Do the steps that are left."""
        steps, state = self._work.steps, self._position
        # Gradients that were left before are not ours, and none are left behind, also after an error.
        self._optimizer.zero_grad()
        with ExitStack() as leaving, StopRequests("the training goes on from its last checkpoint") as stop:
            leaving.callback(self._optimizer.zero_grad)
            while not self._is_done:
                norm, stopping = self._step(stop)
                self._after_step(norm)
                better = state.best_step == state.step
                last = state.step == steps or state.stopped_early
                due = stopping or last or better or state.step % self._options.checkpoint_steps == 0
                if due and self._checkpoints is not None and self._processes.is_first:
                    self._checkpoints.write(state)
                if better:
                    self._keep_best()
                if last:
                    # An evaluation takes long: somebody may have asked meanwhile.
                    stopping = self._processes.largest(stop.requested)
                if stopping:
                    self._stopped(stopping)
        return self._finish()

    def _step(self, stop: StopRequests) -> tuple[float, int]:
        """One update of the weights; returns the norm of its gradient and the signal that asks to stop, or 0."""
        options, number = self._options, self._position.step
        begin, processor_begin = time.perf_counter(), time.process_time()
        self._factor = self._hooks.factor(options, number, self._work.steps)
        for group in self._plain_optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self._factor
        total = torch.zeros((), dtype=torch.float64, device=self._processes.device)
        rows = self._rows
        tokens = rows.tokens(number * options.windows_per_step, (number + 1) * options.windows_per_step)
        for part in range(options.accumulate):
            micro = number * options.accumulate + part
            self._seed(micro)
            share = self._processes.share(micro * options.batch, (micro + 1) * options.batch)
            batch = Batch(*rows.get(*share, self._processes.device))
            # The mean over processes follows.
            parts = tokens / (rows.tokens(*share) * self._processes.count)
            waits = self._processes.count > 1 and part < options.accumulate - 1
            with self._processes.fabric.no_backward_sync(self._module) if waits else nullcontext():
                try:
                    loss = self._module(batch)
                except InputRangeError as error:
                    raise InputRangeError(f"step {number}: {error}") from error
                self._processes.fabric.backward(loss / parts)
            total += loss.detach() / parts
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, options.clip or math.inf)
        mean, norm, stopping = self._processes.agreed(total, norm, stop.requested)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            raise self._not_finite(number, mean, norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._position.step += 1
        self._position.loss_sum += mean
        self._position.loss_steps += 1
        self._stepping += time.perf_counter() - begin
        self._position.processor_seconds += time.process_time() - processor_begin
        return norm, stopping

    def _after_step(self, norm: float) -> None:
        """Evaluate and say something, if it is time; stop if better weights have not come for long."""
        state, options, last = self._position, self._options, self._position.step == self._work.steps
        due = last or (options.evaluation_steps is not None and state.step % options.evaluation_steps == 0)
        validation = self._evaluate(self._work.held_out) if due and self._work.held_out is not None else None
        if validation is not None and (state.best_loss is None or validation < state.best_loss):
            state.best_loss, state.best_step, state.worse = validation, state.step, 0
        elif validation is not None:
            state.worse += 1
            state.stopped_early = options.out_of_patience(state.worse)
        metrics: Mapping[str, float] = {}
        if due and self._processes.is_first:
            with evaluating(self._work.objective):
                metrics = self._hooks.metrics(state.step)
        evaluated = due and (self._work.held_out is not None or self._hooks.evaluate is not None)
        if evaluated or last or state.step % options.log_steps == 0:
            self._add_row(validation, norm, metrics)

    def _keep_best(self) -> None:
        """Keep the weights of this step, the best so far. The checkpoint of it is there: they never disagree."""
        state, objective = self._position, self._work.objective
        if self._folder is None:
            if self._options.keep == "best":
                self._best_weights = {name: w.clone() for name, w in weights_of(objective.trained).items()}
        elif self._processes.is_first:
            save_weights(objective.trained, self._folder.best, step=state.step, validation_loss=state.best_loss)

    def _finish(self) -> TrainingResult:
        state, folder, objective = self._position, self._folder, self._work.objective
        self._processes.fabric.barrier()
        if self._options.keep == "best" and state.best_step is not None and state.best_step != state.step:
            if self._best_weights is not None:
                put_weights(objective.trained, self._best_weights, "the best step")
            elif folder is not None:
                put_weights(objective.trained, read_tensors(folder.best, "pt", WEIGHTS)[0], str(folder.best))
        if folder is not None and self._processes.is_first:
            save_weights(objective.trained, folder.weights, step=state.step)
            folder.draw(self._history)
        self._processes.fabric.barrier()
        tokens = self._tokens(state.step) - self._tokens(self._first_step)
        return TrainingResult(
            steps=state.step,
            history=self._history,
            best_loss=state.best_loss,
            best_step=state.best_step,
            stopped_early=state.stopped_early,
            tokens_per_s=tokens / self._stepping if tokens else 0.0,
            precision=self._options.precision,
            folder=None if folder is None else folder.path,
            weights=None if folder is None else folder.weights,
            best=folder.best if folder is not None and state.best_step is not None and folder.best.exists() else None,
        )

    def _stopped(self, number: int) -> None:
        done = f"stopped after step {self._position.step} of {self._work.steps}"
        if self._folder is None:
            message = f"{done}; without a folder nothing is kept: give one to be able to go on"
        else:
            message = f"{done}; the same call goes on from {self._folder.checkpoint}"
            if self._processes.is_first:
                self._folder.draw(self._history)
        log.warning(message)
        raise stop_by(number, message)

    # ---- data and losses

    @torch.no_grad()
    def _evaluate(self, held_out: Examples) -> float:
        """The mean loss over the evaluated targets of all processes."""
        objective, processes, chosen = self._work.objective, self._processes, self._judged
        total = torch.zeros(2, dtype=torch.float64, device=processes.device)
        with evaluating(objective):
            for first in range(0, len(chosen), self._options.batch):
                share = slice(*processes.share(first, min(first + self._options.batch, len(chosen))))
                tensors = held_out.items(chosen[share], processes.device)
                counted = held_out.counted(tensors)
                if counted:
                    # Not through the wrapper: processes may have different numbers of batches.
                    with processes.fabric.autocast():
                        loss = objective(Batch(*tensors))
                    total += torch.stack([loss.double() * counted, total.new_tensor(counted)])
        if self._processes.count > 1:
            total = self._processes.fabric.all_reduce(total, reduce_op="sum")
        mean = float(total[0] / total[1])
        if not math.isfinite(mean):
            raise self._not_finite(self._position.step - 1, mean, None)
        return mean

    def _seed(self, micro: int) -> None:
        """Random numbers of the model (dropout) belong to a batch and a process, so that no position is kept."""
        words = np.random.SeedSequence([self._options.seed, micro, self._processes.rank]).generate_state(2)
        seed = int(words[0]) << 32 | int(words[1])
        if self._processes.device.type == "cpu":
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
        return self._rows.tokens(0, steps * self._options.windows_per_step)

    def _add_row(self, validation: float | None, norm: float, metrics: Mapping[str, float]) -> None:
        state, own = self._position, self._hooks.optimizer is not None
        base = self._plain_optimizer.param_groups[0]["initial_lr"] if own else self._options.learning_rate
        seconds = self._stepping - self._stepping_at_row
        tokens = self._tokens(state.step)
        row = Row(
            step=state.step,
            tokens=tokens,
            loss=state.loss_sum / state.loss_steps,
            validation_loss=validation,
            learning_rate=base * self._factor,
            gradient_norm=norm,
            tokens_per_s=(tokens - self._tokens_at_row) / seconds,
            seconds=time.perf_counter() - self._began,
            processor_seconds=state.processor_seconds,
            metrics=metrics,
        )
        self._stepping_at_row, self._tokens_at_row = self._stepping, tokens
        state.loss_sum, state.loss_steps = 0.0, 0
        self._history.append(row)
        if not self._processes.is_first:
            return
        if self._folder is not None:
            self._folder.log.add(row)
        if self._hooks.progress is not None:
            left = self._work.steps - state.step
            self._hooks.progress(Progress(row, self._work.steps, row.seconds / (state.step - self._first_step) * left))
        if self._hooks.on_row is not None:
            self._hooks.on_row(row.step, self._hooks.model, row.numbers)
