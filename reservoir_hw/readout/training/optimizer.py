"""AdamW with the groups of parameters that the papers treat alike."""

from __future__ import annotations

import torch
from torch import nn

from reservoir_hw.core.errors import ConfigurationError
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


def make_optimizer(model: nn.Module, options: TrainingOptions) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) over `parameter_groups`."""
    groups = parameter_groups(model, options)
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """This learning rate, times the factor of each group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]
