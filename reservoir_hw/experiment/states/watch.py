"""What casts doubt on states: clipped inputs, converters at their ends, nodes that never move, what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.spec import Counters, ReservoirSpec
from reservoir_hw.experiment.states.plan import DriveChunk
from reservoir_hw.experiment.states.steadiness import Steadiness

_SHOWN = 8
# Of the samples of a node: so many exactly at its largest or smallest value are no chance.
_RAILED = 0.01
# States so close to an end of the declared range, as a share of it, hardly answer any more; and which share of all may.
_CLOSE, _MAY_BE_CLOSE = 0.005, 0.25
# Of the steps, every so many is looked at for that.
_EVERY = 8
_OF_COUNTERS = {
    "saturations": "samples{over} lay beyond the range of a converter: lower the gain, or widen its range (`range_v` "
    "of an input of an instrument, `limit` or `range` of `nonidealities` of a simulation)",
    "lost": "samples were lost: drive more slowly, or in shorter bursts",
    "underruns": "times inputs were not there when they were due: send larger chunks, or drive more slowly",
    "overruns": "times states were not taken in time: send smaller chunks, or drive more slowly",
    "retries": "drives were tried again: look at the cables, and at the log of the device",
}


class StateWatch:
    """Looks at all states of a drive as they pass.

    A node is railed if it lies at an end of the declared `state_range`, or, on a device without a declared range, if
    more than 1 % of its samples are exactly its largest or smallest value. Simulations may do so by their equations.
    Of what is no simulation, the last tenth of the training is compared with the first (`Steadiness`).
    """

    def __init__(self, spec: ReservoirSpec) -> None:
        self._spec = spec
        self._lowest, self._highest = np.full(spec.nodes, np.inf), np.full(spec.nodes, -np.inf)
        self._at_lowest, self._at_highest = np.zeros(spec.nodes), np.zeros(spec.nodes)
        self._samples = 0
        self._close = self._looked_at = 0
        self._steadiness = None if spec.identity.simulated else Steadiness(spec.nodes)

    def passing(self, states: Iterable[tuple[DriveChunk, Any]]) -> Iterator[tuple[DriveChunk, Any]]:
        """The same chunks and states, which are looked at; tensors where they are."""
        for chunk, answer in states:
            self.look(chunk, answer)
            yield chunk, answer

    def look(self, chunk: DriveChunk, states: Any) -> None:
        """Look at the states (batch, time, nodes) of a chunk."""
        if chunk.place is not None and 0 not in states.shape:
            self._look(states)
            # A test may have other inputs.
            if self._steadiness is not None and chunk.split == "train":
                self._steadiness.look(chunk.inputs, states)

    def warnings(self) -> list[str]:
        """One for nodes that never moved, one for nodes that are railed, and one for a device that drifts."""
        found = []
        still = self._lowest == self._highest
        if self._samples > 1 and still.any():
            wiring = (
                "a readout gains nothing by them"
                if self._spec.identity.simulated
                else "look at their wiring, or leave them out"
            )
            found.append(f"{_nodes(still)} never moved: {wiring}")
        share = np.maximum(self._at_lowest, self._at_highest) / max(self._samples, 1)
        # The largest of a few samples is there once.
        railed = (share > (0 if self._spec.state_range else max(_RAILED, 1 / max(self._samples, 1)))) & ~still
        if railed.any():
            found.append(
                f"{_nodes(railed)} lay at the end of the converter's range in up to {share[railed].max():.2g} of the "
                "samples: lower the gain, or widen the range"
            )
        if self._close > _MAY_BE_CLOSE * self._looked_at and not railed.any():
            found.append(
                f"{self._close / self._looked_at:.0%} of the states lie at an end of their range, where they hardly "
                "answer to an input any more: scale the inputs (task.scale, input_scaling of the reservoir)"
            )
        return found if self._steadiness is None else found + self._steadiness.warnings()

    def _look(self, states: Any) -> None:
        lowest, highest = arrays.node_limits(states)
        if self._spec.state_range is not None:
            low, high = self._spec.state_range
            self._at_lowest += _times(states <= low)
            self._at_highest += _times(states >= high)
            some, close = states[:, ::_EVERY], _CLOSE * (high - low)
            self._close += int(_times((some <= low + close) | (some >= high - close)).sum())
            self._looked_at += int(np.prod(some.shape))
        elif not self._spec.identity.simulated:
            for count, extreme, known, beyond in (
                (self._at_lowest, lowest, self._lowest, lowest < self._lowest),
                (self._at_highest, highest, self._highest, highest > self._highest),
            ):
                count[beyond] = 0
                there = np.where(beyond, extreme, known)
                count += _times(states == arrays.like(there, states))
        self._lowest, self._highest = np.minimum(self._lowest, lowest), np.maximum(self._highest, highest)
        self._samples += states.shape[0] * states.shape[1]


def counted(records: Iterable[Mapping[str, Any]]) -> Counters:
    """The sum of the counters in the records of a device, one for each time that it was opened."""
    total = Counters()
    for record in records:
        for name, value in record.get("counters", {}).items():
            if hasattr(total, name) and isinstance(value, int):
                setattr(total, name, getattr(total, name) + value)
    return total


def about_counters(counters: Counters, spec: ReservoirSpec) -> list[str]:
    """One sentence for each kind of event that was counted."""
    found = []
    if counters.clipped:
        within = "" if spec.input_range is None else " {:g} to {:g}".format(*spec.input_range)
        found.append(
            f"{counters.clipped:,} of {counters.steps * spec.inputs:,} input values were clipped to the range{within} "
            "of the device: scale the inputs, or let out_of_range: error refuse them"
        )
    named = ((getattr(counters, name), what) for name, what in _OF_COUNTERS.items())
    over = f" of {counters.steps:,} steps of {spec.nodes} nodes"
    return [*found, *(f"{count:,} {what.format(over=over)}" for count, what in named if count)]


def _times(true: Any) -> np.ndarray:
    """How often, for each node."""
    return arrays.as_numpy(true.sum(axis=(0, 1)))


def _nodes(which: np.ndarray) -> str:
    numbers = np.flatnonzero(which)
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} of {len(which)} nodes ({shown})"
