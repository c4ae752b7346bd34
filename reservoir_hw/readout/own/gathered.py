"""What readouts share that learn from all states of the training at once: they are gathered in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from reservoir_hw.core import registry
from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.configuration import NotSolved, Readout
from reservoir_hw.readout.linear.training_chunks import (
    Chunk,
    SequencePosition,
    Widths,
    asked,
    check_finite,
    checked,
    in_numpy,
)

# What float32 can hold.
_LARGEST = 1e38


def settings_of(section: dict[str, Any]) -> Any:
    """The configuration that a file of a readout holds."""
    return registry.find("readouts", section["kind"]).load().model_validate(section)


class GatheredReadout(Readout, ABC):
    """Takes the states of the training in chunks, as every readout does, and learns when `solve` is called.

    The first `washout` steps of each sequence are left out. A target that is NaN is not known, and not learned.
    """

    takes_tensors = False
    gathers: Literal[True] = True

    mixes_positions = False
    """Whether an output depends on other steps than its own, so that `predict` needs whole sequences."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.input_connection: bool = config.input_connection
        self.washout: int = config.washout
        self.repetitions_ = 1
        self.known_widths: Widths | None = None
        self._position = SequencePosition(self.washout)
        self._samples = 0

    def partial_fit(
        self, states: npt.ArrayLike, targets: npt.ArrayLike, inputs: Any = None, *, new_sequence: bool = False
    ) -> Self:
        """Keep a chunk: states (batch, time, nodes), targets and inputs likewise, as `RidgeReadout.partial_fit`."""
        begins = new_sequence or self.known_widths is None
        columns = checked(
            in_numpy(Chunk(states, targets, inputs)), input_connection=self.input_connection, widths=self.known_widths
        )
        drop = self._position.washed_out(columns, new_sequence=begins)
        check_finite(replace(columns, targets=np.nan_to_num(columns.targets)), drop, _LARGEST)
        self._position.advance(columns, drop, new_sequence=begins)
        self.known_widths = columns.widths
        self._gather(np.concatenate(columns.features, axis=2)[:, drop:], columns.targets[:, drop:], begins=begins)
        return self

    @abstractmethod
    def _gather(self, features: np.ndarray, targets: np.ndarray, *, begins: bool) -> None:
        """Keep features (batch, time, features), a copy, and targets; with `begins` they are of new sequences."""

    @property
    def widths(self) -> Widths:
        """Nodes, inputs that are read, and outputs. Raises `NotSolved` before anything was learned from."""
        if self.known_widths is None:
            raise NotSolved(f"{type(self).__name__} has learned nothing yet: call partial_fit and solve first")
        return self.known_widths

    def _features(self, states: Any, inputs: Any) -> np.ndarray:
        """States (..., nodes), followed by the inputs where it reads them. Raises `ShapeError` for other widths."""
        widths, given = self.widths, None if inputs is None else as_numpy(inputs)
        x, u = asked(as_numpy(states), given, widths.nodes, widths.inputs)
        return x if u is None else np.concatenate([x, u], axis=-1)

    def _nothing_left(self) -> ConfigurationError:
        return ConfigurationError(
            f"there are no steps to learn from: behind the washout of {self.washout} steps no target is known"
        )
