"""How a model is seen by what exports it: stages between its reservoirs.

A model has a method `cut(cutter)` that hands its parts to one method of the cutter: `chain` for a model whose
reservoirs stand one after the other (`Stage`), `gates_around_device` and `gates_around_matrices` for gates, and
`recurrence` for a network that is part of the model. Graphs are written by `reservoir_hw.readout.export`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """What a model computes between two reservoirs: x and the states of the reservoir before -> (y, carried).

    y drives the next reservoir; that of the last stage is the output. `carried` passes by the reservoir and is the
    next stage's x, or None. The first stage has the input of the model as x, and None as states.
    """

    compute: Callable[[Any, Any], tuple[Tensor, Tensor | None]]
    """In torch."""

    emit: Callable[[Any, Any, Any], tuple[str, str | None]]
    """The same as nodes of a graph, its first argument; of names of tensors."""


@dataclass(frozen=True)
class Series:
    """What a model for series of numbers makes of its states (batch, time, nodes): outputs (batch, time, width)."""

    name: str
    width: int
    compute: Callable[[Tensor], Tensor]
    emit: Callable[[Any, str], str]
    meaning: Literal["values", "logits"] = "values"
    reads_last: bool = False
    """Whether the output of the last step alone counts."""
