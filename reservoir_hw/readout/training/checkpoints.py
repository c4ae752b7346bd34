"""Going on after an interruption: what a checkpoint keeps of a training, and whether it belongs to this one."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import read_tensors
from reservoir_hw.core.provenance import first_change
from reservoir_hw.readout.training.folder import CHECKPOINT, WEIGHTS, TrainingFolder, write_file
from reservoir_hw.readout.training.identity import FrozenTensors, change_of_constants, constants_of, trained_names
from reservoir_hw.readout.training.noise import inside
from reservoir_hw.readout.training.optimizer import (
    Work,
    first_difference,
    put_state,
    put_weights,
    split_state,
    weights_of,
)
from reservoir_hw.readout.training.options import DECIDE_ORDER
from reservoir_hw.readout.training.processes import TrainingProcesses

log = logging.getLogger(__name__)

_ADVICE = "name another folder, or begin anew with resume=False"


@dataclass
class Position:
    """Where a training is, beside its weights and those of the optimizer."""

    step: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    worse: int = 0
    stopped_early: bool = False
    processor_seconds: float = 0.0


class Checkpoints:
    """Those of a training in its folder.

    Raises `ConfigurationError` where the model has constants that cannot be written.
    """

    def __init__(self, folder: TrainingFolder, work: Work, optimizer: Optimizer, processes: TrainingProcesses) -> None:
        self._folder, self._work, self._options = folder, work, work.options
        self._optimizer, self._processes = optimizer, processes
        self._constants = constants_of(work.objective.trained)
        self._frozen = FrozenTensors(work.objective.trained)
        # Each of several processes has devices of its own, and one checkpoint.
        self._noise = work.noise if processes.count == 1 else None

    def write(self, position: Position) -> None:
        """Keep everything that a training goes on from."""
        objective = self._work.objective
        tensors = {f"weights/{name}": tensor for name, tensor in weights_of(objective.trained).items()}
        kept, plain = split_state(self._optimizer, objective.trained)
        tensors |= {f"optimizer/{place}": tensor for place, tensor in kept.items()}
        noise = {} if self._noise is None else self._noise.kept()
        tensors |= {f"reservoir/{name}": torch.from_numpy(np.ascontiguousarray(one)) for name, one in noise.items()}
        facts = {
            "state": vars(position),
            "model": {
                "constants": self._constants,
                "trained": trained_names(objective.trained),
                "frozen": self._frozen.names(),
            },
            "optimizer": {"kind": type(self._optimizer).__name__, "state": plain},
            "steps": self._work.steps,
            "options": self._options.model_dump(mode="json"),
            "identity": dict(self._work.identity),
        }
        # A log that is behind could not be put right.
        self._folder.log.settle()
        write_file(self._folder.checkpoint, tensors, facts, CHECKPOINT)

    def restored(self, resume: bool) -> Position:
        """Put the training back to where the last checkpoint was; without `resume`, remove what is there.

        Raises `ConfigurationError` if the checkpoint belongs to something else.
        """
        if not resume and self._processes.is_first:
            self._folder.clear()
        self._processes.fabric.barrier()
        position = self._read() if resume and self._folder.checkpoint.exists() else Position()
        steps = self._processes.gathered(torch.tensor(position.step)).tolist()
        if len(set(steps)) > 1:
            raise ConfigurationError(
                f"the processes found checkpoints of different steps ({steps}): {self._folder.path} must be one folder "
                "that all of them see"
            )
        return position

    def _read(self) -> Position:
        where, work = str(self._folder.checkpoint), self._work
        tensors, facts = read_tensors(where, "pt", CHECKPOINT)
        self._refuse_other_data(facts, where)
        weights, remembered, noise = (inside(tensors, part) for part in ("weights", "optimizer", "reservoir"))
        self._refuse_other_model(facts["model"], weights, where)
        told = facts["optimizer"]
        if told["kind"] != type(self._optimizer).__name__:
            raise ConfigurationError(
                f"{where} was written with the optimizer {told['kind']}, now it is {type(self._optimizer).__name__}; "
                f"{_ADVICE}"
            )
        put_weights(work.objective.trained, weights, where)
        put_state(self._optimizer, work.objective.trained, {**remembered, **told["state"]})
        self._frozen = FrozenTensors(work.objective.trained, weights.keys() - {*facts["model"]["frozen"]})
        position = Position(**facts["state"])
        if self._noise is not None and noise:
            self._noise.restore({name: tensor.numpy() for name, tensor in noise.items()})
        elif work.noise.noisy and position.step < work.steps:
            log.warning(
                "%s does not say where the noise of the simulated devices was: what is driven from here on has other "
                "noise than without an interruption",
                where,
            )
        # The patience may be another one now.
        position.stopped_early = self._options.out_of_patience(position.worse)
        log.info("%s: going on after step %d of %d", where, position.step, work.steps)
        return position

    def forget_lost_best(self, position: Position) -> None:
        """The weights of the best step may be lost: then the best of the steps that follow counts."""
        lost = ""
        try:
            read_tensors(self._folder.best, "pt", WEIGHTS)
        except ConfigurationError as error:
            lost = str(error)
        if self._processes.largest(int(bool(lost))):
            log.warning(
                "the weights of the best step, %s, are lost (%s): the best of the steps that follow counts",
                position.best_step,
                lost or "in another process",
            )
            position.best_loss = position.best_step = None

    def _refuse_other_data(self, facts: dict[str, Any], where: str) -> None:
        then = facts["options"]
        now = self._options.model_dump(mode="json")
        changed = [name for name in now if then[name] != now[name]]
        for name in DECIDE_ORDER:
            if name in changed:
                raise ConfigurationError(
                    f"{where} was written with {name} = {then[name]}, now it is {now[name]}: the steps done would "
                    f"have seen other data; {_ADVICE}"
                )
        wanted = provenance.plain(self._work.identity)
        known = {name: value for name, value in facts["identity"].items() if name in wanted}
        change = first_change(known, wanted)
        # Each process of several has a device of its own.
        if change is not None and self._processes.is_first:
            raise ConfigurationError(
                f"{where} was written with {change.key} {change.before}, now it is {change.now}; {_ADVICE}"
            )
        for name in changed:
            log.warning("%s was written with %s = %s; going on with %s", where, name, then[name], now[name])

    def _refuse_other_model(self, told: dict[str, Any], weights: dict[str, Tensor], where: str) -> None:
        """Another one in a constant, or in what is frozen."""
        objective = self._work.objective
        own = weights_of(objective.trained)
        # Layers of several processes may have devices, and so input maps, of their own: the first has written them.
        difference = change_of_constants(told["constants"], self._constants) if self._processes.is_first else None
        difference = difference or first_difference(own, weights)
        if difference is None:
            changed = sorted({*told["trained"]} ^ {*trained_names(objective.trained)})
            other = [name for name in told["frozen"] if name in own and not torch.equal(own[name].cpu(), weights[name])]
            if changed:
                now = "frozen" if changed[0] in told["trained"] else "trained"
                difference = f"{changed[0]!r} is {now} now, and was not when it was written"
            elif other:
                difference = f"its {other[0]!r}, which is frozen, has other values"
        if difference is not None:
            raise ConfigurationError(f"{where} is of another model: {difference}; {_ADVICE}")
