"""A model cut at its reservoirs: graphs, what crosses between them, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

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
    weights: Weights
    graphs: list[Graph]
    references: list[Reference]
    reservoirs: list[ReservoirSpec] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    stepwise: bool = False
    whole_sequences: bool = False
    reads_last: bool = False
    target: Literal["segments", "whole"] = "segments"
    vocabulary: int | None = None
    state_scale: FeatureScale | None = None
    """What states were like in training, where the device declares no range of them and the readout knows it."""

    @classmethod
    def whole(cls, graph: Graph, reference: Reference, carried: list[Carried], **described: Any) -> Plan:
        """A model that is one graph and has no device; `described` are the fields that the kind of model decides."""
        return cls(
            **described,
            weights=graph.weights,
            graphs=[graph],
            references=[reference],
            carried=carried,
            target="whole",
        )
