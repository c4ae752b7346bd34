"""A model cut at its reservoirs: graphs, what crosses between them, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.readout.edge.manifest import Carried, Crossing, Value
from reservoir_hw.readout.export.graph import Graph, Weights
from reservoir_hw.readout.linear.linear_form import FeatureScale

EDGE = "_on_the_edge"
"""Behind the name of a count of clipped values: how many may be counted or not, as rounding decides."""

Values = dict[str, np.ndarray]
"""Arrays by the names of values."""

Reference = Callable[[Values], Values]
"""What a segment computes, by the model's own code: what it reads -> what it gives, and the `EDGE` of its counts."""


@dataclass
class Plan:
    """What is exported. `graphs`, `references` and the segments of the manifest are in the same order.

    `reservoirs` are the specs of the devices that the slots of the crossings name, as the model sees them.
    """

    model: str
    input: Value
    output: Value
    output_meaning: Literal["values", "logits"]
    graphs: list[Graph]
    references: list[Reference]
    reservoirs: list[ReservoirSpec] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    stepwise: bool = False
    whole_sequences: bool = False
    reads_last: bool = False
    vocabulary: int | None = None
    state_scale: FeatureScale | None = None
    """What states were like in training, where the device declares no range of them and the readout knows it."""

    @property
    def weights(self) -> Weights:
        """Those of all graphs, in one file."""
        return self.graphs[0].weights

    @property
    def target(self) -> Literal["segments", "whole"]:
        """Graphs beside devices, or one graph that needs none."""
        return "segments" if self.reservoirs else "whole"
