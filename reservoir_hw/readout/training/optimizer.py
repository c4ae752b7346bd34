"""AdamW with the groups of parameters that the papers treat alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.training.hooks import MakeOptimizer
from reservoir_hw.readout.training.options import TrainingOptions

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def parameter_groups(model: nn.Module, options: TrainingOptions) -> list[dict]:
    """Trainable parameters in groups with `weight_decay` and `rate`, a factor on the learning rate.

    With `decay: linear`, matrices decay; vectors and scalars (biases, norms, gains) and embeddings do not (Köster &
    Uchida 2026, A.3). A matrix that an embedding shares with a readout counts as embedding.

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
    """AdamW (Loshchilov & Hutter 2019) over `parameter_groups`, or what `make` gives for the trainable parameters.

    Each group keeps the learning rate that it was made with as `initial_lr`, as torch's schedulers do.
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


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    """The learning rate of each group, times this factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def split_state(optimizer: Optimizer, names: Mapping[int, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the optimizer keeps of each parameter, tensors and plain values, as NAME/key.

    Raises `ConfigurationError` for anything else.
    """
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


def put_state(optimizer: Optimizer, names: Mapping[int, str], values: Mapping[str, Any]) -> None:
    """Give the optimizer back what `split_state` took from it."""
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
