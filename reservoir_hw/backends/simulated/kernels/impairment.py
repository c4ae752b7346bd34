"""What `LoopTerms` does to new states, in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms


class Impairment:
    """`LoopTerms` as tensors on the device of `like`; None does nothing."""

    additive: Tensor | None = None
    """(batch, time, nodes)"""

    def __init__(self, terms: LoopTerms | None, like: Tensor) -> None:
        self._terms = terms
        if terms is not None:
            self._keep, self._gain, self.additive = (
                _on_device(array, like) for array in (terms.keep, terms.gain, terms.additive)
            )

    def apply(self, x: Tensor, before: Tensor, step: int) -> Tensor:
        """What becomes of the freshly computed states x (batch, nodes)."""
        if self._terms is None or self.additive is None:
            return x
        return impaired(self._terms, x, before, self._keep, self._gain, self.additive[:, step])


def impaired(terms: LoopTerms, x: Tensor, before: Tensor, keep: Tensor, gain: Tensor, additive: Tensor) -> Tensor:
    """What the terms make of fresh states x; `keep`, `gain` and `additive` are those of these nodes and this step."""
    if terms.saturation < np.inf:
        x = terms.saturation * torch.tanh(x / terms.saturation)
    x = keep * before + gain * x + additive
    if terms.lsb > 0:
        x = (torch.floor(x / terms.lsb + 0.5) * terms.lsb).clamp(-terms.limit, terms.limit - terms.lsb)
    return x


def _on_device(array: Any, like: Tensor) -> Tensor:
    # A copy: the noise of a graph is written over.
    return array.to(like.device, copy=True) if isinstance(array, Tensor) else torch.tensor(array, device=like.device)
