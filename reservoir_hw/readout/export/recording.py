"""What crosses the reservoirs of a model while it reads something: graphs and headers are compared on it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from reservoir_hw.core.reservoir import Reservoir

if TYPE_CHECKING:
    from reservoir_hw.readout.export.graph import Values
    from reservoir_hw.readout.models.token_model import TokenModel


def record_text(model: TokenModel, tokens: np.ndarray) -> Values:
    """Let a model read tokens (batch, time) from rest; returns them, and the states that its devices answered."""
    import torch

    from reservoir_hw.readout.models.token_model import device_of, evaluating

    seen: list[np.ndarray] = []
    tokens = tokens.astype(np.int64)
    with evaluating(model), ExitStack() as stack:
        for reservoir in {id(layer.reservoir): layer.reservoir for layer in model.reservoir_layers}.values():
            stack.enter_context(reservoir.observed_by(_Watch(seen)))
        model.features(torch.from_numpy(tokens).to(device_of(model)))
    return {"tokens": tokens, **{f"states_{number}": states for number, states in enumerate(seen)}}


def record_series(reservoir: Reservoir, inputs: np.ndarray) -> Values:
    """Drive a device from rest with inputs (batch, time, inputs); returns them and the states."""
    given = np.ascontiguousarray(inputs, reservoir.spec.dtype)
    reservoir.reset(len(given))
    return {"inputs": given, "states_0": np.asarray(reservoir.run(given))}


class _Watch:
    """Keeps the states of every drive."""

    def __init__(self, kept: list[np.ndarray]) -> None:
        self._kept = kept

    def was_reset(self, *, from_rest: bool) -> None:
        """Of no interest."""

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        """Keep them."""
        if states is not None:
            self._kept.append(states.copy())
