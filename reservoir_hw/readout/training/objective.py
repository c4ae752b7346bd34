"""What is minimised, as a module: distributed training wraps modules, and calls their `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError


class Batch:
    """Arguments of the loss.

    Lightning Fabric would round bare float tensors to bfloat16 before the model sees them; it leaves an object alone.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors


class Objective(nn.Module):
    """A loss and who owns the weights behind it.

    Parameters
    ----------
    trained
        A module, or anything with `parameters()`.
    loss
        Takes the tensors of a batch, the last of them targets, to the mean over the targets that are not -1.
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

    def weights(self) -> dict[str, Tensor]:
        """All weights and buffers by name, without copies; what is shared appears once."""
        return weights_of(self.trained)

    def parameter_names(self) -> dict[int, str]:
        """The name of each parameter, by its id."""
        return {id(parameter): name for name, parameter in self.trained.named_parameters()}


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers of a module by name, without copies; what is shared (tied) appears once."""
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
    """Copy weights by name into a module; `where` they came from is for messages.

    Raises `ConfigurationError` naming the first difference if they are those of another model.
    """
    own = weights_of(module)
    difference = first_difference(own, weights)
    if difference is not None:
        raise ConfigurationError(f"{where} is of another model: {difference}")
    for name, value in own.items():
        value.copy_(weights[name])


def first_difference(own: dict[str, Tensor], other: dict[str, Tensor]) -> str | None:
    """How weights differ from this model's in names, shapes or dtype, or None."""
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
