"""What `LoopTerms` does to new states, in torch: those of one network, or of a population."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms


def impaired_at(terms: LoopTerms | None, x: Tensor, before: Tensor, step: int) -> Tensor:
    """What the terms, if there are any, make of the fresh states x (batch, nodes) of a step."""
    if terms is None:
        return x
    return impaired(terms, x, before, terms.keep, terms.gain, terms.additive[:, step])


def impaired(terms: LoopTerms, x: Tensor, before: Tensor, keep: Tensor, gain: Tensor, additive: Tensor) -> Tensor:
    """What the terms make of fresh states x; `keep`, `gain` and `additive` are those of these nodes and this step."""
    if terms.saturation < np.inf:
        x = terms.saturation * torch.tanh(x / terms.saturation)
    x = keep * before + gain * x + additive
    if terms.lsb > 0:
        x = (torch.floor(x / terms.lsb + 0.5) * terms.lsb).clamp(-terms.limit, terms.limit - terms.lsb)
    return x


class StackedTerms(NamedTuple):
    """`LoopTerms` of the members of a population.

    `keep`, `gain` are (members, nodes), `limits` (members, 3) are saturation, lsb and limit, `additive` is
    (members, batch, time, nodes).
    """

    keep: Tensor
    gain: Tensor
    limits: Tensor
    additive: Tensor

    def apply(self, x: Tensor, before: Tensor, step: int) -> Tensor:
        """What becomes of the freshly computed states x (members, batch, nodes)."""
        saturation, lsb, limit = self.limits.T[:, :, None, None]
        x = torch.where(saturation < torch.inf, saturation * torch.tanh(x / saturation), x)
        x = self.keep[:, None] * before + self.gain[:, None] * x + self.additive[:, :, step]
        rounded = torch.clamp(torch.floor(x / lsb + 0.5) * lsb, -limit, limit - lsb)
        return torch.where(lsb > 0, rounded, x)


def stack_terms(loops: Sequence[LoopTerms | None] | None, like: Tensor, shape: tuple[int, ...]) -> StackedTerms | None:
    """The terms of the members, of the dtype and on the device of `like`; None where no member has any.

    `shape` is that of the states, (members, batch, time, nodes). A member without terms gets ideal ones.
    """
    given = [] if loops is None else list(loops)
    if all(terms is None for terms in given):
        return None
    zeros, one = like.new_zeros(shape[1:]), like.new_ones(shape[-1])
    ideal: Any = (torch.inf, zeros[0, 0], one, zeros, 0.0, 1.0)
    every = [LoopTerms(*ideal) if terms is None else terms for terms in given]

    def tensor(array: Any) -> Tensor:
        return torch.as_tensor(array, dtype=like.dtype, device=like.device)

    return StackedTerms(
        keep=torch.stack([tensor(terms.keep) for terms in every]),
        gain=torch.stack([tensor(terms.gain) for terms in every]),
        limits=tensor([[float(terms.saturation), float(terms.lsb), float(terms.limit)] for terms in every]),
        additive=torch.stack([tensor(terms.additive) for terms in every]),
    )
