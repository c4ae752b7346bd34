"""What changes the weights in a training: the optimizer, what a caller gives in its place, and the loss.

Also copies weights into and out of modules by name, for checkpoints and files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.training.examples import Examples
from reservoir_hw.readout.training.history import Progress
from reservoir_hw.readout.training.noise import NoiseOf
from reservoir_hw.readout.training.options import TrainingOptions

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
"""The trainable parameters -> the optimizer that changes them."""

Schedule = Callable[[int, int], float]
"""The step (from 0) and the number of all steps -> a factor on the learning rate of each group of the optimizer."""

Evaluate = Callable[[Any, int], Mapping[str, float]]
"""The model and the number of steps done -> metrics by name."""

OnRow = Callable[[int, Any, Mapping[str, float]], None]
"""Called with the number of steps done, the model, and the numbers of a row of the history (`Row.numbers`)."""

OnProgress = Callable[[Progress], None]

_OF_ADAMW = ("learning_rate", "embedding_rate", "betas", "weight_decay", "decay")
_OF_THE_SCHEDULE = ("warmup", "hold", "final_rate")


@dataclass(frozen=True)
class Hooks:
    """The functions that a caller of `train` gives; None where it gives none. `model` is passed to them."""

    model: Any
    optimizer: MakeOptimizer | None = None
    schedule: Schedule | None = None
    evaluate: Evaluate | None = None
    on_row: OnRow | None = None
    progress: OnProgress | None = None

    def check(self, options: TrainingOptions) -> None:
        """Raise `ConfigurationError` for an option that has no effect, because a given function takes its place."""
        for name, given, options_of_it in (
            ("optimizer", self.optimizer, _OF_ADAMW),
            ("schedule", self.schedule, _OF_THE_SCHEDULE),
        ):
            fields = type(options).model_fields
            idle = [one for one in options_of_it if getattr(options, one) != fields[one].default]
            if given is not None and idle:
                raise ConfigurationError(
                    f"options.{idle[0]} has no effect beside {name}=, which says that itself: leave one of them out"
                )

    def factor(self, options: TrainingOptions, step: int, steps: int) -> float:
        """The factor on the learning rate in `step` (from 0) of `steps`."""
        if self.schedule is None:
            return options.rate_factor(step, steps)
        factor = self.schedule(step, steps)
        if not isinstance(factor, Real) or not math.isfinite(factor) or factor < 0:
            raise ConfigurationError(
                f"schedule({step}, {steps}) gave {factor!r}; a factor on the learning rate is a number from 0"
            )
        return float(factor)

    def metrics(self, step: int) -> dict[str, float]:
        """What `evaluate` finds after `step` steps; nothing without it."""
        if self.evaluate is None:
            return {}
        found = self.evaluate(self.model, step)
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"evaluate(model, {step}) gave {found!r}; a mapping of metrics is needed")
        return {str(name): float(value) for name, value in found.items()}


_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def parameter_groups(model: nn.Module, options: TrainingOptions) -> list[dict]:
    """The trainable parameters in groups, each with its `weight_decay` and `rate`, a factor on the learning rate.

    With `decay: linear` there is weight decay on matrices alone: not on vectors and scalars (biases, norms, gains), and
    not on embeddings (Köster & Uchida 2026, A.3). A matrix that embedding and readout share counts as an embedding.

    Raises `ConfigurationError` if nothing is trainable.
    """
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _EMBEDDINGS)
        for parameter in module.parameters(recurse=False)
    }
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        embedding = id(parameter) in embeddings
        decays = options.decay == "all" or (parameter.ndim >= 2 and not embedding)
        key = (options.weight_decay if decays else 0.0, options.embedding_rate if embedding else 1.0)
        groups.setdefault(key, []).append(parameter)
    if not groups:
        raise ConfigurationError("the model has nothing to train: no parameter requires a gradient")
    return [{"params": params, "weight_decay": decay, "rate": rate} for (decay, rate), params in groups.items()]


def make_optimizer(model: nn.Module, options: TrainingOptions, make: MakeOptimizer | None = None) -> Optimizer:
    """AdamW (Loshchilov & Hutter 2019) on `parameter_groups`, or the optimizer that `make` gives.

    Each group keeps its first learning rate as `initial_lr`, the name that torch's schedulers use. Raises
    `ConfigurationError` where `make` gives no optimizer of these parameters.
    """
    groups = parameter_groups(model, options)
    if make is None:
        optimizer: Optimizer = AdamW(groups, lr=options.learning_rate, betas=options.betas, fused=True)
        for group in optimizer.param_groups:
            group["initial_lr"] = options.learning_rate * group["rate"]
        return optimizer
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make(trainable)
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(f"optimizer(parameters) gave {optimizer!r}; a torch.optim.Optimizer is needed")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held.isdisjoint(map(id, trainable)):
        raise ConfigurationError(
            "optimizer(parameters) gave an optimizer without any parameter of the model: make it of `parameters`"
        )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def _names(module: nn.Module) -> dict[int, str]:
    """The name of each parameter, by its id."""
    return {id(parameter): name for name, parameter in module.named_parameters()}


def split_state(optimizer: Optimizer, module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the optimizer remembers of each parameter of a module: tensors, and plain values, by NAME/key.

    NAME is that of the parameter, key the optimizer's own. Raises `ConfigurationError` for values of another kind.
    """
    names = _names(module)
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            place = f"{names[id(parameter)]}/{key}"
            if isinstance(value, Tensor):
                tensors[place] = value
            elif isinstance(value, int | float | None):
                plain[place] = value
            else:
                raise ConfigurationError(
                    f"{type(optimizer).__name__} keeps {key!r} as a {type(value).__name__}, and a checkpoint can hold "
                    "tensors and numbers: train without a folder, or take another optimizer"
                )
    return tensors, plain


def put_state(optimizer: Optimizer, module: nn.Module, values: Mapping[str, Any]) -> None:
    """Give the optimizer back what `split_state` took from it."""
    names = _names(module)
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        parameter, _, key = name.rpartition("/")
        found.setdefault(parameter, {})[key] = value
    state = optimizer.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [index for group in state["param_groups"] for index in group["params"]]
    state["state"] = {
        index: found[names[id(parameter)]]
        for index, parameter in zip(indices, parameters, strict=True)
        if names[id(parameter)] in found
    }
    optimizer.load_state_dict(state)


# ---- The loss as a module: distributed training wraps modules, and calls their `forward`.


class Batch:
    """The arguments of the loss, in one object.

    Lightning Fabric rounds the tensors among the arguments of a module to bfloat16. It does not look into an object.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors


class Objective(nn.Module):
    """A loss, and the module with the weights that it depends on.

    Parameters
    ----------
    trained
        A module, or anything with `parameters()`.
    loss
        Given the tensors of a batch, of which the last are the targets: the mean over all targets that are not -1.
    """

    def __init__(self, trained: Any, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self._loss = loss
        if isinstance(trained, nn.Module):
            self.trained: nn.Module = trained
            return
        parameters = list(trained.parameters())
        if not all(isinstance(parameter, nn.Parameter) for parameter in parameters):
            raise ConfigurationError(
                f"parameters() of {type(trained).__name__} must give torch.nn.Parameter objects, to be changed in place"
            )
        self.trained = nn.ParameterList(parameters)

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        return self._loss(*batch.tensors)


@dataclass(frozen=True)
class Work:
    """A training: `objective` is minimised on `examples` for `steps` steps, and judged on `held_out`.

    `identity` is what must be the same when a training goes on from a checkpoint: the corpus, the devices. `noise` is
    the noise of simulated devices; a checkpoint keeps how far it has come.
    """

    objective: Objective
    examples: Examples
    held_out: Examples | None
    options: TrainingOptions
    steps: int
    identity: Mapping[str, Any]
    noise: NoiseOf
    hooks: Hooks


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers of a module by name, not copied; a tensor with several names (tied) has the first."""
    kept: dict[str, Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor):
            continue
        place = (value.data_ptr(), tuple(value.shape), value.stride())
        if value.numel() and place in seen:
            continue
        seen.add(place)
        kept[name] = value
    return kept


@torch.no_grad()
def put_weights(module: nn.Module, weights: dict[str, Tensor], where: str) -> None:
    """Copy weights by name into a module; `where` they came from is said in messages.

    Raises `ConfigurationError`, which names the first difference, if they belong to another model.
    """
    own = weights_of(module)
    difference = first_difference(own, weights)
    if difference is not None:
        raise ConfigurationError(f"{where} is of another model: {difference}")
    for name, value in own.items():
        value.copy_(weights[name])


def first_difference(own: dict[str, Tensor], other: dict[str, Tensor]) -> str | None:
    """The first difference between the `other` weights and a model's `own`: a name, a shape or a dtype. None: alike."""
    for name in [*own, *other]:
        if name not in other:
            return f"it has no {name!r} {tuple(own[name].shape)}"
        if name not in own:
            return f"it has {name!r} {tuple(other[name].shape)}, which this model does not"
        mine, theirs = own[name], other[name]
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return (
                f"its {name!r} is {tuple(theirs.shape)} of {theirs.dtype}, this model's {tuple(mine.shape)} of "
                f"{mine.dtype}"
            ).replace("torch.", "")
    return None
