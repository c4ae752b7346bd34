"""A readout of states that are normalised first."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class NormalisedReadout(nn.Module):
    """`readout(LayerNorm(x))`: the states of each step get mean 0 and variance 1, then a trained scale and shift.

    (..., features) -> (..., vocabulary), as the readout does alone.
    """

    def __init__(self, features: int, vocabulary: int, readout: nn.Module) -> None:
        super().__init__()
        self.features, self.vocabulary = features, vocabulary
        self.norm = nn.LayerNorm(features)
        self.readout = readout

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., vocabulary) of states (..., features)."""
        return self.readout(self.norm(x))

    def emit(self, graph: Any, x: str, name: str) -> str:
        """The same as nodes of a graph (`readout.export`)."""
        return graph.emit(self.readout, graph.emit(self.norm, x, f"{name}.norm"), f"{name}.readout")
